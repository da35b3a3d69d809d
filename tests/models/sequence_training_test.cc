// SPDX-License-Identifier: Apache-2.0
// Ranks that share sequences train the same model as one rank.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/run_ranks.h"
#include "models/attention/stateful_attention.h"
#include "models/gpt2/gpt2.h"
#include "models/kernels/cross_entropy.h"
#include "models/ops/host_ops.h"
#include "sim/error.h"
#include "tests/models/formula_model.h"
#include "tests/models/parallel_training.h"
#include "tests/models/planned_bytes.h"
#include "tests/sanitizers.h"

namespace droptest::models::sequence_training_test {
namespace {

constexpr auto kZigzag = SequenceLayout::Order::kZigzag;

/// Four blocks of width 32 with these heads, over these ranks.
Gpt2Config over(const SequenceLayout& layout, int heads = 4) {
  Gpt2Config config{4, 32, heads, 12, 97};
  config.attention.sequence = layout;
  return config;
}

Gpt2Config dilated(int ring, BranchGradient gradient = BranchGradient::kExact) {
  Gpt2Config config = over({{1, ring}});
  config.attention.branches = {{3, 1}, {6, 2}, {9, 4}};
  config.attention.gradient = gradient;
  return config;
}

/// Dropout in all places: an element of a token has one draw, whichever rank has the token, and so has a probability of
/// a query and a key.
Gpt2Config dropping(Gpt2Config config) {
  config.dropout = {0.2, 0.15, 0.1, 9};
  return config;
}
Gpt2Config dropping(const SequenceLayout& layout) { return dropping(over(layout)); }

const SequenceLayout kUlysses2{{2, 1}};
const SequenceLayout kUlysses4{{4, 1}};
const SequenceLayout kRing2{{1, 2}};
const SequenceLayout kRing3{{1, 3}};
const SequenceLayout kZigzag2{{1, 2}, kZigzag};
const SequenceLayout kZigzag3{{1, 3}, kZigzag};
const SequenceLayout kBoth{{2, 2}};
const SequenceLayout kBothZigzag{{2, 2}, kZigzag};

SlotOptions again(Recompute recompute) { return {.recompute = {recompute}}; }

// Sequences have 9 tokens: no number of ranks but 3 divides them.
const std::vector<TrainingCase> kCases = {
    {"ulysses4", {.config = over(kUlysses4), .sequences = 3}},
    {"ring3", {.config = over(kRing3), .sequences = 2}},
    {"zigzag3", {.config = over(kZigzag3), .sequences = 2}},
    {"ulysses2_ring2", {.config = over(kBoth), .sequences = 2}},
    {"ulysses2_zigzag2", {.config = over(kBothZigzag), .sequences = 2}},
    {"heads5_ulysses2", {.config = {2, 40, 5, 12, 97, {kUlysses2}}}},
    {"two_tokens_ulysses4", {.config = over(kUlysses4), .sequences = 2, .length = 2}},
    {"one_token_ring3", {.config = over(kRing3), .length = 1}},
    {"two_tokens_zigzag3", {.config = over(kZigzag3), .sequences = 2, .length = 2}},
    {"ulysses2_data2", {.config = over(kUlysses2), .data = 2, .micro_batches = 2}},
    {"zigzag2_tensor2", {.config = over(kZigzag2), .tensor = 2, .sequences = 2}},
    {"ulysses2_tensor2_data2", {.config = over(kUlysses2), .data = 2, .tensor = 2}},
    {"ring2_pipeline2", {.config = over(kRing2), .pipeline = 2, .micro_batches = 3}},
    {"zigzag2_zero_bubble",
     {.config = over(kZigzag2), .pipeline = 2, .chunks = 2, .kind = ScheduleKind::kZeroBubble, .micro_batches = 2}},
    {"ulysses2_data2_zero1", {.config = over(kUlysses2), .data = 2, .sharding = small_buckets(1)}},
    {"ring2_data2_zero2", {.config = over(kRing2), .data = 2, .micro_batches = 2, .sharding = small_buckets(2)}},
    {"zigzag3_zero3", {.config = over(kZigzag3), .micro_batches = 2, .sharding = small_buckets(3)}},
    {"ulysses2_data2_ignored", {.config = over(kUlysses2), .data = 2, .micro_batches = 2, .ignores = true}},
    {"ring3_selective", {.config = over(kRing3), .memory = again(Recompute::kSelective)}},
    {"ulysses2_tensor2_full", {.config = over(kUlysses2), .tensor = 2, .memory = again(Recompute::kBlock)}},
    {"dilated", {.config = dilated(1), .sequences = 2}},
    {"dilated_ring3", {.config = dilated(3), .sequences = 2}},
    {"dilated_stopped_ring2_tensor2_data2_zero1",
     {.config = dilated(2, BranchGradient::kStopped), .data = 2, .tensor = 2, .sharding = small_buckets(1)}},
    {"dilated_ring2_pipeline2", {.config = dilated(2), .pipeline = 2, .micro_batches = 2}},
    {"ulysses4_dropout", {.config = dropping(kUlysses4), .sequences = 2}},
    {"ulysses2_tensor2_dropout", {.config = dropping(kUlysses2), .tensor = 2}},
    {"dilated_ring2_tensor2_dropout", {.config = dropping(dilated(2)), .tensor = 2, .sequences = 2}},
    {"dilated_stopped_ring3_dropout", {.config = dropping(dilated(3, BranchGradient::kStopped))}},
    {"ring3_dropout", {.config = dropping(kRing3), .sequences = 2}},
    {"ulysses2_zigzag2_dropout", {.config = dropping(kBothZigzag), .micro_batches = 2, .sequences = 2}},
    {"two_tokens_zigzag3_dropout", {.config = dropping(kZigzag3), .sequences = 2, .length = 2}},
    {"zigzag2_tensor2_data2_full_dropout",
     {.config = dropping(kZigzag2), .data = 2, .tensor = 2, .memory = again(Recompute::kBlock)}},
    {"zigzag2_zero_bubble_dropout",
     {.config = dropping(kZigzag2), .pipeline = 2, .kind = ScheduleKind::kZeroBubble, .micro_batches = 2}},
    {"dilated_cut_tokens", {.config = dilated(1), .tensor = 2, .sequences = 2, .memory = {.tensor_sequence = true}}},
    {"dilated_cut_tokens_full",
     {.config = dilated(1),
      .tensor = 2,
      .sequences = 2,
      .memory = {.recompute = {Recompute::kBlock}, .tensor_sequence = true}}},
    {"dilated_cut_tokens_zero_bubble",
     {.config = dilated(1),
      .pipeline = 2,
      .kind = ScheduleKind::kZeroBubble,
      .tensor = 2,
      .micro_batches = 2,
      .memory = {.recompute = {Recompute::kBlock}, .tensor_sequence = true}}},
};

class SequenceParallelism : public testing::TestWithParam<TrainingCase> {};

TEST_P(SequenceParallelism, EqualsOneRankInDouble) { expect_equal_to_one_rank<double>(GetParam().run, 1e-11); }

TEST_P(SequenceParallelism, EqualsOneRankInDoubleWithinDocuments) {
  Training run = GetParam().run;
  run.steps = 2;
  run.documents = true;
  run.config.attention.within = AttentionOptions::Within::kDocument;
  expect_equal_to_one_rank<double>(run, 1e-11);
}

// Values come back from the file unchanged.
TEST_P(SequenceParallelism, InChunksHasTheBitsOfAttentionInMemory) {
  Training run = GetParam().run;
  run.steps = 2;
  const TrainingResult want = train<float>(run);
  run.config.attention.chunk_tokens = 2;
  const TrainingResult got = train<float>(run);
  for (std::size_t s = 0; s < want.steps.size(); ++s) EXPECT_EQ(got.steps[s].loss, want.steps[s].loss);
  EXPECT_EQ(got.evaluation, want.evaluation);
  EXPECT_EQ(got.of_replica, want.of_replica);
}

INSTANTIATE_TEST_SUITE_P(Layouts, SequenceParallelism, testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(SequenceTraining, ManyStepsEqualThoseOfOneRank) {
  constexpr int kSteps = kSanitized ? 4 : 20;
  const std::vector<Training> runs = {
      {.config = over(kUlysses2), .sequences = 2, .steps = kSteps},
      {.config = over(kRing3), .sequences = 2, .steps = kSteps},
      {.config = over(kZigzag2), .sequences = 2, .steps = kSteps},
      {.config = over(kBoth), .sequences = 2, .steps = kSteps},
      {.config = over(kBothZigzag), .sequences = 2, .steps = kSteps},
      {.config = dilated(2), .sequences = 2, .steps = kSteps},
      {.config = over(kUlysses2), .tensor = 2, .sequences = 2, .steps = kSteps},
      {.config = over(kRing2), .data = 2, .steps = kSteps},
      {.config = over(kZigzag2), .tensor = 2, .sequences = 2, .steps = kSteps},
      {.config = dilated(2), .data = 2, .steps = kSteps},
      {.config = dropping(kUlysses2), .data = 2, .steps = kSteps},
      {.config = dropping(kRing3), .sequences = 2, .steps = kSteps},
      {.config = dropping(kZigzag2), .tensor = 2, .sequences = 2, .steps = kSteps},
      {.config = dropping(kBothZigzag), .sequences = 2, .steps = kSteps},
      {.config = dropping(dilated(2)), .sequences = 2, .steps = kSteps},
  };
  for (const Training& run : runs) {
    SCOPED_TRACE(&run - runs.data());
    expect_equal_to_one_rank<double>(run, 1e-10);
    expect_equal_to_one_rank<float>(run, 1e-4);
  }
}

// The memory has the state of one block, and the attention output and the log-sum-exps of each block.
TEST(SequenceTraining, InChunksTakesLessMemory) {
  for (Gpt2Config config : {over(kUlysses2), over(kRing2), dilated(2)}) {
    config.layers = 8;
    config.context = 64;
    Training run{.config = config, .sequences = 4, .length = 64, .steps = 1};
    const std::uint64_t in_memory = train<float>(run).bytes;
    run.config.attention.chunk_tokens = 8;
    const std::uint64_t of_state = 3 * 4 * 32 * 32 * sizeof(float);  // queries, keys and values of half the tokens
    EXPECT_LT(train<float>(run).bytes + 6 * of_state, in_memory);
  }
}

TEST(SequenceTraining, OneBranchOfAllTokensIsDenseAttention) {
  Training dense{.config = dropping(over({})), .sequences = 2};
  Training one_branch = dense;
  one_branch.config.attention.branches = {{12, 1}};
  const TrainingResult want = train<double>(dense);
  const TrainingResult got = train<double>(one_branch);
  for (std::size_t s = 0; s < want.steps.size(); ++s) EXPECT_NEAR(got.steps[s].loss / want.steps[s].loss, 1, 1e-12);
  for (const auto& [name, values] : want.of_replica[0]) {
    EXPECT_LE(relative_difference(got.of_replica[0].at(name), values), 1e-11) << name;
  }
}

using Gradients = std::map<std::string, std::vector<double>>;

/// The losses of these batches, each as the sum over its targets, and the sum of their gradients.
std::pair<double, Gradients> losses_and_gradients(const AttentionOptions& attention,
                                                  const std::vector<MicroBatch>& batches) {
  double losses = 0;
  Gradients gradients;
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    Gpt2Config config{2, 32, 4, 12, 97};
    config.attention = attention;
    Gpt2 model(config, make_host_ops({.type = comm::ElementType::kFloat64}, group));
    set_formula_weights<double>(config, model.parameters<double>(), group);
    model.upload_values();
    model.zero_gradients();
    for (const MicroBatch& batch : batches) {
      losses += model.evaluate(batch) * static_cast<double>(count_targets(batch.targets));
      model.forward({0, 0}, batch);
      model.backward(0, 1, 1, Follows::kPass);
    }
    model.download(Gpt2::Fields::kValuesAndGradients);
    for (const Parameter<double>& parameter : model.parameters<double>()) {
      gradients[parameter.name].assign(parameter.gradient.begin(), parameter.gradient.end());
    }
  });
  return {losses, gradients};
}

void expect_near(const std::pair<double, Gradients>& got, const std::pair<double, Gradients>& want) {
  EXPECT_NEAR(got.first / want.first, 1, 1e-13);
  for (const auto& [name, values] : want.second) {
    EXPECT_LE(relative_difference(got.second.at(name), values), 1e-12) << name;
  }
}

AttentionOptions within_documents() { return {.within = AttentionOptions::Within::kDocument}; }

TEST(Documents, PackedOnesEqualSequencesOfTheirOwn) {
  const std::vector<std::int32_t> tokens = formula_tokens(0, 12, 97);
  const std::vector<std::int32_t> targets = formula_tokens(1, 12, 97);
  const std::vector<std::int32_t> documents = {0, 0, 0, 1, 1, 1, 1, 1, 2, 3, 3, 3};
  std::vector<MicroBatch> parts;
  for (std::size_t first = 0, end = 0; first < 12; first = end) {
    while (end < 12 && documents[end] == documents[first]) ++end;
    const auto count = static_cast<std::int64_t>(end - first);
    parts.push_back({std::span(tokens).subspan(first, end - first),
                     std::span(targets).subspan(first, end - first),
                     {1, count, static_cast<std::int64_t>(first)}});
  }
  ASSERT_EQ(parts.size(), 4U);
  const auto packed = losses_and_gradients(within_documents(), {{tokens, targets, {1, 12}, documents}});
  expect_near(packed, losses_and_gradients({}, parts));
  EXPECT_GT(std::abs(packed.first - losses_and_gradients({}, {{tokens, targets, {1, 12}}}).first), 1e-4)
      << "documents change the loss";
}

TEST(Documents, PaddedEndsAreNotAttendedTo) {
  std::vector<std::int32_t> tokens = formula_tokens(0, 18, 97);
  std::vector<std::int32_t> targets = formula_tokens(1, 18, 97);
  std::vector<std::int32_t> documents(18, 0);
  std::vector<MicroBatch> parts = {{std::span(tokens).first(9), std::span(targets).first(9), {1, 9}},
                                   {std::span(tokens).subspan(9, 4), std::span(targets).subspan(9, 4), {1, 4}}};
  const auto want = losses_and_gradients({}, parts);
  for (std::size_t i = 13; i < 18; ++i) {
    tokens[i] = 5;
    targets[i] = kIgnoredTarget;
    documents[i] = -1;
  }
  expect_near(losses_and_gradients(within_documents(), {{tokens, targets, {2, 9}, documents}}), want);
}

TEST(Documents, OfAnotherNumberAreRefused) {
  const std::vector<std::int32_t> tokens = formula_tokens(0, 12, 97);
  const std::vector<std::int32_t> documents(11, 0);
  try {
    (void)losses_and_gradients(within_documents(), {{tokens, tokens, {1, 12}, documents}});
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "GPT-2 forward: got 11 numbers of documents, want 12, one for each token");
  }
}

