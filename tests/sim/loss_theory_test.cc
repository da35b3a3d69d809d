// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "sim/loss/bernoulli.h"
#include "sim/loss/gilbert_elliott.h"
#include "sim/loss/no_loss.h"
#include "tests/sim/vector_file.h"

namespace droptest::sim::loss_theory_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Relative to the larger of the two; rho of an independent process is 0, hence the absolute part.
void expect_close(double got, double want, double relative, const std::string& what) {
  EXPECT_LE(std::fabs(got - want), relative * std::fabs(want) + 1e-15) << what << ": got " << got << ", want " << want;
}

TEST(LossTheory, EqualsTheOracle) {
  const nlohmann::json sets = read_vectors("loss_processes.json")["sets"];
  ASSERT_EQ(sets.size(), 7U);
  for (const auto& entry : sets.items()) {
    const nlohmann::json& set = entry.value();
    const GilbertElliott chain({set["p"], set["r"], set["loss_good"], set["loss_bad"]});
    const auto check = [&](double got, const char* key) {
      expect_close(got, set[key].get<double>(), 1e-12, std::string("set ") + key);
    };
    SCOPED_TRACE(entry.key());
    check(chain.loss_rate(), "p_E");
    check(chain.mean_burst_packets(), "mean_loss_run");
    check(chain.mean_gap_packets(), "mean_gap");
    check(chain.autocorrelation(1), "rho1");
    check(chain.autocorrelation(2), "rho2");
    check(chain.autocorrelation(10), "rho10");
    check(chain.burst_at_least(1) - chain.burst_at_least(2), "P_run_eq1");
    check(chain.burst_at_least(2) - chain.burst_at_least(3), "P_run_eq2");
    check(chain.burst_at_least(5), "P_run_ge5");
    check(chain.gap_at_least(100), "P_gap_ge100");
    EXPECT_EQ(chain.gap_at_least(1), 1);
    check(chain.lost_count_variance(100), "Var100");
    check(chain.lost_count_variance(1000), "Var1000");
    // The limits, from a count so long that the ends no longer matter.
    const double n = 1e15;
    const double variance = chain.lost_count_variance(1000000000000000);
    expect_close(variance / (n * chain.loss_rate()), set["IDC_inf"].get<double>(), 1e-12, "IDC_inf");
    expect_close(variance / (n * chain.loss_rate() * (1 - chain.loss_rate())), set["var_ratio_inf"].get<double>(),
                 1e-12, "var_ratio_inf");
  }
}

TEST(LossTheory, BernoulliEqualsSetA) {
  const nlohmann::json set = read_vectors("loss_processes.json")["sets"]["A"];
  const Bernoulli process(0.01);
  expect_close(process.loss_rate(), set["p_E"], 1e-12, "p_E");
  expect_close(process.mean_burst_packets(), set["mean_loss_run"], 1e-12, "mean_loss_run");
  expect_close(process.mean_gap_packets(), set["mean_gap"], 1e-12, "mean_gap");
  expect_close(process.burst_at_least(5), set["P_run_ge5"], 1e-12, "P_run_ge5");
  expect_close(process.gap_at_least(100), set["P_gap_ge100"], 1e-12, "P_gap_ge100");
  expect_close(process.lost_count_variance(100), set["Var100"], 1e-12, "Var100");
  expect_close(process.lost_count_variance(1000), set["Var1000"], 1e-12, "Var1000");
}

/// The sum over all pairs of packets, from only the autocorrelation.
double summed_variance(const GilbertElliott& chain, int n) {
  const double variance = chain.loss_rate() * (1 - chain.loss_rate());
  double sum = n * variance;
  for (int j = n - 1; j > 0; --j) sum += 2 * variance * (n - j) * chain.autocorrelation(static_cast<std::uint64_t>(j));
  return sum;
}

TEST(LossTheory, CountVarianceIsSoundForSlowFastAndSwappingChains) {
  for (const GilbertElliottRates& rates :
       {GilbertElliottRates{1e-6, 1e-5, 0, 1}, GilbertElliottRates{1e-9, 1e-4, 0, 1},
        GilbertElliottRates{1e-3, 2e-3, 0.1, 0.9}, GilbertElliottRates{0.3, 0.7, 0, 1},
        GilbertElliottRates{0.2, 0.3, 0, 0.5}, GilbertElliottRates{0.99, 0.999, 0, 1},
        GilbertElliottRates{1, 0.5, 0, 1}, GilbertElliottRates{0.1, 0.2, 0.9, 0.3}}) {
    const GilbertElliott chain(rates);
    for (const int n : {1, 2, 3, 10, 64, 100, 5000}) {
      expect_close(chain.lost_count_variance(static_cast<std::uint64_t>(n)), summed_variance(chain, n), 3e-12,
                   chain.describe() + " n=" + std::to_string(n));
    }
    EXPECT_EQ(chain.lost_count_variance(0), 0);
  }
}

TEST(LossTheory, CountVarianceIsContinuousWhereTheSeriesTakesOver) {
  const double s = 1e-3;  // n s = 0.5 at n = 500
  const GilbertElliott chain({0.25 * s, 0.75 * s, 0, 1});
  for (const int n : {498, 499, 500, 501, 502}) {
    expect_close(chain.lost_count_variance(static_cast<std::uint64_t>(n)), summed_variance(chain, n), 1e-12, "n");
  }
}

