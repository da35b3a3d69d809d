// SPDX-License-Identifier: Apache-2.0
// A spec as a search for the highest tolerable loss rate: its settings, its lossless twin, and the run at any rate.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/spec/spec.h"
#include "experiments/spec/sweep_plan.h"

namespace droptest::experiments {

/// The `search` section of a spec; docs/specs.md defines each member.
struct SearchSettings {
  std::string pointer;           ///< JSON pointer of the rate
  double low = 0;                ///< fraction, above 0
  double high = 0;               ///< fraction, above low
  double tolerance_percent = 1;  ///< tolerated excess over the lossless twin's final validation loss
  double resolution = 0.1;       ///< a gap between two rates a < b is closed if (b - a) / b is at most this
  double confidence = 0.95;      ///< confidence of the interval that judges a rate
  std::uint64_t seeds = 3;       ///< seeds of each rate at first
  std::uint64_t max_seeds = 9;   ///< most seeds of a rate, if it stays undecided
  std::uint64_t max_runs = 60;   ///< most runs, lossless twins and runs found finished included
};

/// A search for the highest tolerable rate.
class SearchPlan {
 public:
  /// `files` is resolve()'s; only the constructor uses it. Throws: ConfigError that names the JSON pointer: a spec with
  /// a sweep, bounds without meaning, a pointer that no spec has, or that does not change the run.
  explicit SearchPlan(const Spec& spec, FileHashes* files = nullptr);

  const std::string& name() const { return name_; }
  const std::string& description() const { return description_; }
  /// The spec's document, without defaults.
  const nlohmann::json& spec() const { return spec_; }
  const SearchSettings& settings() const { return settings_; }

  /// The run at `rate`. Throws: ConfigError if the spec has no meaning at that rate.
  PlannedRun at(double rate, std::uint64_t repeat) const;
  /// The lossless twin: the run without its network.
  PlannedRun lossless(std::uint64_t repeat) const;

 private:
  void read(const Spec& spec, FileHashes* files);
  PlannedRun repeated(PlannedRun run, std::uint64_t repeat) const;

  std::string name_;
  std::string description_;
  std::string where_;
  nlohmann::json spec_;
  nlohmann::json base_;  ///< the spec of one run
  SearchSettings settings_;
  std::vector<std::string> tokens_;
  PlannedRun twin_;
};

}  // namespace droptest::experiments
