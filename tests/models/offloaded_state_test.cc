// SPDX-License-Identifier: Apache-2.0
// Offloaded parameters and optimizer state: the same bits in every layout, in less memory.
#include "models/gpt2/offloaded_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "comm/local/local_group.h"
#include "comm/lossy/lossy_communicator.h"
#include "models/ops/host_ops.h"
#include "sim/loss/bernoulli.h"
#include "tests/models/parallel_training.h"
#include "tests/models/planned_bytes.h"
#include "tests/models/recompute_options.h"

namespace droptest::models::offloaded_state_test {
namespace {

constexpr auto kEach = ShardOptions::Reduce::kAfterEach;

struct NamedOffload {
  const char* name;
  bool moments, values;
};
constexpr NamedOffload kOffloads[] = {{"optimizer", true, false}, {"parameters", false, true}, {"both", true, true}};

/// Pieces that end in the middle of tensors, several of each part.
ShardOptions offloading(ShardOptions options, const NamedOffload& what) {
  options.offloads_moments = what.moments;
  options.offloads_values = what.values;
  options.offload_piece_elems = 1000;
  return options;
}

const std::vector<TrainingCase> kLayouts = {
    {"alone_accumulates", {.micro_batches = 2}},
    {"one_block", {.config = {1, 32, 4, 12, 97}}},
    {"five_blocks", {.config = {5, 32, 4, 12, 97}}},
    {"tensor3_uneven", {.config = {3, 36, 3, 12, 97}, .tensor = 3}},
    {"sgd", {.optimizer = {.rule = OptimizerConfig::Rule::kSgd}}},
    {"data2", {.data = 2, .sharding = small_buckets(0)}},
    {"data3_zero1", {.data = 3, .micro_batches = 2, .sharding = small_buckets(1)}},
    {"data2_tensor2_zero2", {.data = 2, .tensor = 2, .sharding = small_buckets(2)}},
    {"data3_zero2_each", {.data = 3, .micro_batches = 2, .sharding = small_buckets(2, kEach)}},
    {"data2_tensor2_zero3", {.data = 2, .tensor = 2, .micro_batches = 2, .sharding = small_buckets(3)}},
    {"data3_zero3_each", {.data = 3, .micro_batches = 2, .sharding = small_buckets(3, kEach)}},
    {"one_block_zero3", {.config = {1, 32, 4, 12, 97}, .data = 2, .sharding = small_buckets(3)}},
    {"pipeline2_tensor2", {.pipeline = 2, .tensor = 2, .micro_batches = 4}},
    {"zero_bubble", {.pipeline = 2, .kind = ScheduleKind::kZeroBubble, .micro_batches = 4}},
    {"interleaved_data2_zero1",
     {.pipeline = 2,
      .chunks = 2,
      .kind = ScheduleKind::kInterleaved,
      .data = 2,
      .micro_batches = 2,
      .sharding = small_buckets(1)}},
};

class OffloadInLayouts : public testing::TestWithParam<TrainingCase> {};

TEST_P(OffloadInLayouts, ChangesNoBit) {
  Training run = GetParam().run;
  run.steps = 3;
  const TrainingResult want = train<float>(run);
  for (const NamedOffload& what : kOffloads) {
    SCOPED_TRACE(what.name);
    Training other = run;
    other.sharding = offloading(run.sharding, what);
    expect_equal_bits(train<float>(other), want);
    other.memory.recompute = {Recompute::kBlock};
    other.memory.place = kOffloaded;
    expect_equal_bits(train<float>(other), want);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, OffloadInLayouts, testing::ValuesIn(kLayouts),
                         [](const auto& item) { return std::string(item.param.name); });

/// A group that loses a third of the packets of values, with that fill.
std::function<std::unique_ptr<comm::Communicator>(comm::Communicator&)> loses_values(comm::Fill fill) {
  return [fill](comm::Communicator& group) -> std::unique_ptr<comm::Communicator> {
    comm::LossyOptions options;
    comm::ClassNetwork& network = options.network.of(sim::TrafficClass::kParameterGather).emplace();
    network.gather.loss = std::make_shared<sim::Bernoulli>(0.3);
    network.gather.fill = fill;
    network.payload_bytes = 256;
    return std::make_unique<comm::LossyCommunicator>(group, options);
  };
}

// A rank's own earlier values are read before a bucket is gathered.
TEST(Offload, KeepsTheValuesThatLossyGathersLeave) {
  for (const int zero : {1, 2, 3}) {
    for (const comm::Fill fill : {comm::Fill::kOwn, comm::Fill::kStale, comm::Fill::kZero}) {
      if (zero == 3 && fill == comm::Fill::kOwn) continue;  // refused in specs: ranks keep no other values
      Training run{.data = 3, .sharding = small_buckets(zero), .steps = 4};
      run.data_wire = loses_values(fill);
      const TrainingResult want = train<float>(run);
      for (const NamedOffload& what : kOffloads) {
        Training other = run;
        other.sharding = offloading(run.sharding, what);
        SCOPED_TRACE(std::string(what.name) + ", zero " + std::to_string(zero));
        const TrainingResult got = train<float>(other);
        EXPECT_EQ(got.of_replica, want.of_replica);
      }
    }
  }
}

TEST(Offload, TakesTheMemoryThatItPlans) {
  for (const int zero : {0, 1, 2, 3}) {
    Training run{.config = {12, 64, 4, 12, 97}, .data = 2, .steps = 1};
    run.sharding = small_buckets(zero);
    const std::uint64_t before = train<float>(run).bytes;
    for (const NamedOffload& what : kOffloads) {
      run.sharding = offloading(small_buckets(zero), what);
      const TrainingResult got = train<float>(run);
      const auto form = host_ops_form({}, 1);
      EXPECT_LT(got.bytes, before) << what.name << ", zero " << zero;
      EXPECT_EQ(got.bytes, planned_bytes(run.config, 1, 0, *form, {1, Training::kLength}, {}, run.sharding, 2, 0));
    }
  }
}

/// Saves, or restores, the bytes of each element of each field, independent of the pieces.
class Elements final : public StateVisitor {
 public:
  enum class Turn : std::uint8_t { kSave, kRestore } turn = Turn::kSave;
  void number(std::string_view name, std::uint64_t& value) override {
    if (turn == Turn::kSave) numbers[std::string(name)] = value;
    if (turn == Turn::kRestore) value = numbers.at(std::string(name));
  }
  void tensor(std::string_view name, const comm::Tensor& tensor, std::span<const TensorPiece> pieces,
              Sharding /*sharding*/) override {
    for (const TensorPiece& piece : pieces) {
      for (std::uint64_t e = 0; e < piece.count; ++e) {
        float& value = tensor.as<float>()[piece.offset + e];
        float& stored = values[std::string(name) + "/" + std::to_string(piece.tensor)][piece.first + e];
        (turn == Turn::kSave ? stored : value) = turn == Turn::kSave ? value : stored;
      }
    }
  }

  std::map<std::string, std::uint64_t> numbers;
  std::map<std::string, std::map<std::uint64_t, float>> values;
};

// A model with offloading continues from the state of one without, and vice versa.
TEST(Offload, ShowsTheSameStateAndTakesIt) {
  const Gpt2Config config{3, 32, 4, 12, 97};
  const std::vector<std::int32_t> tokens = formula_tokens(1, 24, config.vocabulary);
  const std::vector<std::int32_t> targets = formula_tokens(2, 24, config.vocabulary);
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& world) {
    const auto make = [&](const NamedOffload* what) {
      ModelRanks ranks;
      if (what != nullptr) ranks.data.sharding = offloading({}, *what);
      auto model = std::make_unique<Gpt2>(config, make_host_ops({}, world), OptimizerConfig{}, SlotOptions{}, ranks);
      return model;
    };
    const auto step = [&](Gpt2& model) {
      model.zero_gradients();
      model.forward_backward(tokens, targets, {2, 12}, 1);
      model.step(1e-2, 1);
      return model.evaluate(tokens, targets, {2, 12});
    };
    const auto state_of = [](Gpt2& model) {
      Elements state;
      model.visit_state(state);
      return state;
    };
    const auto expect_weights_alone = [&](Gpt2& model, const Elements& want) {
      const double loss = model.evaluate(tokens, targets, {2, 12});
      model.end_training();
      EXPECT_EQ(model.memory_use().gradients, 0U);
      EXPECT_EQ(model.memory_use().optimizer, 0U);
      model.download(Gpt2::Fields::kValuesAndGradients);
      const std::span<Parameter<float>> parameters = model.parameters<float>();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_TRUE(parameters[i].gradient.empty());
        const std::map<std::uint64_t, float>& values = want.values.at("values/" + std::to_string(i));
        for (const auto& [element, value] : values) ASSERT_EQ(parameters[i].value[element], value);
      }
      EXPECT_EQ(model.evaluate(tokens, targets, {2, 12}), loss);
    };
    const auto plain = make(nullptr);
    for (Parameter<float>& parameter : plain->parameters<float>()) {
      for (std::size_t i = 0; i < parameter.value.size(); ++i)
        parameter.value[i] = 0.1F * std::sin(static_cast<float>(i));
    }
    plain->upload_values();
    step(*plain);
    step(*plain);
    Elements state = state_of(*plain);
    const double next = step(*plain);
    const Elements after = state_of(*plain);
    for (const NamedOffload& what : kOffloads) {
      SCOPED_TRACE(what.name);
      const auto model = make(&what);
      state.turn = Elements::Turn::kRestore;
      model->visit_state(state);
      EXPECT_EQ(state_of(*model).values, state.values);
      EXPECT_EQ(step(*model), next);
      const Elements got = state_of(*model);
      EXPECT_EQ(got.values, after.values);
      EXPECT_EQ(got.numbers, after.numbers);
      model->download(Gpt2::Fields::kValues);
      EXPECT_EQ(model->parameters<float>().front().value.front(), after.values.at("values/0").at(0));
      model->reset_optimizer();
      for (const auto& [field, values] : state_of(*model).values) {
        if (field.starts_with("values")) continue;
        for (const auto& [element, value] : values) ASSERT_EQ(value, 0) << field << " " << element;
      }
      expect_weights_alone(*model, after);
    }
    expect_weights_alone(*plain, after);
  });
}

}  // namespace
}  // namespace droptest::models::offloaded_state_test