/// P(burst >= m) by following the state shares packet by packet.
double followed_burst(const GilbertElliottRates& c, int packets) {
  const double p = c.p_good_to_bad, r = c.p_bad_to_good, g = c.loss_good, b = c.loss_bad;
  const double delivered_good = r / (p + r) * (1 - g), delivered_bad = p / (p + r) * (1 - b);
  double good = delivered_good * (1 - p) + delivered_bad * r;
  double bad = delivered_good * p + delivered_bad * (1 - r);
  const double begins = good * g + bad * b;
  for (int i = 1; i < packets; ++i) {
    const double lost_good = good * g, lost_bad = bad * b;
    good = lost_good * (1 - p) + lost_bad * r;
    bad = lost_good * p + lost_bad * (1 - r);
  }
  return (good * g + bad * b) / begins;
}

TEST(LossTheory, BurstLawSumsToTheMeanAndEqualsThePathSum) {
  for (const GilbertElliottRates& rates :
       {GilbertElliottRates{0.02, 0.2, 0.005, 0.6}, GilbertElliottRates{0.6, 0.7, 0.1, 0.8},
        GilbertElliottRates{0.005, 0.3, 0, 0.65}, GilbertElliottRates{0.3, 0.01, 0.4, 0},
        GilbertElliottRates{0.1, 1, 0, 1}, GilbertElliottRates{0.05, 0.05, 0.9, 0.2}}) {
    const GilbertElliott chain(rates);
    double mean = 0;
    for (int m = 1; m < 3000; ++m) {
      const double tail = chain.burst_at_least(static_cast<std::uint64_t>(m));
      mean += tail;
      if (m <= 40) expect_close(tail, followed_burst(rates, m), 1e-12, chain.describe() + " m=" + std::to_string(m));
    }
    expect_close(mean, chain.mean_burst_packets(), 1e-12, chain.describe());
  }
}

TEST(LossTheory, TinyRatesKeepTheirDigits) {
  const GilbertElliott chain({1e-9, 1e-3, 0, 1});
  expect_close(chain.loss_rate(), 1e-9 / (1e-9 + 1e-3), 1e-15, "rate");
  expect_close(chain.mean_burst_packets(), 1000, 1e-14, "burst");
  expect_close(chain.mean_gap_packets(), 1e9, 1e-14, "gap");
  expect_close(chain.burst_at_least(1001), std::exp(1000 * std::log1p(-1e-3)), 1e-13, "tail");
  const Bernoulli rare(1e-9);
  EXPECT_DOUBLE_EQ(rare.mean_gap_packets(), 1e9);
  expect_close(rare.lost_count_variance(1000000), 1e-3 * (1 - 1e-9), 1e-15, "variance");
}

TEST(LossTheory, RateAndBurstGiveBackThemselves) {
  for (const double loss : {1e-6, 0.01, 0.05, 0.2, 0.4, 0.5}) {
    for (const double burst : {1.5, 2.0, 8.0, 100.0, 5000.0}) {
      const GilbertElliottRates rates = rates_of_burst(loss, burst);
      if (rates.p_good_to_bad < 1e-9) continue;
      const GilbertElliott chain(rates);
      expect_close(chain.loss_rate(), loss, 1e-14, "rate");
      expect_close(chain.mean_burst_packets(), burst, 1e-14, "burst");
      expect_close(chain.mean_gap_packets(), burst * (1 - loss) / loss, 1e-13, "gap");
    }
  }
  // The burst of independent loss gives independent loss.
  const GilbertElliott independent(rates_of_burst(0.25, 1 / 0.75));
  EXPECT_NEAR(independent.autocorrelation(1), 0, 1e-15);
  expect_close(independent.lost_count_variance(1000), Bernoulli(0.25).lost_count_variance(1000), 1e-12, "variance");
}

TEST(LossTheory, NothingLostAndEverythingLost) {
  const NoLoss none;
  const Bernoulli never(0), always(1);
  const GilbertElliott never_bad({0, 0.5, 0, 1}), never_lost({0.2, 0.3, 0, 0}), stuck({0.5, 0, 0, 1}),
      lost_in_both({0.2, 0.3, 1, 1});
  for (const LossProcess* process :
       {static_cast<const LossProcess*>(&none), static_cast<const LossProcess*>(&never),
        static_cast<const LossProcess*>(&never_bad), static_cast<const LossProcess*>(&never_lost)}) {
    SCOPED_TRACE(process->describe());
    EXPECT_FALSE(process->can_lose());
    EXPECT_EQ(process->loss_rate(), 0);
    EXPECT_EQ(process->mean_burst_packets(), 0);
    EXPECT_EQ(process->mean_gap_packets(), kInfinity);
    EXPECT_EQ(process->burst_at_least(1), 0);
    EXPECT_EQ(process->lost_count_variance(1000), 0);
  }
  for (const LossProcess* process : {static_cast<const LossProcess*>(&always), static_cast<const LossProcess*>(&stuck),
                                     static_cast<const LossProcess*>(&lost_in_both)}) {
    SCOPED_TRACE(process->describe());
    EXPECT_EQ(process->loss_rate(), 1);
    EXPECT_EQ(process->mean_burst_packets(), kInfinity);
    EXPECT_EQ(process->mean_gap_packets(), 0);
    EXPECT_EQ(process->burst_at_least(1), 1);
    EXPECT_EQ(process->burst_at_least(1000), 1);
    EXPECT_EQ(process->lost_count_variance(1000), 0);
  }
  EXPECT_EQ(never_bad.autocorrelation(0), 1);
  EXPECT_EQ(never_bad.autocorrelation(1), 0);
}

}  // namespace
}  // namespace droptest::sim::loss_theory_test
