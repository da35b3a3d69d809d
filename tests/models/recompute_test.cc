// SPDX-License-Identifier: Apache-2.0
// Blocks that are computed again: the same bits on every implementation, in the memory that was planned.
#include <gtest/gtest.h>

#include <vector>

#include "tests/models/every_implementation.h"
#include "tests/models/recompute_options.h"

namespace droptest::models {
namespace {

const Gpt2Config kSmall{3, 24, 3, 8, 61};

/// The gradients after two micro-batches in slots of their own, backward passes last first, twice.
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

TEST(Recomputation, ChangesNoBitOfGradientsOnAnyImplementation) {
  for (const int ranks : {1, 2, 3}) {
    on_every_implementation(ranks, [](const Implementation& implementation, comm::Communicator& group) {
      const std::vector<double> want = gradients_with(implementation, group, {});
      for (const NamedOptions& item : all_options(kSmall.layers)) {
        SCOPED_TRACE(item.name);
        expect_equal(gradients_with(implementation, group, item.options), want, "number");
      }
    });
  }
}

TEST(Recomputation, ThePlannedMemoryIsTheMemory) {
  on_every_implementation(2, [](const Implementation& implementation, comm::Communicator& group) {
    for (const int layers : {1, 3, 8}) {
      const Gpt2Config config{layers, 24, 3, 8, 61};
      for (const NamedOptions& item : all_options(layers)) {
        SCOPED_TRACE(item.name);
        Gpt2 model(config, implementation.make(group), {}, item.options);
        with_parameters(model, [&](auto parameters) { set_formula_weights(config, parameters, group); });
        model.upload_values();
        const auto tokens = formula_tokens(0, 10, config.vocabulary);
        model.zero_gradients();
        model.forward_backward(tokens, tokens, {2, 5}, 1);
        model.evaluate(tokens, tokens, {2, 5});
        EXPECT_EQ(model.memory_bytes(), Gpt2::planned_bytes(config, group.world_size(), group.rank(),
                                                            *implementation.form(2), {2, 5}, item.options));
      }
    }
  });
}

}  // namespace
}  // namespace droptest::models
