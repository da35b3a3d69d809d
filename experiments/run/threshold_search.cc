// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/threshold_search.h"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "sim/error.h"

namespace droptest::experiments {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The middle of two rates on a logarithmic axis, rounded to three digits if the result is still between them.
double middle_rate(double a, double b) {
  const double exact = std::sqrt(a * b);
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", exact);
  const double rounded = std::strtod(text, nullptr);
  return rounded > a && rounded < b ? rounded : exact;
}

struct RatePoint {
  double rate;
  double mean;
  double weight;
};

/// Nondecreasing means: means of neighbouring points are pooled if they fall.
std::vector<double> isotonic_means(const std::vector<RatePoint>& points) {
  struct Pool {
    double mean;
    double weight;
    std::size_t points;
  };
  std::vector<Pool> pools;
  for (const RatePoint& point : points) {
    pools.push_back({point.mean, point.weight, 1});
    while (pools.size() > 1 && pools[pools.size() - 2].mean > pools.back().mean) {
      const Pool last = pools.back();
      pools.pop_back();
      Pool& pool = pools.back();
      pool.mean = (pool.mean * pool.weight + last.mean * last.weight) / (pool.weight + last.weight);
      pool.weight += last.weight;
      pool.points += last.points;
    }
  }
  std::vector<double> means;
  for (const Pool& pool : pools) means.insert(means.end(), pool.points, pool.mean);
  return means;
}

class ThresholdSearch {
 public:
  ThresholdSearch(const SearchSettings& settings, int jobs, const TrialRunner& runner,
                  const std::function<void(const SearchProgress&)>& on_change)
      : settings_(settings), jobs_(static_cast<std::uint64_t>(jobs)), runner_(runner), on_change_(on_change) {}

  SearchProgress run() {
    if (bounds_hold()) bisect();
    if (state_.status == Status::kSearching || (state_.status == Status::kBudgetSpent && crossing_is_closed())) {
      state_.status = Status::kFound;
    }
    conclude();
    on_change_(state_);
    return std::move(state_);
  }

 private:
  using Status = SearchProgress::Status;

  /// Judges low and high together. Returns whether the threshold lies between them.
  bool bounds_hold() {
    std::vector<TrialRequest> first;
    for (std::uint64_t repeat = 0; repeat < settings_.seeds; ++repeat) {
      for (const std::optional<double> rate : {std::optional<double>(), {settings_.low}, {settings_.high}}) {
        first.push_back({rate, repeat});
      }
    }
    if (!take(first) || !judge(settings_.low) || !judge(settings_.high)) return false;
    const RateJudgement& low = state_.rates.at(settings_.low);
    const RateJudgement& high = state_.rates.at(settings_.high);
    if (!within(low)) {
      end(Status::kLowFails, low.verdict == Verdict::kFails ? "even the lowest rate is beyond the tolerance"
                                                            : "the mean of even the lowest rate is beyond the "
                                                              "tolerance, though its interval is not");
    } else if (within(high)) {
      end(Status::kHighPasses, high.verdict == Verdict::kPasses ? "even the highest rate is within the tolerance"
                                                                : "the mean of even the highest rate is within the "
                                                                  "tolerance, though its interval is not");
    }
    return state_.status == Status::kSearching;
  }

  void bisect() {
    for (std::optional<Gap> gap = next_gap(); gap || (gap = next_check()); gap = next_gap()) {
      const double rate = middle_rate(gap->below, gap->above);
      rates_ahead_.clear();
      if (is_open(gap->below, rate)) rates_ahead_.push_back(middle_rate(gap->below, rate));
      if (is_open(rate, gap->above)) rates_ahead_.push_back(middle_rate(rate, gap->above));
      if (!judge(rate)) return;
    }
  }

  struct Gap {
    double below;
    double above;
  };
  bool is_open(double below, double above) const { return (above - below) / above > settings_.resolution; }

  /// The gap between the first rate with a mean beyond the tolerance and the rate below it; absent: there is none.
  std::optional<Gap> crossing() const {
    const std::vector<const RateJudgement*> judged = judgements();
    for (std::size_t i = 1; i < judged.size(); ++i) {
      if (!within(*judged[i])) return Gap{judged[i - 1]->rate, judged[i]->rate};
    }
    return std::nullopt;
  }
  bool crossing_is_closed() const {
    const std::optional<Gap> gap = crossing();
    return gap && within(*judgements().front()) && !is_open(gap->below, gap->above);
  }

  /// Bisection assumes a monotone curve. This check looks once above and once below the crossing into the widest
  /// stretch that bisection skipped, if the budget allows it.
  std::optional<Gap> next_check() {
    const std::vector<const RateJudgement*> judged = judgements();
    const Gap at_crossing = *crossing();
    while (checks_ < 2 && state_.runs + settings_.seeds <= settings_.max_runs) {
      const bool below = checks_++ == 0;
      std::optional<Gap> widest;
      for (std::size_t i = 1; i < judged.size(); ++i) {
        const Gap gap{judged[i - 1]->rate, judged[i]->rate};
        if (below ? gap.above > at_crossing.below : gap.below < at_crossing.above) continue;
        if (!widest || gap.above / gap.below > widest->above / widest->below) widest = gap;
      }
      if (widest && widest->above > 2 * widest->below) return widest;
    }
    return std::nullopt;
  }

