// SPDX-License-Identifier: Apache-2.0
// Compares the backward pass of GPT-2 over lost activations, between stages and between ranks that cut tokens, with
// finite differences of the lossy forward pass.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "comm/lossy/lossy_communicator.h"
#include "sim/loss/bernoulli.h"
#include "tests/models/tiny_pipeline.h"

namespace droptest::models::lost_activations_test {
namespace {

using comm::Fill;
using comm::LostGradient;

constexpr double kStep = 1e-5;

comm::LossyOptions options_of(sim::TrafficClass traffic_class, double rate, Fill fill,
                              std::optional<LostGradient> gradient) {
  comm::ClassNetwork network;
  network.payload_bytes = 24;
  network.gather.loss = std::make_shared<sim::Bernoulli>(rate);
  network.gather.fill = fill;
  network.lost_gradient = gradient;
  comm::LossyOptions options;
  options.network.seed = 5;
  options.network.of(traffic_class) = network;
  return options;
}

/// The results of a pass with weights that were moved along a direction.
struct Outcome {
  double loss = 0;
  double slope = 0;
};

/// The difference of the slope from the quotient of differences, relative to it.
double error_of(const std::function<Outcome(double moved)>& pass) {
  const double quotient = (pass(kStep).loss - pass(-kStep).loss) / (2 * kStep);
  return std::abs(pass(0).slope - quotient) / std::abs(quotient);
}

Outcome pipeline_pass(const PipelineSchedule& schedule, const comm::LossyOptions& options, double moved) {
  Outcome outcome;
  std::mutex mutex;
  const int micro_batches = schedule.micro_batches();
  comm::run_ranks(static_cast<int>(schedule.ranks.size()), kTestTimeout, [&](comm::Communicator& inner) {
    comm::LossyCommunicator world(inner, options);
    TinyPipeline model(schedule, schedule.stages(), world);
    model.passes();  // gives stale fills their values
    const double before = model.losses();
    model.move(moved);
    model.passes();
    const double slope = model.slope();
    const std::lock_guard lock(mutex);
    outcome.loss += (model.losses() - before) / micro_batches;
    outcome.slope += slope;
  });
  return outcome;
}

std::vector<PipelineSchedule> schedules() {
  return {make_schedule(ScheduleKind::kOneForwardOneBackward, 3, 1, 4),
          make_schedule(ScheduleKind::kInterleaved, 2, 2, 4), make_schedule(ScheduleKind::kZeroBubble, 2, 1, 4)};
}

TEST(PipelineTraining, LostActivationsHaveNoGradientWhereTheirClassSaysSo) {
  for (const PipelineSchedule& schedule : schedules()) {
    for (const Fill fill : {Fill::kZero, Fill::kStale}) {
      for (const double rate : {0.0, 0.3, 1.0}) {
        const auto error = [&](std::optional<LostGradient> gradient) {
          const comm::LossyOptions options = options_of(sim::TrafficClass::kPpActivation, rate, fill, gradient);
          return error_of([&](double moved) { return pipeline_pass(schedule, options, moved); });
        };
        EXPECT_LE(error(LostGradient::kZero), 1e-6) << comm::fill_entry(fill).name << " at " << rate;
        if (rate == 0.3) {
          EXPECT_GE(error(std::nullopt), 1e-3) << comm::fill_entry(fill).name;
        }
      }
    }
  }
}

Outcome tensor_pass(int ranks, const SlotOptions& slots, const comm::LossyOptions& options, double moved) {
  const Gpt2Config config{2, 16, 4, 9, 31};
  constexpr int kSequences = 2;
  constexpr int kLength = 7;
  Outcome outcome;
  std::mutex mutex;
  comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& inner) {
    comm::LossyCommunicator group(inner, options);
    Gpt2 model(config, make_host_ops({.type = comm::ElementType::kFloat64}, group), {}, slots);
    set_formula_weights<double>(config, model.parameters<double>(), group);
    for_each_along<double>(
        config, model.parameters<double>(), group,
        [moved](Parameter<double>& parameter, std::uint64_t at, double d) { parameter.value[at] += moved * d; });
    model.upload_values();
    model.forward_backward(formula_tokens(0, kSequences * kLength, config.vocabulary),
                           formula_tokens(1, kSequences * kLength, config.vocabulary), {kSequences, kLength}, 1.0);
    const double loss = model.step_sums().losses;
    model.download(Gpt2::Fields::kValuesAndGradients);
    double slope = 0;
    for_each_along<double>(config, model.parameters<double>(), group,
                           [&](Parameter<double>& parameter, std::uint64_t at, double d) {
                             if (parameter.placement == Placement::kReplicated && group.rank() != 0) return;
                             slope += parameter.gradient[at] * d;
                           });
    const std::lock_guard lock(mutex);
    if (group.rank() == 0) outcome.loss = loss;
    outcome.slope += slope;
  });
  return outcome;
}

// A cut of tokens: norms' outputs are gathered in front of each sublayer and of the head.
TEST(TensorSequenceTraining, LostTokensHaveNoGradientWhereTheirClassSaysSo) {
  for (const int ranks : {2, 4}) {
    for (const Recompute policy : {Recompute::kSaveAll, Recompute::kSelective, Recompute::kBlock}) {
      SlotOptions slots{.recompute = {policy, policy}};
      slots.tensor_sequence = true;
      for (const double rate : {0.0, 0.3, 1.0}) {
        const auto error = [&](std::optional<LostGradient> gradient) {
          comm::LossyOptions options = options_of(sim::TrafficClass::kTpForward, rate, Fill::kZero, gradient);
          return error_of([&](double moved) { return tensor_pass(ranks, slots, options, moved); });
        };
        EXPECT_LE(error(LostGradient::kZero), 1e-6) << ranks << " ranks at " << rate;
        if (rate == 0.3) {
          EXPECT_GE(error(std::nullopt), 1e-3) << ranks << " ranks";
        }
      }
    }
  }
}

}  // namespace
}  // namespace droptest::models::lost_activations_test
