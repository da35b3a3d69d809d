// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters: compared with PyTorch, which does not merge them into the weights; merged; in layouts; and their
// files.
#include "models/gpt2/lora.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "models/gpt2/gpt2_weights.h"
#include "tests/models/formula_model.h"
#include "tests/models/parallel_training.h"

namespace droptest::models::lora_test {
namespace {

constexpr int kColumns = 10;

Gpt2Config tiny(const LoraOptions& lora) {
  Gpt2Config config{2, 16, 2, 10, 23};
  config.classes = 3;
  config.lora = lora;
  return config;
}

LoraOptions all_targets() { return {2, 3.0, lora_targets()}; }

std::vector<double> doubles(const StoredTensors& tensors, const std::string& name) {
  const StoredTensor& tensor = tensors.at(name);
  std::vector<double> values(tensor.bytes.size() / sizeof(double));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

/// The sequences of scripts/make_classification_vectors.py.
struct Examples {
  Examples() : tokens(formula_tokens(0, 4 * kColumns, 23)), targets(tokens.size(), kIgnoredTarget) {
    targets[6] = 2;
    targets[10] = 0;
    targets[29] = 1;
    targets[33] = 1;
  }
  std::vector<std::int32_t> tokens, targets;
};

template <class T>
void expect_torch(int ranks, double bound) {
  const char* const path = DROPTEST_VECTORS "/gpt2_classification.safetensors";
  std::ifstream file(path, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  const StoredTensors want = parse_safetensors(std::as_bytes(std::span(content)), path);
  const Examples examples;
  Tensors gradients;
  std::mutex mutex;
  comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
    HostGpt2<T> model(tiny(all_targets()), group, 2);
    set_formula_weights(model, group);
    const double loss = model.forward_backward(examples.tokens, examples.targets, 4, kColumns, 1.0);
    EXPECT_NEAR(loss / doubles(want, "lora/loss")[0], 1, bound);
    const std::lock_guard lock(mutex);
    add_to_whole(model, group, &Parameter<T>::gradient, gradients);
  });
  int adapters = 0;
  for (const auto& [name, values] : gradients) {
    if (name.find(".lora_") == std::string::npos) continue;
    ++adapters;
    EXPECT_LE(relative_difference(values, doubles(want, "lora/gradient/" + name)), bound) << name;
  }
  EXPECT_EQ(adapters, 16);
}

TEST(LoraTorch, MergedInDoubleEqualsApartInPyTorch) { expect_torch<double>(1, 1e-12); }
TEST(LoraTorch, OnTwoRanksToo) { expect_torch<double>(2, 1e-12); }
TEST(LoraTorch, FloatEqualsPyTorchToFloatRounding) { expect_torch<float>(2, 1e-5); }

TEST(Lora, MergedWeightsOfAPlainModelGiveTheSameLoss) {
  const Examples examples;
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    const Gpt2Config config = tiny(all_targets());
    HostGpt2<float> apart(config, group, 1);
    set_formula_weights(apart, group);
    const double loss = apart.evaluate(examples.tokens, examples.targets, 4, kColumns);
    const StoredTensors all = gather_gpt2_weights(config, apart.parameters(), group);
    const StoredTensors merged = with_merged_adapters(config, all);
    EXPECT_EQ(merged.size(), 29U);
    HostGpt2<float> plain(tiny({}), group, 1);
    load_gpt2_weights(plain.config(), plain.parameters(), group, merged, "merged");
    EXPECT_NEAR(plain.evaluate(examples.tokens, examples.targets, 4, kColumns) / loss, 1, 1e-6);
    HostGpt2<float> without(tiny({}), group, 1);
    set_formula_weights(without, group);
    EXPECT_GT(std::abs(without.evaluate(examples.tokens, examples.targets, 4, kColumns) / loss - 1), 1e-3);
    // A file without adapters leaves those of the model, here zeros.
    HostGpt2<float> loaded(config, group, 1);
    load_gpt2_weights(config, loaded.parameters(), group, merged, "merged");
    EXPECT_NEAR(loaded.evaluate(examples.tokens, examples.targets, 4, kColumns) / loss, 1, 1e-6);
  });
}