  /// The gap to halve next; absent if all gaps that matter are closed.
  std::optional<Gap> next_gap() const {
    const std::vector<const RateJudgement*> judged = judgements();
    std::optional<std::size_t> passes;
    std::optional<std::size_t> fails;
    for (std::size_t i = 0; i < judged.size(); ++i) {
      if (!fails && judged[i]->verdict == Verdict::kFails) fails = i;
      if (!fails && judged[i]->verdict == Verdict::kPasses) passes = i;
    }
    const Gap at_crossing = *crossing();
    if (is_open(at_crossing.below, at_crossing.above)) return at_crossing;
    std::optional<Gap> widest;
    for (const std::optional<std::size_t>& lower : {passes, fails ? std::optional(*fails - 1) : std::nullopt}) {
      if (!lower || *lower + 1 >= judged.size()) continue;  // fails is never the first: the bounds hold
      const Gap gap{judged[*lower]->rate, judged[*lower + 1]->rate};
      if (!is_open(gap.below, gap.above)) continue;
      if (!widest || gap.above / gap.below > widest->above / widest->below) widest = gap;
    }
    return widest;
  }

  std::vector<const RateJudgement*> judgements() const {
    std::vector<const RateJudgement*> judged;
    for (const auto& [rate, judgement] : state_.rates) {
      if (judgement.verdict != Verdict::kNotJudged) judged.push_back(&judgement);
    }
    return judged;
  }

  bool within(const RateJudgement& judgement) const { return judgement.mean_percent <= settings_.tolerance_percent; }

  /// Runs a rate with more and more seeds until it is decided; false: the search is over.
  bool judge(double rate) {
    for (std::uint64_t seeds = settings_.seeds;; seeds = std::min(seeds + settings_.seeds, settings_.max_seeds)) {
      std::vector<TrialRequest> wanted;
      for (std::uint64_t repeat = 0; repeat < seeds; ++repeat) {
        wanted.push_back({std::nullopt, repeat});
        wanted.push_back({rate, repeat});
      }
      if (!take(wanted)) return false;
      RateJudgement& judgement = state_.rates.at(rate);
      look(judgement, seeds);
      conclude();
      on_change_(state_);
      if (judgement.verdict != Verdict::kUndecided || seeds == settings_.max_seeds) return true;
    }
  }

  /// Runs the trials that are not there yet; false: the search is over.
  bool take(const std::vector<TrialRequest>& wanted) {
    std::vector<TrialRequest> missing;
    for (const TrialRequest& request : wanted) {
      if (!find(request)) missing.push_back(request);
    }
    if (missing.empty()) return true;
    if (state_.runs + missing.size() > settings_.max_runs) {
      end(Status::kBudgetSpent, "the budget of " + std::to_string(settings_.max_runs) + " runs was spent");
      return false;
    }
    const std::size_t needed = missing.size();
    add_runs_ahead(missing);
    state_.runs += missing.size();
    const std::vector<Trial> trials = runner_(missing);
    DROPTEST_CHECK(trials.size() == missing.size(), "the runner of a search returned another number of trials");
    for (std::size_t i = 0; i < missing.size(); ++i)
      keep(missing[i], trials[i], i < needed ? Need::kNow : Need::kAhead);
    if (state_.status == Status::kSearching) return true;
    on_change_(state_);
    return false;
  }

  bool find(const TrialRequest& request) const {
    if (!request.rate) return state_.twins.contains(request.repeat);
    const auto rate = state_.rates.find(*request.rate);
    return rate != state_.rates.end() && rate->second.trials.contains(request.repeat);
  }

  enum class Need : std::uint8_t { kNow, kAhead };
  void keep(const TrialRequest& request, const Trial& trial, Need need) {
    if (trial.status == Trial::Status::kNotRun) {
      if (need == Need::kNow) end(Status::kStopped, "stopped; the same command goes on from here");
      return;
    }
    const std::string run = (request.rate ? "rate " + text_of(*request.rate) : "the lossless twin") + ", repeat " +
                            std::to_string(request.repeat);
    if (trial.status == Trial::Status::kFailed) end(Status::kFailed, "a run failed (" + run + "): " + trial.error);
    if (request.rate) {
      RateJudgement& judgement = state_.rates[*request.rate];
      judgement.rate = *request.rate;
      judgement.trials[request.repeat] = trial;
    } else {
      state_.twins[request.repeat] = trial;
      if (trial.status == Trial::Status::kDiverged) {
        end(Status::kFailed, "the lossless twin diverged (" + run + "): there is nothing to compare with");
      }
    }
  }

  static std::string text_of(double rate) {
    char text[32];
    std::snprintf(text, sizeof text, "%.6g", rate);
    return text;
  }

