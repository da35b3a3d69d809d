// SPDX-License-Identifier: Apache-2.0
// Search for the highest loss rate at which the final validation loss stays within a tolerance of the lossless twin's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "experiments/spec/search_plan.h"

namespace droptest::experiments {

/// The outcome of one run.
struct Trial {
  enum class Status : std::uint8_t { kNotRun, kCompleted, kDiverged, kFailed } status = Status::kNotRun;
  double loss = 0;    ///< kCompleted: final validation loss, nats per token
  std::string error;  ///< kFailed: its reason
};

/// A run that the search asks for. Runs with one `repeat` have the same seed at all rates, so they are pairs.
struct TrialRequest {
  std::optional<double> rate;  ///< absent: the lossless twin
  std::uint64_t repeat = 0;
};

/// Runs the requests, in any order, and returns a trial for each; kNotRun if it was told to stop.
using TrialRunner = std::function<std::vector<Trial>(const std::vector<TrialRequest>&)>;

enum class Verdict : std::uint8_t {
  kNotJudged,  ///< run ahead of need
  kPasses,     ///< the whole interval is within the tolerance
  kFails,      ///< the whole interval is beyond it, or a run diverged
  kUndecided,  ///< the interval holds the tolerance
};

/// A rate, and the excess of its runs' losses over those of their lossless twins.
struct RateJudgement {
  double rate = 0;
  std::map<std::uint64_t, Trial> trials;  ///< the trials of the rate, by repeat
  Verdict verdict = Verdict::kNotJudged;
  std::uint64_t pairs = 0;  ///< runs that completed, as their twins did
  double mean_percent = 0;  ///< mean of 100 (loss / twin's loss - 1) over pairs; infinite if a run diverged
  double low_percent = 0;   ///< lower end of the mean's Student-t interval; infinite with fewer than two pairs
  double high_percent = 0;  ///< upper end of the mean's Student-t interval; infinite with fewer than two pairs
};

struct SearchProgress {
  enum class Status : std::uint8_t {
    kSearching,
    kFound,        ///< the threshold is known to the resolution
    kLowFails,     ///< even the lowest rate is beyond the tolerance: the threshold is below it
    kHighPasses,   ///< even the highest rate is within the tolerance: the threshold is above it
    kBudgetSpent,  ///< max_runs was reached first
    kStopped,      ///< asked to stop; the same search goes on from here
    kFailed,       ///< a run failed, or a lossless twin diverged
  } status = Status::kSearching;
  std::map<std::uint64_t, Trial> twins;   ///< the lossless twins, by repeat
  std::map<double, RateJudgement> rates;  ///< the judgements, by rate
  std::uint64_t runs = 0;                 ///< runs that the search has asked for
  std::optional<double> threshold;        ///< the rate at which the isotonic mean crosses the tolerance
  std::optional<double> surely_passes;    ///< lower end: the highest rate that passes, below all that fail
  std::optional<double> surely_fails;     ///< upper end: the lowest rate that fails
  bool monotone = true;                   ///< whether no rate fails below one that passes
  std::string remark;                     ///< text: the reason to stop, and values that are doubtful
};

/// Bisection on a logarithmic axis over paired runs. `low` and `high` come first. Then the next rate halves the gap in
/// which the mean difference crosses the tolerance, until the gap is closed. The rest of the budget narrows the gaps
/// between the crossing and the nearest rates that surely pass and fail. It also looks into the widest stretch that
/// was skipped on either side, because the curve may not be monotone: then the lowest crossing is the threshold.
/// An undecided rate gets `seeds` more seeds, up to `max_seeds`. The intervals of its looks share the error
/// (Bonferroni), so a further look does not make a wrong verdict likelier than 1 - confidence. If `jobs` leaves slots
/// of a round free and the budget has a surplus, runs of the two rates that can come next fill them. `on_change` is
/// called after each round, and once at the end.
/// Determinism: given `jobs`, a pure function of the settings and the trials: if all trials are there already, a
/// repeated search asks for the same ones and ends the same way.
/// Source: Student's t over seeds for the interval; isotonic regression (pool adjacent violators, Barlow et al. 1972),
/// interpolated in the logarithm of the rate, for the estimate.
SearchProgress search_threshold(const SearchSettings& settings, int jobs, const TrialRunner& runner,
                                const std::function<void(const SearchProgress&)>& on_change);

}  // namespace droptest::experiments