TEST(SequenceTraining, MemoryIsThatOfThePlan) {
  std::vector<Gpt2Config> configs = {over(kUlysses2), over(kRing2), over(kBoth),
                                     dilated(1),      dilated(2),   dilated(2, BranchGradient::kStopped)};
  for (const Gpt2Config& config : std::vector(configs)) {
    configs.push_back(config);
    configs.back().attention.chunk_tokens = 2;
  }
  for (const Gpt2Config& config : configs) {
    SCOPED_TRACE(&config - configs.data());
    const Training run{.config = config, .sequences = 2, .steps = 1};
    const SequenceLayout& layout = config.attention.sequence;
    const std::uint64_t all = train<double>(run).bytes;
    const AttentionShape whole{2, Training::kLength, 4, 8};
    const std::unique_ptr<OpsForm> form = host_ops_form({.type = comm::ElementType::kFloat64}, 1);
    const std::uint64_t states = stateful_attention_use(run.config.attention, 0, whole, 4, *form).memory;
    const BatchShape own{2, layout.parts(Training::kLength).length_of(0)};
    EXPECT_GT(states, 0U);
    // The evaluation is of one sequence, whose state is smaller.
    const std::uint64_t planned = states + planned_bytes(run.config, 1, 0, *form, own);
    EXPECT_LE(all, planned);
    EXPECT_GT(static_cast<double>(all), 0.97 * static_cast<double>(planned));
  }
}

