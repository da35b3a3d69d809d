// SPDX-License-Identifier: Apache-2.0
// The runs that a spec's sweep and repeats ask for.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/spec/resolve.h"
#include "experiments/spec/spec.h"

namespace droptest::experiments {

/// More runs than this in one spec are refused.
inline constexpr std::uint64_t kMaxRuns = 10000;

/// One point of the sweep with its seeds.
struct PlannedRun {
  nlohmann::json point;  ///< pointer -> value, as the spec writes it; {} without a sweep
  Seeds seeds;
  /// The run with these seeds. If it does not depend on the network's seed, its network's seed is that of the first run
  /// with the same seeds of weights and data, so that it is trained once.
  ResolvedRun run;
  /// Index into SweepPlan::runs of the first run with the same id: this one, unless two points or seeds mean the same.
  std::size_t same_as = 0;
};

/// A warning, and how many points of the sweep have it.
struct PlanWarning {
  Warning warning;
  std::size_t points = 0;
};

struct SweepPlan {
  std::string name;
  std::string description;
  nlohmann::json spec;  ///< the spec's document, without defaults
  /// The runs, ordered by seeds (of weights, then of data, then of the network, which vary fastest), then by point. So
  /// a sweep that is cut short has whole curves. Points are in the order of `zip`, then of `cross` by sorted pointer;
  /// the last pointer varies fastest.
  std::vector<PlannedRun> runs;
  std::size_t points = 1;  ///< points of the sweep; each is run with all seeds
  /// Swept pointers of which only the best values count: those with the lowest mean selection loss over the seeds.
  std::vector<std::string> best_over = {};
  std::vector<std::string> swept = {};  ///< pointers of the points, in the order of the spec
  std::vector<PlanWarning> warnings = {};

  /// Runs that are the same as an earlier one.
  std::size_t same_runs() const;
};

/// Expands a spec. A traffic class without packets is a warning for a point of a sweep, and an error if a spec of one
/// run names it. `files` and `use` are resolve()'s. Throws: ConfigError for a sweep that has no meaning, or a point
/// that does not resolve.
SweepPlan plan_sweep(const Spec& spec, FileHashes* files = nullptr, NumericsUse use = NumericsUse::kToTrain);

}  // namespace droptest::experiments
