// SPDX-License-Identifier: Apache-2.0
// The recomputation options with which tests of models run.
#pragma once

#include <string>
#include <vector>

#include "models/gpt2/stage_range.h"

namespace droptest::models {

struct NamedOptions {
  std::string name;
  SlotOptions options;
};

inline constexpr SavedPlace kCut{.cut = true};
inline constexpr SavedPlace kOffloaded{.offloaded = true};
inline constexpr SavedPlace kCutAndOffloaded{.cut = true, .offloaded = true};

/// The options for a model of that many blocks.
inline std::vector<NamedOptions> all_options(int layers) {
  const auto every = [layers](Recompute policy) { return std::vector(static_cast<std::size_t>(layers), policy); };
  std::vector<Recompute> second = every(Recompute::kSaveAll);
  for (std::size_t i = 1; i < second.size(); i += 2) second[i] = Recompute::kBlock;
  std::vector<Recompute> mixed = second;
  mixed.front() = Recompute::kSelective;
  return {{"selective", {.recompute = every(Recompute::kSelective)}},
          {"block", {.recompute = every(Recompute::kBlock)}},
          {"every second", {.recompute = second}},
          {"mixed, offloaded", {.recompute = mixed, .place = kOffloaded}},
          {"cut", {.recompute = every(Recompute::kBlock), .place = kCut}},
          {"offloaded", {.recompute = every(Recompute::kBlock), .place = kOffloaded}},
          {"sent", {.recompute = every(Recompute::kBlock), .traffic = RecomputeTraffic::kSent}},
          {"every second sent, cut", {.recompute = second, .place = kCut, .traffic = RecomputeTraffic::kSent}},
          {"cut and offloaded", {.recompute = every(Recompute::kBlock), .place = kCutAndOffloaded}}};
}

}  // namespace droptest::models
