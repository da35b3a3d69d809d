// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism whose ranks cut the residual stream by tokens, against one rank and against ranks with all tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "models/gpt2/stage_plan.h"
#include "models/gpt2/token_cut.h"
#include "models/ops/host_ops.h"
#include "tests/comm/recording_communicator.h"
#include "tests/models/parallel_training.h"

namespace droptest::models::tensor_sequence_test {
namespace {

TEST(TokenCut, PartsOfSequencesCoverTheRowsOnce) {
  for (const std::int64_t length : {1, 4, 7}) {
    for (std::int64_t first = 0; first < 15; ++first) {
      for (std::int64_t count = 0; count < 15; ++count) {
        std::int64_t next = 0;
        for_sequence_parts(first, count, length,
                           [&](std::int64_t row, std::int64_t sequences, std::int64_t position, std::int64_t tokens) {
                             EXPECT_EQ(row, next);
                             EXPECT_EQ((first + row) % length, position);
                             EXPECT_LE(position + tokens, length);
                             EXPECT_TRUE(sequences == 1 || tokens == length);
                             EXPECT_GT(sequences * tokens, 0);
                             next += sequences * tokens;
                           });
        EXPECT_EQ(next, count);
      }
    }
  }
}

Training cut(const std::function<void(Training&)>& change) {
  Training run;
  run.memory.tensor_sequence = true;
  run.tensor = 2;
  change(run);
  return run;
}

std::vector<TrainingCase> layouts() {
  std::vector<TrainingCase> cases;
  const auto add = [&](const char* name, const std::function<void(Training&)>& change) {
    cases.push_back({name, cut(change)});
  };
  // A sequence has 9 tokens: every number of ranks cuts unevenly.
  add("tensor2", [](Training&) {});
  add("tensor3_two_sequences", [](Training& r) {
    r.tensor = 3;
    r.sequences = 2;
  });
  add("tensor4", [](Training& r) { r.tensor = 4; });
  add("tensor8", [](Training& r) {
    r.tensor = 8;
    r.config = {4, 32, 8, 12, 97};
    r.sequences = 3;
  });
  add("tensor12_ranks_without_tokens", [](Training& r) {
    r.tensor = 12;
    r.config = {2, 48, 12, 12, 97};
  });
  add("data2_accumulates", [](Training& r) {
    r.data = 2;
    r.micro_batches = 2;
  });
  add("pipeline2", [](Training& r) {
    r.pipeline = 2;
    r.micro_batches = 3;
  });
  add("pipeline2_ranks_without_tokens", [](Training& r) {
    r.tensor = 12;
    r.config = {2, 48, 12, 12, 97};
    r.pipeline = 2;
    r.micro_batches = 2;
  });
  add("interleaved_data2", [](Training& r) {
    r.pipeline = 2;
    r.chunks = 2;
    r.kind = ScheduleKind::kInterleaved;
    r.data = 2;
    r.micro_batches = 2;
  });
  add("zero_bubble", [](Training& r) {
    r.pipeline = 2;
    r.kind = ScheduleKind::kZeroBubble;
    r.micro_batches = 4;
  });
  add("zero1", [](Training& r) {
    r.data = 2;
    r.sharding = small_buckets(1);
  });
  add("zero2_after_each", [](Training& r) {
    r.data = 2;
    r.micro_batches = 2;
    r.sharding = small_buckets(2, ShardOptions::Reduce::kAfterEach);
  });
  add("zero3", [](Training& r) {
    r.data = 2;
    r.micro_batches = 2;
    r.sharding = small_buckets(3);
  });
  add("ignored_targets", [](Training& r) {
    r.data = 2;
    r.micro_batches = 2;
    r.ignores = true;
  });
  add("dropout", [](Training& r) {
    r.config.dropout = {0.2, 0.15, 0.1, 9};
    r.sequences = 2;
  });
  add("dropout_tensor4_zero_bubble", [](Training& r) {
    r.config.dropout = {0.2, 0.15, 0.1, 9};
    r.tensor = 4;
    r.pipeline = 2;
    r.kind = ScheduleKind::kZeroBubble;
    r.micro_batches = 3;
  });
  return cases;
}

class TensorSequence : public testing::TestWithParam<TrainingCase> {};

TEST_P(TensorSequence, TrainsAsOneRankDoes) { expect_equal_to_one_rank<double>(GetParam().run, 1e-12); }

INSTANTIATE_TEST_SUITE_P(Layouts, TensorSequence, testing::ValuesIn(layouts()),
                         [](const auto& item) { return std::string(item.param.name); });

TEST(TensorSequenceTraining, TwentyStepsAreThoseOfRanksWithAllTokens) {
  for (const int tensor : {2, 3, 4}) {
    Training run = cut([tensor](Training& r) {
      r.tensor = tensor;
      r.steps = 20;
      r.sequences = 2;
    });
    const TrainingResult got = train<double>(run);
    run.memory.tensor_sequence = false;
    const TrainingResult want = train<double>(run);
    for (std::size_t s = 0; s < want.steps.size(); ++s) {
      EXPECT_NEAR(got.steps[s].loss / want.steps[s].loss, 1, 1e-10) << "step " << s;
      EXPECT_NEAR(got.steps[s].gradient_norm / want.steps[s].gradient_norm, 1, 1e-10) << "step " << s;
    }
    for (const auto& [name, values] : want.of_replica[0]) {
      EXPECT_LE(relative_difference(got.of_replica[0].at(name), values), 1e-10) << name;
    }
  }
}

TEST(TensorSequenceTraining, BlocksThatAreComputedAgainChangeNoBit) {
  for (const ScheduleKind kind : {ScheduleKind::kOneForwardOneBackward, ScheduleKind::kZeroBubble}) {
    Training run = cut([kind](Training& r) {
      r.pipeline = kind == ScheduleKind::kZeroBubble ? 2 : 1;
      r.kind = kind;
      r.tensor = 3;
      r.micro_batches = 2;
      r.config.dropout = {0.1, 0.1, 0.1, 4};
      r.steps = 3;
    });
    const TrainingResult want = train<float>(run);
    for (const Recompute policy : {Recompute::kSelective, Recompute::kBlock}) {
      for (const bool offloaded : {false, true}) {
        for (const RecomputeTraffic traffic : {RecomputeTraffic::kKept, RecomputeTraffic::kSent}) {
          run.memory = {.recompute = {policy}, .place = {false, offloaded}, .traffic = traffic};
          run.memory.tensor_sequence = true;
          expect_equal_bits(train<float>(run), want);
        }
      }
    }
  }
}

TEST(TensorSequenceTraining, ALossLayerWithoutLossChangesNoBit) {
  Training run = cut([](Training& r) { r.tensor = 3; });
  const TrainingResult want = train<float>(run);
  run.tensor_loss_rate = 0;
  expect_equal_bits(train<float>(run), want);
}

TEST(TensorSequenceTraining, LossInBothHalvesOfAllClassesIsSeenAndRepeats) {
  Training run = cut([](Training& r) {
    r.tensor = 3;
    r.tensor_loss_rate = 0.05;
  });
  const TrainingResult got = train<float>(run);
  const TrainingResult again = train<float>(run);
  for (std::size_t s = 0; s < got.steps.size(); ++s) {
    EXPECT_TRUE(std::isfinite(got.steps[s].loss));
    EXPECT_EQ(got.steps[s].loss, again.steps[s].loss);
  }
  EXPECT_EQ(got.of_replica[0], again.of_replica[0]);
  for (const comm::ClassStatistics& one : got.statistics) {
    if (one.traffic_class == sim::TrafficClass::kControl) continue;
    for (const comm::LossCounts& half : one.halves) EXPECT_GT(half.packets, 0U);
  }
}

TEST(TensorSequenceTraining, ACutOfSavedResidualStreamsIsRefused) {
  Training run = cut([](Training& r) {
    r.memory.recompute = {Recompute::kBlock};
    r.memory.place.cut = true;
  });
  EXPECT_THROW(train<float>(run), ConfigError);
}

/// "operation name class elements" of a pass, in order.
std::vector<std::string> calls_of(const comm::RecordingCommunicator& recording) {
  std::vector<std::string> calls;
  for (std::string call : recording.calls) {
    const std::size_t layer = call.find(" layer ");
    call.erase(layer, call.find(' ', layer + 7) - layer);
    calls.push_back(std::move(call));
  }
  return calls;
}

// docs/models.md has this list. Messages of [batch, length, width] = 2 x 5 x 32 = 320 elements, of all ranks together.
const std::vector<std::string> kForward = {
    "reduce_scatter wte tp_forward 320",
    "all_gather h.0.attn.c_attn tp_forward 320",
    "reduce_scatter h.0.attn.c_proj tp_forward 320",
    "all_gather h.0.mlp.c_fc tp_forward 320",
    "reduce_scatter h.0.mlp.c_proj tp_forward 320",
    "all_gather h.1.attn.c_attn tp_forward 320",
    "reduce_scatter h.1.attn.c_proj tp_forward 320",
    "all_gather h.1.mlp.c_fc tp_forward 320",
    "reduce_scatter h.1.mlp.c_proj tp_forward 320",
};
const std::vector<std::string> kHead = {
    "all_gather lm_head tp_forward 320",
    "max cross_entropy.max control 10",
    "sum cross_entropy.sum_exp control 10",
    "sum cross_entropy.predicted control 10",
};
const std::vector<std::string> kBackward = {
    "reduce_scatter lm_head.backward tp_backward 320",
    "all_gather h.1.mlp.c_fc.input tp_backward 320",
    "all_gather h.1.mlp.c_proj.backward tp_backward 320",
    "reduce_scatter h.1.mlp.c_fc.backward tp_backward 320",
    "all_gather h.1.attn.c_attn.input tp_backward 320",
    "all_gather h.1.attn.c_proj.backward tp_backward 320",
    "reduce_scatter h.1.attn.c_attn.backward tp_backward 320",
    "sum h.1.ln_1.weight.gradient sequence_backward 64",
    "sum h.1.attn.c_proj.bias.gradient sequence_backward 96",
    "sum h.1.mlp.c_proj.bias.gradient sequence_backward 32",
    "all_gather h.0.mlp.c_fc.input tp_backward 320",
    "all_gather h.0.mlp.c_proj.backward tp_backward 320",
    "reduce_scatter h.0.mlp.c_fc.backward tp_backward 320",
    "all_gather h.0.attn.c_attn.input tp_backward 320",
    "all_gather h.0.attn.c_proj.backward tp_backward 320",
    "reduce_scatter h.0.attn.c_attn.backward tp_backward 320",
    "sum h.0.ln_1.weight.gradient sequence_backward 64",
    "sum h.0.attn.c_proj.bias.gradient sequence_backward 96",
    "sum h.0.mlp.c_proj.bias.gradient sequence_backward 32",
    "all_gather wte.backward tp_backward 320",
    "sum wpe.weight.gradient sequence_backward 448",  // 12 x 32, and 2 x 32 for the last norm
};

TEST(TensorSequenceCollectives, AStepMakesExactlyTheListedCallsOnEveryRank) {
  const Gpt2Config config{2, 32, 4, 12, 97};
  const auto tokens = formula_tokens(0, 10, config.vocabulary);
  SlotOptions options;
  options.tensor_sequence = true;
  comm::run_ranks(3, kTestTimeout, [&](comm::Communicator& group) {
    comm::RecordingCommunicator recording(group);
    Gpt2 model(config, make_host_ops({}, recording), {}, options);
    set_formula_weights(config, model.parameters<float>(), group);
    model.upload_values();
    for (int step = 0; step < 2; ++step) {
      std::vector<std::string> want = kForward;
      want.insert(want.end(), kHead.begin(), kHead.end());
      recording.calls.clear();
      model.evaluate(tokens, tokens, {2, 5});
      EXPECT_EQ(calls_of(recording), want);
      recording.calls.clear();
      model.zero_gradients();
      model.forward_backward(tokens, tokens, {2, 5}, 1);
      want.insert(want.end(), kBackward.begin(), kBackward.end());
      EXPECT_EQ(calls_of(recording), want);
    }
  });
  // The planner sees the same, but for the sums of gradients.
  const auto form = host_ops_form({}, 3);
  const StagePlan plan(config, StageRange::whole(config), 3, 1, *form, {2, 5}, Keep::kForBackward, {}, options);
  std::vector<std::string> names;
  for (const auto* list : {&plan.forward_calls(), &plan.later_calls()}) {
    for (const comm::DryCall& one : *list) names.push_back(one.name);
  }
  std::vector<std::string> want;
  for (const auto* list : {&kForward, &kHead, &kBackward}) {
    for (const std::string& call : *list) {
      const std::size_t name = call.find(' ') + 1;
      if (call.find("sequence_backward") == std::string::npos)
        want.push_back(call.substr(name, call.find(' ', name) - name));
    }
  }
  EXPECT_EQ(names, want);
}

TEST(TensorSequenceCollectives, OneRankOfTensorParallelismHasNone) {
  Training run = cut([](Training& r) { r.tensor = 1; });
  const TrainingResult got = train<double>(run);
  run.memory.tensor_sequence = false;
  expect_equal_bits(got, train<double>(run));
}

// docs/parallelism.md: of a block's saved activations, 4 [rows, width] and 4 [rows] are cut by the number of ranks.
TEST(TensorSequenceMemory, SavedActivationsOfNormsFallByTheNumberOfRanks) {
  constexpr std::int64_t kRows = 8 * 64;
  constexpr int kWidth = 64;
  const auto saved = [&](int layers, int ranks, bool cuts) {
    const Gpt2Config config{layers, kWidth, 8, 64, 256};
    SlotOptions options;
    options.tensor_sequence = cuts;
    const auto form = host_ops_form({}, ranks);
    const StagePlan plan(config, StageRange::whole(config), ranks, 0, *form, {8, 64}, Keep::kForBackward, {}, options);
    return static_cast<std::int64_t>(plan.bytes(2) - plan.bytes(1));
  };
  for (const int ranks : {2, 4, 8}) {
    const std::int64_t of_block = saved(3, ranks, false) - saved(2, ranks, false);
    const std::int64_t of_cut_block = saved(3, ranks, true) - saved(2, ranks, true);
    const std::int64_t whole = 4 * (4 * kRows * kWidth + 4 * kRows);
    EXPECT_EQ(of_block - of_cut_block, whole - whole / ranks) << ranks;
  }
}

}  // namespace
}  // namespace droptest::models::tensor_sequence_test