TEST(Lora, FilesHaveTheNamesOfPeft) {
  const Gpt2Config config = tiny({2, 3.0, {"attn.c_attn"}});
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    HostGpt2<float> model(config, group, 1);
    set_formula_weights(model, group);
    const StoredTensors all = gather_gpt2_weights(config, model.parameters(), group);
    std::vector<std::string> names;
    for (const auto& [name, tensor] : peft_adapters(config, all)) names.push_back(name);
    EXPECT_THAT(names, testing::ElementsAre("base_model.model.score.weight",
                                            "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight",
                                            "base_model.model.transformer.h.0.attn.c_attn.lora_B.weight",
                                            "base_model.model.transformer.h.1.attn.c_attn.lora_A.weight",
                                            "base_model.model.transformer.h.1.attn.c_attn.lora_B.weight"));
    EXPECT_EQ(all.at("h.0.attn.c_attn.lora_B.weight").shape, (std::vector<std::uint64_t>{48, 2}));
  });
  const nlohmann::json peft = nlohmann::json::parse(peft_config_text(config));
  EXPECT_EQ(peft["r"], 2);
  EXPECT_EQ(peft["task_type"], "SEQ_CLS");
  EXPECT_EQ(peft["fan_in_fan_out"], true);
}

TEST(Lora, AnUntrainedAdapterAddsNothingAndOnlyAdaptersTrain) {
  const Gpt2Config config = tiny({2, 3.0, {"mlp.c_fc"}});
  const std::vector<Gpt2Tensor> tensors = gpt2_tensors(config, 1, 0);
  for (const Gpt2Tensor& tensor : tensors) {
    const bool trains = !tensor.adapts.empty() || tensor.name == kClassTensor;
    EXPECT_EQ(tensor.is_frozen(), !trains) << tensor.name;
    if (tensor.name.ends_with("lora_B.weight")) {
      EXPECT_EQ(tensor.initial_deviation, 0);
    }
  }
  EXPECT_EQ(tensors.size(), 29U + 4);
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    HostGpt2<double> with(config, group, 1);
    HostGpt2<double> without(tiny({}), group, 1);
    with.initialize(5);
    without.initialize(5);
    const Examples examples;
    EXPECT_EQ(with.evaluate(examples.tokens, examples.targets, 4, kColumns),
              without.evaluate(examples.tokens, examples.targets, 4, kColumns));
  });
}

TEST(Lora, RulesReachAdaptersAndTheHeadAlone) {
  Gpt2Config config = tiny({2, 3.0, {"mlp.c_fc"}});
  const auto factors = [&](std::vector<TensorRule> rules) {
    config.tensor_rules = std::move(rules);
    std::map<std::string, double> of;
    for (const Gpt2Tensor& tensor : gpt2_tensors(config, 1, 0)) of[tensor.name] = tensor.learning_rate_factor;
    return of;
  };
  const auto halved = factors({{"*", 0.5}});
  EXPECT_EQ(halved.at("h.0.mlp.c_fc.lora_A.weight"), 0.5);
  EXPECT_EQ(halved.at("score.weight"), 0.5);
  EXPECT_EQ(halved.at("h.0.mlp.c_fc.weight"), 0);
  EXPECT_EQ(halved.at("wte.weight"), 0);
  const auto frozen = factors({{"h.0.*", 0}});
  EXPECT_EQ(frozen.at("h.0.mlp.c_fc.lora_B.weight"), 0);
  EXPECT_EQ(frozen.at("h.1.mlp.c_fc.lora_B.weight"), 1);
}

std::vector<TrainingCase> layouts() {
  std::vector<TrainingCase> cases;
  const auto add = [&](const char* name, const std::function<void(Training&)>& change) {
    Training run;
    run.config.lora = all_targets();
    run.steps = 3;
    run.max_norm = 0.01;
    change(run);
    cases.push_back({name, run});
  };
  add("tensor4", [](Training& r) { r.tensor = 4; });
  add("tensor4_cut_tokens", [](Training& r) {
    r.tensor = 4;
    r.memory.tensor_sequence = true;
  });
  add("data2_accumulation", [](Training& r) {
    r.data = 2;
    r.micro_batches = 2;
    r.sharding = small_buckets(0);
  });
  add("pipeline2_tensor2_zero1", [](Training& r) {
    r.pipeline = 2;
    r.tensor = 2;
    r.data = 2;
    r.micro_batches = 2;
    r.sharding = small_buckets(1);
  });
  return cases;
}

class LoraLayouts : public testing::TestWithParam<TrainingCase> {};
TEST_P(LoraLayouts, EqualOneRank) { expect_equal_to_one_rank<double>(GetParam().run, 1e-11); }
INSTANTIATE_TEST_SUITE_P(All, LoraLayouts, testing::ValuesIn(layouts()),
                         [](const auto& item) { return std::string(item.param.name); });

}  // namespace
}  // namespace droptest::models::lora_test
