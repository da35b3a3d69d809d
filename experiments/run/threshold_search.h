// SPDX-License-Identifier: Apache-2.0
// Finds the highest loss rate whose final validation loss stays within a tolerance of the lossless twin's.
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
  double loss = 0;    ///< final validation loss, nats per token; kCompleted
  std::string error;  ///< kFailed
};

/// A run that the search asks for. Repeats of one number share their seed, whatever their rate: they are pairs.
struct TrialRequest {
  std::optional<double> rate;  ///< absent: the lossless twin
  std::uint64_t repeat = 0;
};

/// Runs the requests, in any order, and returns a trial for each; kNotRun where it was told to stop.
using TrialRunner = std::function<std::vector<Trial>(const std::vector<TrialRequest>&)>;

enum class Verdict : std::uint8_t {
  kNotJudged,  ///< run ahead of need
  kPasses,     ///< the whole interval is within the tolerance
  kFails,      ///< the whole interval is beyond it, or a run diverged
  kUndecided,  ///< the interval holds the tolerance
};

/// A rate, and how much worse than the lossless twin its runs are.
struct RateJudgement {
  double rate = 0;
  std::map<std::uint64_t, Trial> trials;  ///< by repeat
  Verdict verdict = Verdict::kNotJudged;
  std::uint64_t pairs = 0;  ///< runs that completed, as their twins did
  double mean_percent = 0;  ///< of 100 (loss / twin's loss - 1) over pairs; infinite where a run diverged
  double low_percent = 0;   ///< its Student-t interval; infinite where there are fewer than two pairs
  double high_percent = 0;
};

struct SearchProgress {
  enum class Status : std::uint8_t {
    kSearching,
    kFound,        ///< the threshold is known to the resolution
    kLowFails,     ///< even the lowest rate is beyond the tolerance: the threshold is below it
    kHighPasses,   ///< even the highest rate is within the tolerance: the threshold is above it
    kBudgetSpent,  ///< max_runs came first
    kStopped,      ///< asked to stop; the same search goes on from here
    kFailed,       ///< a run failed, or a lossless twin diverged
  } status = Status::kSearching;
  std::map<std::uint64_t, Trial> twins;   ///< by repeat
  std::map<double, RateJudgement> rates;  ///< by rate
  std::uint64_t runs = 0;                 ///< asked for
  std::optional<double> threshold;        ///< where the isotonic mean crosses the tolerance
  std::optional<double> surely_passes;    ///< highest rate that passes, below all that fail: the threshold's lower end
  std::optional<double> surely_fails;     ///< lowest rate that fails: its upper end
  bool monotone = true;                   ///< no rate fails below one that passes
  std::string remark;                     ///< for the reader: why the search stopped, which values are doubtful
};

/// Bisection on a logarithmic axis over paired runs. low and high come first. Then the next rate halves the gap in
/// which the mean difference crosses the tolerance, until that is closed. The rest of the budget narrows the gaps
/// between the crossing and the nearest rates that surely pass and fail, and looks into the widest stretch that was
/// skipped on either side, for a curve that is not monotone (then the lowest crossing is the threshold). A rate that is
/// undecided gets `seeds` more, up to `max_seeds`; the intervals of its looks share the error (Bonferroni), so that
/// looking again does not make a wrong verdict likelier than 1 - confidence. Where `jobs` leaves slots of a round free
/// and the budget has a surplus, they are filled with runs of the two rates that can come next. `on_change` is called
/// after each round, and once at the end. Determinism: given `jobs`, a pure function of the settings and the trials:
/// with all trials there already, a search that is repeated asks for the same ones and ends the same way. Source of the
/// interval: Student's t over seeds; of the estimate: isotonic regression (pool adjacent violators, Barlow et al.
/// 1972), interpolated in the logarithm of the rate.
SearchProgress search_threshold(const SearchSettings& settings, int jobs, const TrialRunner& runner,
                                const std::function<void(const SearchProgress&)>& on_change);

}  // namespace droptest::experiments