  /// Fills the slots that the round would leave free with runs of the rates that can come next, as far as the budget
  /// has more than the rest of the bisection is bound to need.
  void add_runs_ahead(std::vector<TrialRequest>& round) const {
    const std::uint64_t used = round.size() % jobs_;
    std::uint64_t slots = used == 0 ? 0 : jobs_ - used;
    const std::uint64_t reserve = state_.runs + round.size() + rounds_left() * settings_.seeds;
    for (std::uint64_t repeat = 0; repeat < settings_.seeds; ++repeat) {
      for (const double rate : rates_ahead_) {
        if (slots == 0 || reserve + round.size() >= settings_.max_runs) return;
        if (find({rate, repeat})) continue;
        round.push_back({rate, repeat});
        --slots;
      }
    }
  }

  /// Halvings until the widest gap that there can be is closed.
  std::uint64_t rounds_left() const {
    const double decades = std::log(settings_.high / settings_.low) / -std::log1p(-settings_.resolution);
    return static_cast<std::uint64_t>(std::ceil(std::log2(std::max(decades, 1.0))));
  }

  /// The verdict over the first `seeds` pairs.
  void look(RateJudgement& judgement, std::uint64_t seeds) const {
    std::vector<double> percents;
    for (std::uint64_t repeat = 0; repeat < seeds; ++repeat) {
      const Trial& trial = judgement.trials.at(repeat);
      if (trial.status != Trial::Status::kCompleted) continue;
      percents.push_back(100 * (trial.loss / state_.twins.at(repeat).loss - 1));
    }
    judgement.pairs = percents.size();
    if (judgement.pairs < seeds) {
      judgement.verdict = Verdict::kFails;
      judgement.mean_percent = judgement.low_percent = judgement.high_percent = kInfinity;
      return;
    }
    const auto n = static_cast<double>(seeds);
    double sum = 0;
    for (const double percent : percents) sum += percent;
    judgement.mean_percent = sum / n;
    double squares = 0;
    for (const double percent : percents) squares += (percent - sum / n) * (percent - sum / n);
    const double half_width = seeds < 2 ? kInfinity : quantile(n - 1) * std::sqrt(squares / (n - 1) / n);
    judgement.low_percent = judgement.mean_percent - half_width;
    judgement.high_percent = judgement.mean_percent + half_width;
    judgement.verdict = judgement.high_percent <= settings_.tolerance_percent ? Verdict::kPasses
                        : judgement.low_percent > settings_.tolerance_percent ? Verdict::kFails
                                                                              : Verdict::kUndecided;
  }

  /// The quantile of Student's t for one of the looks that a rate may get.
  double quantile(double degrees) const {
    const std::uint64_t looks = (settings_.max_seeds + settings_.seeds - 1) / settings_.seeds;
    const double error = (1 - settings_.confidence) / static_cast<double>(looks);
    return boost::math::quantile(boost::math::complement(boost::math::students_t(degrees), error / 2));
  }

  void end(Status status, std::string remark) {
    if (state_.status != Status::kSearching && status != Status::kFailed) return;
    state_.status = status;
    state_.remark = std::move(remark);
  }

  /// Derives the threshold and its bounds from the judgements so far.
  void conclude() {
    const std::vector<const RateJudgement*> judged = judgements();
    state_.surely_passes.reset();
    state_.surely_fails.reset();
    state_.threshold.reset();
    state_.monotone = true;
    std::vector<RatePoint> points;
    for (const RateJudgement* judgement : judged) {
      if (judgement->verdict == Verdict::kFails && !state_.surely_fails) state_.surely_fails = judgement->rate;
      if (judgement->verdict == Verdict::kPasses && !state_.surely_fails) state_.surely_passes = judgement->rate;
      if (judgement->verdict == Verdict::kPasses && state_.surely_fails) state_.monotone = false;
      points.push_back({judgement->rate, judgement->mean_percent, static_cast<double>(judgement->pairs)});
    }
    const std::vector<double> means = isotonic_means(points);
    for (std::size_t i = 1; i < points.size(); ++i) {
      if (means[i - 1] > settings_.tolerance_percent || means[i] <= settings_.tolerance_percent) continue;
      const double share =
          std::isfinite(means[i]) ? (settings_.tolerance_percent - means[i - 1]) / (means[i] - means[i - 1]) : 0.5;
      state_.threshold = points[i - 1].rate * std::pow(points[i].rate / points[i - 1].rate, share);
    }
  }

  const SearchSettings& settings_;
  const std::uint64_t jobs_;
  const TrialRunner& runner_;
  const std::function<void(const SearchProgress&)>& on_change_;
  std::vector<double> rates_ahead_;
  int checks_ = 0;  ///< checks of monotonicity so far
  SearchProgress state_;
};

}  // namespace

SearchProgress search_threshold(const SearchSettings& settings, int jobs, const TrialRunner& runner,
                                const std::function<void(const SearchProgress&)>& on_change) {
  DROPTEST_CHECK(jobs > 0, "a search with no jobs");
  return ThresholdSearch(settings, jobs, runner, on_change).run();
}

}  // namespace droptest::experiments
