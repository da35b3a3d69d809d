// SPDX-License-Identifier: Apache-2.0
// Valid pipeline schedules in random order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <random>
#include <utility>
#include <vector>

#include "models/pipeline/schedule.h"

namespace droptest::models {

/// A valid schedule of 1 to 4 ranks, each with 1 to 3 stages, and 1 to 6 micro-batches. Stages are on random ranks;
/// each rank takes a random one of its possible next actions; a backward pass is whole or in two parts.
inline PipelineSchedule random_schedule(std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const int ranks = 1 + below(4);
  const int micro_batches = 1 + below(6);
  std::vector<int> rank_of;
  for (int r = 0; r < ranks; ++r) rank_of.insert(rank_of.end(), static_cast<std::size_t>(1 + below(3)), r);
  for (int s = static_cast<int>(rank_of.size()) - 1; s > 0; --s) {
    std::swap(rank_of[static_cast<std::size_t>(s)], rank_of[static_cast<std::size_t>(below(s + 1))]);
  }
  const int stages = static_cast<int>(rank_of.size());

  using Kind = Action::Kind;
  std::vector<Action> open;
  for (int m = 0; m < micro_batches; ++m) open.push_back({0, Kind::kForward, m});
  PipelineSchedule schedule;
  schedule.ranks.resize(static_cast<std::size_t>(ranks));
  const auto open_backward = [&](int stage, int micro_batch) {
    open.push_back({stage, below(2) == 0 ? Kind::kBackward : Kind::kInputGradient, micro_batch});
  };
  while (!open.empty()) {
    const auto chosen = open.begin() + below(static_cast<int>(open.size()));
    const Action action = *chosen;
    open.erase(chosen);
    schedule.ranks[static_cast<std::size_t>(rank_of[static_cast<std::size_t>(action.stage)])].push_back(action);
    if (action.is_forward()) {
      if (action.stage + 1 < stages) {
        open.push_back({action.stage + 1, Kind::kForward, action.micro_batch});
      } else {
        open_backward(action.stage, action.micro_batch);
      }
    } else if (action.makes_input_gradient()) {
      if (action.stage > 0) open_backward(action.stage - 1, action.micro_batch);
      if (action.kind == Kind::kInputGradient) {
        open.push_back({action.stage, Kind::kWeightGradient, action.micro_batch});
      }
    }
  }
  return schedule;
}

}  // namespace droptest::models