TEST(SequenceLayout, ThatDoesNotFitIsRefused) {
  const auto error_of = [](const SequenceLayout& layout, int heads, std::vector<DilatedBranch> branches = {}) {
    try {
      validate(AttentionOptions{layout, std::move(branches)}, heads);
      return std::string("no error");
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(error_of(kUlysses4, 4), "no error");
  EXPECT_EQ(error_of(kUlysses4, 3),
            "GPT-2: sequence: got 3 attention heads of a tensor-parallel rank for 4 Ulysses ranks, want at least one "
            "head for each: fewer ranks, or a ring");
  EXPECT_EQ(error_of(kRing2, 1, {{4, 2}}), "no error");
  const std::string dilated =
      "GPT-2: dilated attention: got ulysses or zigzag ranks, want the kind \"ring\": ranks with consecutive parts";
  EXPECT_EQ(error_of(kUlysses2, 4, {{4, 2}}), dilated);
  EXPECT_EQ(error_of(kZigzag2, 4, {{4, 2}}), dilated);
}

TEST(SequenceTraining, WhatDoesNotGoTogetherIsRefused) {
  const auto error_of = [](const Gpt2Config& config, const SlotOptions& options) {
    const std::unique_ptr<OpsForm> form = host_ops_form({}, 2);
    try {
      (void)planned_bytes(config, 2, 0, *form, {1, 4}, options);
      return std::string("no error");
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(error_of(over(kUlysses2), {}), "no error");
  EXPECT_EQ(error_of(dilated(1), {.tensor_sequence = true}), "no error");
  EXPECT_EQ(error_of(over(kUlysses2), {.tensor_sequence = true}),
            "GPT-2: tensor_sequence: got a cut of tokens over tensor-parallel ranks with 2 sequence ranks, want one of "
            "the two");
}

}  // namespace
}  // namespace droptest::models::sequence_training_test
