// SPDX-License-Identifier: Apache-2.0
// The classification head: compared with PyTorch (scripts/make_classification_vectors.py made the vectors), padding,
// frozen tensors, and layouts compared with one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "models/files/safetensors.h"
#include "models/training_step.h"
#include "tests/models/every_implementation.h"
#include "tests/models/formula_model.h"
#include "tests/models/parallel_training.h"

namespace droptest::models::classification_test {
namespace {

constexpr int kClasses = 3;
constexpr int kColumns = 10;  ///< columns of the formula's tokens
const std::vector<int> kLengths = {7, 1, 10, 4};
const std::vector<std::int32_t> kLabels = {2, 0, 1, 1};

Gpt2Config tiny(std::vector<double> weights = {}, std::vector<TensorRule> rules = {}) {
  Gpt2Config config{2, 16, 2, 10, 23};
  config.classes = kClasses;
  config.class_weights = std::move(weights);
  config.tensor_rules = std::move(rules);
  return config;
}

std::vector<double> doubles(const StoredTensors& tensors, const std::string& name) {
  const StoredTensor& tensor = tensors.at(name);
  std::vector<double> values(tensor.bytes.size() / sizeof(double));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

StoredTensors vectors() {
  const char* const path = DROPTEST_VECTORS "/gpt2_classification.safetensors";
  std::ifstream file(path, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  return parse_safetensors(std::as_bytes(std::span(content)), path);
}

/// The sequences of the vectors, padded to some length with some token.
struct Padded {
  std::vector<std::int32_t> tokens, targets;
  BatchShape shape;
  MicroBatch batch() const { return {tokens, targets, shape}; }
};
Padded padded(int length, std::int32_t padding) {
  const auto formula = formula_tokens(0, static_cast<int>(kLengths.size()) * kColumns, tiny().vocabulary);
  Padded result;
  result.shape = {static_cast<std::int64_t>(kLengths.size()), length};
  for (std::size_t row = 0; row < kLengths.size(); ++row) {
    for (int i = 0; i < length; ++i) {
      result.tokens.push_back(i < kLengths[row] ? formula[row * kColumns + static_cast<std::size_t>(i)] : padding);
      result.targets.push_back(i == kLengths[row] - 1 ? kLabels[row] : kIgnoredTarget);
    }
  }
  return result;
}

/// The sum over ranks.
std::vector<double> class_logits(Gpt2& model, comm::Communicator& group) {
  std::vector<double> logits = model.detail();
  group.all_reduce(std::span<double>(logits), comm::ReduceOp::kSum, {sim::TrafficClass::kControl, "logits", -1});
  return logits;
}

/// `bound` is on each tensor's relative difference.
template <class T>
void expect_torch(int ranks, double bound) {
  const StoredTensors want = vectors();
  const std::vector<double> losses = doubles(want, "losses");
  const std::vector<double> norms = doubles(want, "norms");
  const Padded batch = padded(kColumns, 5);
  Tensors gradients;
  Tensors final_weights;
  std::mutex mutex;
  comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
    Gpt2Config config = tiny({0.5, 2.0, 1.25}, {{"w*e.weight", 0}, {"h.0.*", 0.25}});
    HostGpt2<T> model(config, group, 1, {}, {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-4, .weight_decay = 0.1});
    set_formula_weights(model, group);
    const double plain = model.model().evaluate(batch.batch(), EvaluationDetail::kLogits);
    EXPECT_NEAR(plain / doubles(want, "plain_loss")[0], 1, bound) << "evaluation has no weights of classes";
    EXPECT_LE(relative_difference(class_logits(model.model(), group), doubles(want, "logits")), bound);
    for (std::size_t step = 0; step < losses.size(); ++step) {
      model.zero_gradients();
      const double loss = model.forward_backward(batch.tokens, batch.targets, 4, kColumns, 1.0);
      const double norm = model.gradient_norm();
      EXPECT_NEAR(loss / losses[step], 1, bound) << "step " << step;
      EXPECT_NEAR(norm / norms[step], 1, bound) << "step " << step;
      if (step == 0) {
        const std::lock_guard lock(mutex);
        add_to_whole(model, group, &Parameter<T>::gradient, gradients);
      }
      model.step(1e-2, clip_scale(norm, 0.5));
    }
    const std::lock_guard lock(mutex);
    add_to_whole(model, group, &Parameter<T>::value, final_weights);
  });
  ASSERT_EQ(gradients.size(), 29U);
  for (const auto& [name, values] : gradients) {
    if (name == "wte.weight" || name == "wpe.weight") continue;  // frozen
    EXPECT_LE(relative_difference(values, doubles(want, "gradient/" + name)), bound) << name;
    EXPECT_LE(relative_difference(final_weights.at(name), doubles(want, "final/" + name)), bound) << name;
  }
}

TEST(ClassificationTorch, DoubleEqualsPyTorchToRounding) { expect_torch<double>(1, 1e-12); }
// Two heads: two ranks, of which one has two of the three classes.
TEST(ClassificationTorch, DoubleOnTwoRanksEqualsPyTorch) { expect_torch<double>(2, 1e-12); }
TEST(ClassificationTorch, FloatEqualsPyTorchToFloatRounding) { expect_torch<float>(1, 1e-5); }
TEST(ClassificationTorch, FloatOnTwoRanksEqualsPyTorch) { expect_torch<float>(2, 1e-5); }

// Attention is causal, so tokens after the last token of a sequence have no effect.
TEST(Classification, PaddingOfAnyAmountChangesNothing) {
  on_every_implementation(2, [](const Implementation& implementation, comm::Communicator& group) {
    Gpt2Config config = tiny();
    config.context = 14;
    const auto model = formula_model(config, implementation.make(group), group);
    const double bound = std::max(implementation.tolerance, 1e-13);
    std::vector<double> logits, gradients;
    double loss = 0;
    for (const auto& [length, padding] : {std::pair(10, 0), std::pair(10, 22), std::pair(13, 7), std::pair(14, 0)}) {
      const Padded batch = padded(length, padding);
      const double got_loss = model->evaluate(batch.batch(), EvaluationDetail::kLogits);
      const std::vector<double> got_logits = class_logits(*model, group);
      model->zero_gradients();
      model->forward_backward(batch.tokens, batch.targets, batch.shape, 1.0);
      const std::vector<double> got_gradients = numbers_of(*model, Field::kGradient);
      if (logits.empty()) {
        loss = got_loss;
        logits = got_logits;
        gradients = got_gradients;
      }
      EXPECT_NEAR(got_loss / loss, 1, bound) << length;
      EXPECT_LE(relative_difference(got_logits, logits), bound) << length;
      EXPECT_LE(relative_difference(got_gradients, gradients), bound) << length;
    }
  });
}

TEST(Classification, ASequenceWithoutATargetHasLogitsOfZeros) {
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    HostGpt2<double> model(tiny(), group, 1);
    set_formula_weights(model, group);
    Padded batch = padded(kColumns, 0);
    (void)model.model().evaluate(batch.batch(), EvaluationDetail::kLogits);
    const std::vector<double> all = model.model().detail();
    batch.targets[6] = kIgnoredTarget;  // the target of the first sequence
    (void)model.model().evaluate(batch.batch(), EvaluationDetail::kLogits);
    const std::vector<double> without = model.model().detail();
    ASSERT_EQ(without.size(), 4U * kClasses);
    for (std::size_t i = 0; i < without.size(); ++i) EXPECT_EQ(without[i], i < kClasses ? 0 : all[i]);
  });
}

