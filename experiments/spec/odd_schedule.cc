// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/odd_schedule.h"

#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"

namespace droptest::experiments {

std::vector<Warning> odd_schedule(const RunConfig& config) {
  using Shape = models::LearningRateSchedule::Shape;
  std::vector<Warning> warnings;
  const models::LearningRateSchedule& rates = config.training.learning_rate;
  // Step s of the decay has the rate s / decay_steps below the peak, from 0: a decay of one step has only the peak.
  if (rates.shape == Shape::kWarmupStableDecay && rates.decay_steps == 1) {
    warnings.push_back({"/training/schedule/decay_steps",
                        "got 1, a decay whose only step has the peak, so that the learning rate never falls; want at "
                        "least 2, or, where it is absent, 20 steps after the warm-up"});
  }
  const bool ends_at_floor = rates.shape != Shape::kTable && rates.shape != Shape::kConstant;
  if (ends_at_floor && rates.floor > rates.peak) {
    warnings.push_back({"/training/final_learning_rate", "got " + comm::quote_json(nlohmann::json(rates.floor)) +
                                                             ", so that the learning rate rises from the peak, " +
                                                             comm::quote_json(nlohmann::json(rates.peak)) +
                                                             ", to its end; want at most the peak"});
  }
  return warnings;
}

}  // namespace droptest::experiments
