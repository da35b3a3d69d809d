// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "models/gpt2/stage_plan.h"
#include "models/ops/host_ops.h"
#include "tests/comm/recording_communicator.h"
#include "tests/models/formula_model.h"

namespace droptest::models::gpt2_collectives_test {
namespace {

// docs/models.md has this list. 4 L + 2 messages of [batch, length, width] = 2 x 5 x 32 = 320 elements; the rest small.
const std::vector<std::string> kForward = {
    "sum wte layer -1 tp_forward 320",
    "sum h.0.attn.c_proj layer 0 tp_forward 320",
    "sum h.0.mlp.c_proj layer 0 tp_forward 320",
    "sum h.1.attn.c_proj layer 1 tp_forward 320",
    "sum h.1.mlp.c_proj layer 1 tp_forward 320",
    "max cross_entropy.max layer -1 control 10",
    "sum cross_entropy.sum_exp layer -1 control 10",
    "sum cross_entropy.predicted layer -1 control 10",
};
const std::vector<std::string> kBackward = {
    "sum lm_head.backward layer -1 tp_backward 320",        "sum h.1.mlp.c_fc.backward layer 1 tp_backward 320",
    "sum h.1.attn.c_attn.backward layer 1 tp_backward 320", "sum h.0.mlp.c_fc.backward layer 0 tp_backward 320",
    "sum h.0.attn.c_attn.backward layer 0 tp_backward 320",
};

TEST(Gpt2Collectives, AStepMakesExactlyTheListedCallsOnEveryRank) {
  const Gpt2Config config{2, 32, 4, 12, 97};
  const auto tokens = formula_tokens(0, 10, config.vocabulary);
  const auto targets = formula_tokens(1, 10, config.vocabulary);
  for (const int ranks : {1, 3}) {
    comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
      comm::RecordingCommunicator recording(group);
      HostGpt2<float> model(config, recording, 1);
      model.initialize(3);
      EXPECT_THAT(recording.calls, testing::IsEmpty());
      for (int step = 0; step < 2; ++step) {
        recording.calls.clear();
        model.evaluate(tokens, targets, 2, 5);
        EXPECT_EQ(recording.calls, kForward);
        recording.calls.clear();
        model.forward_backward(tokens, targets, 2, 5, 1.0);
        std::vector<std::string> both = kForward;
        both.insert(both.end(), kBackward.begin(), kBackward.end());
        EXPECT_EQ(recording.calls, both);
        recording.calls.clear();
        model.gradient_norm(recording);
        EXPECT_THAT(recording.calls, testing::ElementsAre("sum gradient_norm layer -1 control 1"));
      }
    });
  }
}

// A recomputed block repeats its sums in a separate class, before the gradients of the sublayer.
TEST(Gpt2Collectives, RecomputationSendsTheSumsOfItsBlocksAgain) {
  const Gpt2Config config{2, 32, 4, 12, 97};
  const auto tokens = formula_tokens(0, 10, config.vocabulary);
  const SlotOptions sent{.recompute = {Recompute::kSaveAll, Recompute::kBlock}, .traffic = RecomputeTraffic::kSent};
  for (const int ranks : {1, 3}) {
    comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
      comm::RecordingCommunicator recording(group);
      Gpt2 model(config, make_host_ops({}, recording), {}, sent);
      set_formula_weights(config, model.parameters<float>(), group);
      model.upload_values();
      recording.calls.clear();
      model.zero_gradients();
      model.forward_backward(tokens, tokens, {2, 5}, 1);
      std::vector<std::string> want = kForward;
      want.insert(want.end(), kBackward.begin(), kBackward.end());
      if (ranks > 1) {
        const auto again = [&want](const std::string& before, const std::string& sum) {
          const auto place =
              std::find_if(want.begin(), want.end(), [&](const auto& call) { return call.find(before) == 4; });
          want.insert(place, sum);
        };
        again("h.1.mlp.c_fc.backward", "sum h.1.mlp.c_proj layer 1 tp_recomputation 320");
        again("h.1.attn.c_attn.backward", "sum h.1.attn.c_proj layer 1 tp_recomputation 320");
      }
      EXPECT_EQ(recording.calls, want);
    });
  }
}

TEST(Gpt2Collectives, ThePlannerSeesWhatAStepSends) {
  const Gpt2Config config{2, 32, 4, 12, 97};
  constexpr int kRanks = 3;
  const auto form = host_ops_form({}, kRanks);
  const auto texts = [](const std::vector<comm::DryCall>& calls) {
    std::vector<std::string> list;
    for (const comm::DryCall& one : calls) {
      EXPECT_EQ(one.bytes(), 4 * one.elems);
      list.push_back(one.name + " " + std::string(sim::traffic_class_name(one.traffic_class)) + " " +
                     std::to_string(one.elems));
    }
    return list;
  };
  // Removes the operation and the layer, which the planner does not record.
  const auto sent = [](std::vector<std::string> calls) {
    for (std::string& call : calls) {
      call.erase(0, call.find(' ') + 1);
      const std::size_t layer = call.find(" layer ");
      call.erase(layer, call.find(' ', layer + 7) - layer);
    }
    return calls;
  };
  const StagePlan training(config, StageRange::whole(config), kRanks, 1, *form, {2, 5}, Keep::kForBackward);
  const std::vector<std::string> forward = sent(kForward);
  EXPECT_EQ(texts(training.forward_calls()), std::vector<std::string>(forward.begin(), forward.begin() + 5));
  std::vector<std::string> later(forward.begin() + 5, forward.end());
  const std::vector<std::string> backward = sent(kBackward);
  later.insert(later.end(), backward.begin(), backward.end());
  EXPECT_EQ(texts(training.later_calls()), later);
}

}  // namespace
}  // namespace droptest::models::gpt2_collectives_test