std::vector<TrainingCase> layouts() {
  std::vector<TrainingCase> cases;
  const auto add = [&](const char* name, const std::function<void(Training&)>& change) {
    Training run;
    run.config.classes = kClasses;
    run.sequences = 2;
    run.steps = 3;
    run.max_norm = 0.1;
    change(run);
    cases.push_back({name, run});
  };
  add("tensor4_fewer_classes_than_ranks", [](Training& r) { r.tensor = 4; });
  add("data2_class_weights", [](Training& r) {
    r.data = 2;
    r.config.class_weights = {0.25, 1.5, 3};
    r.sharding = small_buckets(0);
  });
  add("pipeline2_tensor2", [](Training& r) {
    r.pipeline = 2;
    r.tensor = 2;
    r.micro_batches = 2;
  });
  add("interleaved_first_and_last_stage_on_one_rank", [](Training& r) {
    r.pipeline = 1;
    r.chunks = 2;
    r.kind = ScheduleKind::kInterleaved;
    r.micro_batches = 2;
  });
  add("cut_tokens", [](Training& r) {
    r.tensor = 3;
    r.memory.tensor_sequence = true;
  });
  add("data2_zero1_frozen", [](Training& r) {
    r.data = 2;
    r.sharding = small_buckets(1);
    r.config.tensor_rules = {{"wte.*", 0}, {"wpe.*", 0}, {"h.0.*", 0}, {"h.2.*", 0.5}};
  });
  add("data2_zero3", [](Training& r) {
    r.data = 2;
    r.sharding = small_buckets(3);
  });
  add("pipeline4_first_stage_frozen", [](Training& r) {
    r.pipeline = 4;
    r.micro_batches = 4;
    r.config.tensor_rules = {{"w*e.*", 0}, {"h.0.*", 0}};
  });
  add("tensor2_vocabulary_with_padding_frozen", [](Training& r) {
    r.tensor = 2;
    r.config.tensor_rules = {{"wte.*", 0}, {"h.*.ln_*", 0}};
  });
  return cases;
}

