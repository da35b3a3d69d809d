// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/threshold_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/random/mersenne_twister.hpp>
#include <boost/random/normal_distribution.hpp>
#include <cmath>
#include <map>
#include <set>

namespace droptest::experiments::threshold_search_test {
namespace {

using Status = SearchProgress::Status;
using testing::HasSubstr;

constexpr double kThreshold = 0.05;

/// Within the tolerance of 1 % up to kThreshold.
double one_percent_at_threshold(double rate) { return rate / kThreshold; }

/// A simulated training: its loss exceeds that of the lossless twin by a known curve in percent, plus noise of each
/// run.
class FakeTraining {
 public:
  explicit FakeTraining(std::function<double(double)> excess_percent, double noise_percent = 0, unsigned seed = 1)
      : excess_percent_(std::move(excess_percent)), noise_percent_(noise_percent), seed_(seed) {}

  std::vector<Trial> operator()(const std::vector<TrialRequest>& requests) {
    rounds.push_back(requests.size());
    std::vector<Trial> trials;
    for (const TrialRequest& request : requests) {
      const auto key = std::make_pair(request.rate.value_or(0), request.repeat);
      EXPECT_TRUE(asked.insert(key).second) << "rate " << key.first << ", repeat " << key.second << " twice";
      if (!done.contains(key)) ++started;
      trials.push_back(done[key] = trial(key));
    }
    return trials;
  }

  void begin_again() { asked.clear(), rounds.clear(), started = 0; }

  std::map<std::pair<double, std::uint64_t>, Trial> done;
  std::set<std::pair<double, std::uint64_t>> asked;
  std::vector<std::size_t> rounds;
  std::size_t started = 0;

 private:
  Trial trial(const std::pair<double, std::uint64_t>& key) const {
    const auto& [rate, repeat] = key;
    const double twin = 2.5 + 0.1 * static_cast<double>(repeat);  // the spread between seeds cancels in pairs
    if (rate == 0) return {Trial::Status::kCompleted, twin, ""};
    const double excess = excess_percent_(rate);
    if (std::isinf(excess)) return {Trial::Status::kDiverged, 0, ""};
    boost::random::mt19937_64 engine(seed_ * 1000003U + static_cast<unsigned>(repeat) +
                                     static_cast<std::uint64_t>(rate * 1e9) * 97U);
    const double noise = noise_percent_ * boost::random::normal_distribution<double>()(engine);
    return {Trial::Status::kCompleted, twin * (1 + (excess + noise) / 100), ""};
  }

