// SPDX-License-Identifier: Apache-2.0
// Recomputed blocks have the same bits on every implementation, in the planned memory.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/models/counting_clock.h"
#include "tests/models/every_implementation.h"
#include "tests/models/planned_bytes.h"
#include "tests/models/recompute_options.h"

namespace droptest::models::recompute_test {
namespace {

const Gpt2Config kSmall{3, 24, 3, 8, 61};

/// The gradients after two micro-batches in separate slots, with backward passes in reverse order, twice.
std::vector<double> gradients_with(const Implementation& implementation, comm::Communicator& group,
                                   const SlotOptions& options) {
  SlotOptions two = options;
  two.slots = 2;
  Gpt2 model(kSmall, implementation.make(group), {}, two);
  with_parameters(model, [&](auto parameters) { set_formula_weights(kSmall, parameters, group); });
  model.upload_values();
  std::vector<double> all;
  for (int step = 0; step < 2; ++step) {
    model.zero_gradients();
    for (int slot : {0, 1}) {
      const auto stream = static_cast<std::uint64_t>(2 * (2 * step + slot));
      const auto tokens = formula_tokens(stream, 10, kSmall.vocabulary);
      const auto targets = formula_tokens(stream + 1, 10, kSmall.vocabulary);
      model.forward(slot, tokens, targets, {2, 5});
    }
    model.backward(1, 0.5, Gpt2::kOwnTargets, Follows::kPass);
    model.backward(0, 0.5);
    const std::vector<double> gradients = numbers_of(model, Field::kGradient);
    all.insert(all.end(), gradients.begin(), gradients.end());
    all.push_back(model.step_sums().losses);
  }
  return all;
}

// Three ranks have uneven parts.
TEST(Recomputation, ChangesNoBitOfGradientsOnAnyImplementation) {
  for (const int ranks : {1, 3}) {
    on_every_implementation(ranks, [](const Implementation& implementation, comm::Communicator& group) {
      const std::vector<double> want = gradients_with(implementation, group, {});
      int number = 0;
      for (const NamedOptions& item : all_options(kSmall.layers)) {
        if (!implementation.takes(number++, 3)) continue;
        SCOPED_TRACE(item.name);
        expect_equal(gradients_with(implementation, group, item.options), want, "number");
      }
    });
  }
}

TEST(Recomputation, ThePlannedMemoryIsTheMemory) {
  on_every_implementation(2, [](const Implementation& implementation, comm::Communicator& group) {
    int number = 0;
    for (const int layers : {1, 4}) {
      const Gpt2Config config{layers, 24, 3, 8, 61};
      for (const NamedOptions& item : all_options(layers)) {
        if (!implementation.takes(number++, 3)) continue;
        SCOPED_TRACE(item.name);
        Gpt2 model(config, implementation.make(group), {}, item.options);
        with_parameters(model, [&](auto parameters) { set_formula_weights(config, parameters, group); });
        model.upload_values();
        const auto tokens = formula_tokens(0, 10, config.vocabulary);
        model.zero_gradients();
        model.forward_backward(tokens, tokens, {2, 5}, 1);
        model.evaluate(tokens, tokens, {2, 5});
        // How many buffers an offload needs depends on when its thread runs.
        const std::uint64_t buffers = model.memory_use().offload;
        EXPECT_EQ(model.memory_bytes() - buffers, planned_bytes(config, group.world_size(), group.rank(),
                                                                *implementation.form(2), {2, 5}, item.options));
      }
    }
  });
}

/// The times of each phase in a step on two ranks.
std::vector<double> times_with(const SlotOptions& options) {
  std::vector<double> times_of_rank;
  comm::run_ranks(2, kTestTimeout, [&](comm::Communicator& group) {
    const CountingClock clock;
    PhaseTimes times(kPhasesAndRest, kPhaseNames.size(), clock);
    Gpt2 model(kSmall, make_host_ops({}, group, &times), {}, options);
    with_parameters(model, [&](auto parameters) { set_formula_weights(kSmall, parameters, group); });
    model.upload_values();
    const auto tokens = formula_tokens(0, 10, kSmall.vocabulary);
    model.zero_gradients();
    times.take();
    model.forward_backward(tokens, tokens, {2, 5}, 1);
    if (group.rank() == 0) times_of_rank = times.take();
  });
  return times_of_rank;
}

// The sums that are sent again, and the gathers of cut activations, are reductions, as all sums are.
TEST(Recomputation, ItsTimeIsNoneOfOtherPhases) {
  const auto recomputation = static_cast<std::size_t>(Phase::kRecomputation);
  const auto reductions = static_cast<std::size_t>(Phase::kReductions);
  const std::vector<double> want = times_with({});
  EXPECT_EQ(want[recomputation], 0);
  for (const NamedOptions& item : all_options(kSmall.layers)) {
    SCOPED_TRACE(item.name);
    const std::vector<double> got = times_with(item.options);
    EXPECT_GT(got[recomputation], 0);
    const bool communicates = item.options.place.cut || item.options.traffic == RecomputeTraffic::kSent;
    for (std::size_t phase = 0; phase < kPhaseNames.size(); ++phase) {
      if (phase == recomputation) continue;
      if (phase == reductions && communicates) {
        EXPECT_GT(got[phase], want[phase]);
      } else {
        EXPECT_EQ(got[phase], want[phase]) << kPhaseNames[phase];
      }
    }
  }
}

}  // namespace
}  // namespace droptest::models::recompute_test