class ClassificationLayouts : public testing::TestWithParam<TrainingCase> {};
TEST_P(ClassificationLayouts, EqualOneRank) { expect_equal_to_one_rank<double>(GetParam().run, 1e-12); }
INSTANTIATE_TEST_SUITE_P(All, ClassificationLayouts, testing::ValuesIn(layouts()),
                         [](const auto& item) { return std::string(item.param.name); });

TEST(FrozenTensors, KeepTheirBitsAndAreNeitherSentNorCounted) {
  Training run;
  run.data = 2;
  run.steps = 3;
  run.sharding = small_buckets(0);
  const TrainingResult all = train<double>(run);
  run.config.tensor_rules = {{"h.1.*", 0}, {"w*e.weight", 0}};
  const TrainingResult some = train<double>(run);
  const std::vector<Gpt2Tensor> tensors = gpt2_tensors(run.config, 1, 0);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<double>& value = some.of_replica[1].at(tensors[i].name);
    const bool is_gain = tensors[i].group == "layer_norm" && tensors[i].name.ends_with("weight");
    bool stays = true;
    for (std::size_t k = 0; k < value.size(); ++k)
      stays = stays && value[k] == (is_gain ? 1.0 : 0.0) + 0.5 * mixed(i, k);
    EXPECT_EQ(stays, tensors[i].is_frozen()) << tensors[i].name;
  }
  EXPECT_EQ(some.steps[0].loss, all.steps[0].loss);
  EXPECT_LT(some.steps[0].gradient_norm, all.steps[0].gradient_norm);
  const ParameterTable table(gpt2_tensors(run.config, 1, 0));
  std::uint64_t trained = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    trained += tensors[i].is_frozen() ? 0 : tensors[i].slice.full_elems();
  EXPECT_EQ(table.trained_elems, trained);
  EXPECT_EQ(table.elems, parameter_count(run.config));
  const ShardPlan plan(table, sizeof(double), run.sharding, 2, 0);
  EXPECT_EQ(plan.buckets().back().offset + plan.buckets().back().count, trained) << "buckets have no frozen elements";
}

TEST(FrozenTensors, ShardedValuesAreRefused) {
  comm::run_ranks(2, kTestTimeout, [&](comm::Communicator& group) {
    Gpt2Config config = tiny({}, {{"wte.*", 0}});
    const auto error = [&](int zero) {
      try {
        const Gpt2 model(config, make_host_ops({}, group), {}, {}, {.data = {&group, {.zero = zero}}});
      } catch (const ConfigError& problem) {
        return std::string(problem.what());
      }
      return std::string();
    };
    EXPECT_THAT(error(3), testing::HasSubstr("frozen tensors: got some with zero 3"));
    EXPECT_EQ(error(0), "");
  });
}

TEST(TensorRules, MatchNamesWithStars) {
  EXPECT_TRUE(matches_pattern("h.1.*", "h.1.ln_1.weight"));
  EXPECT_FALSE(matches_pattern("h.1.*", "h.11.ln_1.weight"));
  EXPECT_TRUE(matches_pattern("*.weight", "h.11.ln_1.weight"));
  EXPECT_TRUE(matches_pattern("h.*.attn.*.bias", "h.3.attn.c_attn.bias"));
  EXPECT_FALSE(matches_pattern("h.*.attn.*.bias", "h.3.mlp.c_fc.bias"));
  EXPECT_TRUE(matches_pattern("*", ""));
  EXPECT_FALSE(matches_pattern("wte.weight", "wte.weights"));
  Gpt2Config config = tiny({}, {{"*", 0}, {"h.1.*", 0.5}, {"h.1.ln_1.*", 2}});
  for (const Gpt2Tensor& tensor : gpt2_tensors(config, 1, 0)) {
    const double want = tensor.name.starts_with("h.1.ln_1") ? 2 : tensor.layer == 1 ? 0.5 : 0;
    EXPECT_EQ(tensor.learning_rate_factor, want) << tensor.name;
  }
}

TEST(Classification, RefusesTargetsThatAreNoClass) {
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    HostGpt2<float> model(tiny(), group, 1);
    Padded batch = padded(kColumns, 0);
    batch.targets[6] = kClasses;
    EXPECT_THROW((void)model.model().evaluate(batch.batch()), ConfigError);
  });
  Gpt2Config one = tiny();
  one.classes = 1;
  EXPECT_THROW(validate(one, 1), ConfigError);
  EXPECT_THROW(validate(tiny({1, 2}), 1), ConfigError);
  EXPECT_THROW(validate(tiny({1, 2, 0}), 1), ConfigError);
}

}  // namespace
}  // namespace droptest::models::classification_test