  std::function<double(double)> excess_percent_;
  double noise_percent_;
  unsigned seed_;
};

SearchSettings settings() {
  SearchSettings settings;
  settings.low = 0.001;
  settings.high = 0.5;
  settings.max_runs = 200;
  return settings;
}

SearchProgress find(const SearchSettings& settings, FakeTraining& training, int jobs = 1) {
  return search_threshold(
      settings, jobs, [&training](const std::vector<TrialRequest>& requests) { return training(requests); },
      [](const SearchProgress&) {});
}

TEST(ThresholdSearch, FindsAnExactThresholdToTheResolution) {
  for (const double resolution : {0.3, 0.1, 0.01}) {
    SearchSettings wanted = settings();
    wanted.resolution = resolution;
    FakeTraining training(one_percent_at_threshold);
    const SearchProgress found = find(wanted, training);
    EXPECT_EQ(found.status, Status::kFound);
    ASSERT_TRUE(found.surely_passes && found.surely_fails && found.threshold);
    EXPECT_LE(*found.surely_passes, kThreshold);
    EXPECT_GT(*found.surely_fails, kThreshold);
    EXPECT_LE((*found.surely_fails - *found.surely_passes) / *found.surely_fails, resolution);
    EXPECT_GE(*found.threshold, *found.surely_passes);
    EXPECT_LE(*found.threshold, *found.surely_fails);
    EXPECT_NEAR(*found.threshold, kThreshold, 0.02 * kThreshold) << "interpolated between the last two rates";
    EXPECT_TRUE(found.monotone);
    // Halvings of log(500): 3 seeds of the twin, of both bounds and of each halving.
    const double halvings = std::ceil(std::log2(std::log(500) / -std::log1p(-resolution))) + 1;
    EXPECT_LE(found.runs, 9 + 3 * static_cast<std::uint64_t>(halvings) + 6) << "and two checks of monotonicity";
  }
}

TEST(ThresholdSearch, JudgesByStudentsIntervalOfThePairedDifferences) {
  // Differences of 0, 1 and 2 %: mean 1, s = 1. The quantile of t(2) at p is
  // (2 p - 1) / sqrt(2 p (1 - p)).
  const auto runner = [](const std::vector<TrialRequest>& requests) {
    std::vector<Trial> trials;
    for (const TrialRequest& r : requests) {
      const double twin = 2.0 + static_cast<double>(r.repeat);
      const double percent = r.rate ? static_cast<double>(r.repeat) : 0;
      trials.push_back({Trial::Status::kCompleted, twin * (1 + percent / 100), ""});
    }
    return trials;
  };
  SearchSettings wanted = settings();
  for (const std::uint64_t looks : {1U, 3U}) {
    wanted.max_seeds = 3 * looks;
    const double p = 1 - 0.025 / static_cast<double>(looks);
    const double quantile = (2 * p - 1) / std::sqrt(2 * p * (1 - p));
    std::optional<RateJudgement> first;
    search_threshold(wanted, 1, runner, [&first](const SearchProgress& now) {
      const auto low = now.rates.find(0.001);
      if (!first && low != now.rates.end() && low->second.verdict != Verdict::kNotJudged) first = low->second;
    });
    ASSERT_TRUE(first);
    EXPECT_EQ(first->pairs, 3U);
    EXPECT_NEAR(first->mean_percent, 1, 1e-12);
    EXPECT_NEAR(first->high_percent, 1 + quantile / std::sqrt(3.0), 1e-9);
    EXPECT_NEAR(first->low_percent, 1 - quantile / std::sqrt(3.0), 1e-9);
    EXPECT_EQ(first->verdict, Verdict::kUndecided);
  }
}

TEST(ThresholdSearch, TheIntervalHoldsTheThresholdAsOftenAsItSays) {
  // A side of the interval is wrong if a rate on the wrong side of the threshold is misjudged. The probability is at
  // most 2.5 % for each rate, and only rates within a few standard errors of the tolerance are at risk, two or three on
  // each side.
  int missed = 0;
  int searches = 0;
  double gap = 0;
  std::map<Verdict, int> verdicts;
  for (unsigned seed = 1; seed <= 300; ++seed) {
    FakeTraining training(one_percent_at_threshold, 0.2, seed);
    const SearchProgress found = find(settings(), training);
    ASSERT_TRUE(found.surely_passes && found.surely_fails && found.threshold);
    ++searches;
    if (*found.surely_passes > kThreshold || *found.surely_fails <= kThreshold) ++missed;
    gap += *found.surely_fails / *found.surely_passes;
    for (const auto& [rate, judgement] : found.rates) ++verdicts[judgement.verdict];
  }
  const double allowed = 0.05 * searches;
  EXPECT_LE(missed, allowed + 3 * std::sqrt(allowed)) << "of " << searches;
  EXPECT_LT(gap / searches, 2) << "an interval that is always wide says nothing";
  EXPECT_GT(verdicts[Verdict::kUndecided], searches / 2) << "the noise is large enough to matter";
}

TEST(ThresholdSearch, TheBudgetIsNeverExceededAndNoRunIsAskedForTwice) {
  for (std::uint64_t budget = 9; budget <= 80; budget += 7) {
    for (const int jobs : {1, 2, 4, 16}) {
      SearchSettings wanted = settings();
      wanted.max_runs = budget;
      FakeTraining training(one_percent_at_threshold, 0.3);
      const SearchProgress found = find(wanted, training, jobs);
      EXPECT_LE(training.asked.size(), budget);
      EXPECT_EQ(found.runs, training.asked.size());
      if (budget == 9) {
        EXPECT_EQ(found.status, Status::kBudgetSpent);
        EXPECT_THAT(found.remark, HasSubstr("budget of 9 runs"));
      }
    }
  }
}

TEST(ThresholdSearch, TheSameSearchAgainAsksForTheSameRunsAndEndsTheSameWay) {
  FakeTraining training(one_percent_at_threshold, 0.3);
  const SearchProgress first = find(settings(), training, 4);
  const auto asked = training.asked;
  training.begin_again();
  const SearchProgress second = find(settings(), training, 4);
  EXPECT_EQ(training.started, 0U);
  EXPECT_EQ(training.asked, asked);
  EXPECT_EQ(second.threshold, first.threshold);
  EXPECT_EQ(second.runs, first.runs);
}

TEST(ThresholdSearch, FreeSlotsAreFilledWithTheRatesThatCanComeNext) {
  FakeTraining alone(one_percent_at_threshold);
  const SearchProgress one_by_one = find(settings(), alone, 1);
  FakeTraining wide(one_percent_at_threshold);
  const SearchProgress ahead = find(settings(), wide, 9);
  EXPECT_LT(wide.rounds.size(), alone.rounds.size()) << "some rounds find their runs done";
  EXPECT_EQ(ahead.threshold, one_by_one.threshold);
  EXPECT_EQ(ahead.surely_passes, one_by_one.surely_passes);
  EXPECT_EQ(ahead.surely_fails, one_by_one.surely_fails);
  EXPECT_EQ(wide.rounds[1], 9U);

  SearchSettings tight = settings();
  tight.max_runs = one_by_one.runs;
  FakeTraining thrifty(one_percent_at_threshold);
  EXPECT_EQ(find(tight, thrifty, 9).status, Status::kFound) << "what runs ahead takes nothing from what is needed";
}

TEST(ThresholdSearch, SaysWhenEvenTheLowestRateFailsOrTheHighestPasses) {
  FakeTraining bad([](double) { return 3.0; });
  const SearchProgress low = find(settings(), bad);
  EXPECT_EQ(low.status, Status::kLowFails);
  EXPECT_EQ(low.remark, "even the lowest rate is beyond the tolerance");
  EXPECT_EQ(low.surely_fails, 0.001);
  EXPECT_FALSE(low.surely_passes || low.threshold);

  FakeTraining good([](double) { return 0.5; });
  const SearchProgress high = find(settings(), good);
  EXPECT_EQ(high.status, Status::kHighPasses);
  EXPECT_EQ(high.surely_passes, 0.5);
  EXPECT_FALSE(high.surely_fails || high.threshold);
  EXPECT_EQ(high.runs, 9U);
}

TEST(ThresholdSearch, NoiseThatHidesTheDifferenceLeavesTheIntervalOpen) {
  FakeTraining training(one_percent_at_threshold, 1000);
  const SearchProgress found = find(settings(), training);
  EXPECT_FALSE(found.surely_passes.has_value());
  EXPECT_FALSE(found.surely_fails.has_value());
  for (const auto& [rate, judgement] : found.rates) EXPECT_NE(judgement.verdict, Verdict::kPasses) << rate;
}

TEST(ThresholdSearch, ACurveThatIsNotMonotoneIsReported) {
  // Harmless again between 10 and 30 %. Bisection goes down from its first rate, 2.24 %, and sees nothing of that.
  FakeTraining recovers([](double rate) { return rate < 0.01 || (rate > 0.1 && rate < 0.3) ? 0.1 : 3.0; });
  const SearchProgress above = find(settings(), recovers);
  EXPECT_EQ(above.status, Status::kFound);
  EXPECT_FALSE(above.monotone);
  EXPECT_NEAR(*above.threshold, 0.01, 0.001) << "the lowest crossing is the one that counts";

  // Harmful already between 0.4 and 0.6 %, below the threshold of the bisection.
  FakeTraining dips([](double rate) { return rate > 0.2 || (rate > 0.004 && rate < 0.006) ? 3.0 : 0.1; });
  const SearchProgress below = find(settings(), dips);
  EXPECT_EQ(below.status, Status::kFound);
  EXPECT_FALSE(below.monotone);
  EXPECT_NEAR(*below.surely_fails, 0.004, 0.0005);
  EXPECT_LT(*below.surely_passes, 0.004);

  FakeTraining upside_down([](double rate) { return rate < 0.1 ? 3.0 : 0.1; });
  EXPECT_EQ(find(settings(), upside_down).status, Status::kLowFails);
  EXPECT_FALSE(
      find(settings(), upside_down = FakeTraining([](double rate) { return rate < 0.1 ? 3.0 : 0.1; })).monotone);

  FakeTraining monotone(one_percent_at_threshold);
  EXPECT_TRUE(find(settings(), monotone).monotone);
}

TEST(ThresholdSearch, ARunThatDivergesFailsItsRate) {
  FakeTraining training([](double rate) { return rate > kThreshold ? INFINITY : 0.0; });
  const SearchProgress found = find(settings(), training);
  EXPECT_EQ(found.status, Status::kFound);
  EXPECT_NEAR(*found.threshold, kThreshold, 0.1 * kThreshold);
  EXPECT_GT(*found.surely_fails, kThreshold);
}

std::vector<Trial> all(const std::vector<TrialRequest>& requests, const Trial& of_rates, const Trial& of_twins) {
  std::vector<Trial> trials;
  for (const TrialRequest& r : requests) trials.push_back(r.rate ? of_rates : of_twins);
  return trials;
}

TEST(ThresholdSearch, EndsWhereARunFailsATwinDivergesOrItIsStopped) {
  const Trial fine{Trial::Status::kCompleted, 2.5, ""};
  const Trial failed{Trial::Status::kFailed, 0, "no such file"};
  const Trial diverged{Trial::Status::kDiverged, 0, ""};
  const Trial stopped{};
  const auto outcome = [](const Trial& of_rates, const Trial& of_twins) {
    return search_threshold(
        settings(), 1, [&](const auto& requests) { return all(requests, of_rates, of_twins); },
        [](const SearchProgress&) {});
  };
  EXPECT_EQ(outcome(failed, fine).status, Status::kFailed);
  EXPECT_THAT(outcome(failed, fine).remark, HasSubstr("no such file"));
  EXPECT_EQ(outcome(fine, diverged).status, Status::kFailed);
  EXPECT_THAT(outcome(fine, diverged).remark, HasSubstr("the lossless twin diverged"));
  EXPECT_EQ(outcome(stopped, fine).status, Status::kStopped);
}

}  // namespace
}  // namespace droptest::experiments::threshold_search_test
