// SPDX-License-Identifier: Apache-2.0
// Drawn fates against the theory of their process. Every bound is a number of standard deviations that theory, or the
// spread over independent streams, gives; seeds are fixed.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <memory>
#include <vector>

#include "sim/loss/bernoulli.h"
#include "sim/loss/burst_histogram.h"
#include "sim/loss/gilbert_elliott.h"

namespace droptest::sim::loss_statistics_test {
namespace {

constexpr std::uint64_t kStreams = 200;
constexpr std::uint64_t kPackets = 100000;

/// Streams that differ in seed, class, half or ranks.
std::uint64_t seed_of(std::uint64_t stream) { return stream % 8; }
Link link_of(std::uint64_t stream) {
  return {kAllTrafficClasses[stream / 8 % 5], stream / 40 % 2 == 0 ? Half::kReduce : Half::kGather,
          static_cast<std::uint16_t>(stream / 80), static_cast<std::uint16_t>(3 + stream % 3)};
}

struct Case {
  std::unique_ptr<LossProcess> process;
  std::array<double, 3> autocorrelation;  ///< autocorrelation at kLags
};
constexpr std::array<std::uint64_t, 3> kLags = {1, 2, 10};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const double p : {0.001, 0.01, 0.2, 0.9}) all.push_back({std::make_unique<Bernoulli>(p), {0, 0, 0}});
  for (const GilbertElliottRates& rates :
       {GilbertElliottRates{0.01, 0.25, 0, 1}, GilbertElliottRates{0.001, 0.2, 0, 1},
        GilbertElliottRates{0.005, 0.3, 0, 0.65}, GilbertElliottRates{0.001, 0.45, 0.0001, 0.86},
        GilbertElliottRates{0.02, 0.2, 0.005, 0.6}, GilbertElliottRates{0.05, 0.45, 0, 1},
        GilbertElliottRates{0.6, 0.7, 0.1, 0.8}, GilbertElliottRates{0.9, 0.8, 0, 1},
        GilbertElliottRates{0.3, 0.7, 0, 1}, rates_of_burst(0.05, 8), rates_of_burst(0.4, 8)}) {
    auto chain = std::make_unique<GilbertElliott>(rates);
    const std::array<double, 3> rho = {chain->autocorrelation(kLags[0]), chain->autocorrelation(kLags[1]),
                                       chain->autocorrelation(kLags[2])};
    all.push_back({std::move(chain), rho});
  }
  return all;
}

PacketMask stream_mask(const LossProcess& process, std::uint64_t stream, std::uint64_t packets) {
  PacketMask mask(packets);
  process.draw(seed_of(stream), link_of(stream), 1000 * stream, mask);
  return mask;
}

/// Mean and its standard error from independent values.
struct Estimate {
  double sum = 0;
  double squares = 0;
  double n = 0;
  void add(double x) {
    sum += x;
    squares += x * x;
    n += 1;
  }
  double mean() const { return sum / n; }
  double variance() const { return (squares - sum * sum / n) / (n - 1); }
  double z(double want) const { return (mean() - want) / std::sqrt(variance() / n); }
};

TEST(LossStatistics, RatesDeviateAsTheCountVarianceSays) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.process->describe());
    const double expected = static_cast<double>(kPackets) * c.process->loss_rate();
    const double deviation = std::sqrt(c.process->lost_count_variance(kPackets));
    double sum = 0;
    double squares = 0;
    for (std::uint64_t s = 0; s < kStreams; ++s) {
      const double lost = static_cast<double>(stream_mask(*c.process, s, kPackets).lost_count());
      const double z = (lost - expected) / deviation;
      EXPECT_LT(std::fabs(z), 5) << "stream " << s;
      sum += z;
      squares += z * z;
    }
    const double m = static_cast<double>(kStreams);
    EXPECT_LT(std::fabs(sum / m), 4 / std::sqrt(m));
    // The standard deviation of this root mean square is 0.05: five of them.
    EXPECT_GT(std::sqrt(squares / m), 0.75);
    EXPECT_LT(std::sqrt(squares / m), 1.25);
  }
}

/// Number of t with packets t and t + lag both lost.
std::uint64_t joint_losses(const PacketMask& mask, const PacketMask& later) {
  std::uint64_t count = 0;
  for (std::size_t w = 0; w < mask.words().size(); ++w) {
    count += static_cast<std::uint64_t>(std::popcount(mask.words()[w] & later.words()[w]));
  }
  return count;
}

TEST(LossStatistics, AutocorrelationIsThatOfTheory) {
  for (const Case& c : cases()) {
    const double p = c.process->loss_rate();
    for (std::size_t k = 0; k < kLags.size(); ++k) {
      Estimate joint;
      for (std::uint64_t s = 0; s < kStreams; ++s) {
        PacketMask later(kPackets);
        c.process->draw(seed_of(s), link_of(s), 1000 * s + kLags[k], later);
        joint.add(static_cast<double>(joint_losses(stream_mask(*c.process, s, kPackets), later)) /
                  static_cast<double>(kPackets));
      }
      EXPECT_LT(std::fabs(joint.z(p * p + p * (1 - p) * c.autocorrelation[k])), 5)
          << c.process->describe() << " at lag " << kLags[k];
    }
  }
}

TEST(LossStatistics, BurstsAndGapsHaveTheirMean) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.process->describe());
    // Losses, bursts and deliveries per stream; the ratios' errors come from the residuals over the streams.
    std::vector<std::array<double, 3>> streams;
    std::array<double, 3> total{};
    for (std::uint64_t s = 0; s < kStreams; ++s) {
      PacketMask next(kPackets);
      const PacketMask mask = stream_mask(*c.process, s, kPackets);
      c.process->draw(seed_of(s), link_of(s), 1000 * s + 1, next);
      const double lost = static_cast<double>(mask.lost_count());
      // A burst ends at t if t is lost and t + 1 is not, so there is no edge effect.
      const std::array<double, 3> counts = {lost, lost - static_cast<double>(joint_losses(mask, next)),
                                            static_cast<double>(kPackets) - lost};
      for (std::size_t i = 0; i < 3; ++i) total[i] += counts[i];
      streams.push_back(counts);
    }
    const auto z = [&](std::size_t i, double want) {
      Estimate residual;
      for (const std::array<double, 3>& counts : streams) residual.add(counts[i] - want * counts[1]);
      return residual.z(0);
    };
    EXPECT_LT(std::fabs(z(0, c.process->mean_burst_packets())), 5) << total[0] / total[1];
    EXPECT_LT(std::fabs(z(2, c.process->mean_gap_packets())), 5) << total[2] / total[1];
  }
}

TEST(LossStatistics, CountsOfShortWindowsHaveTheirVariance) {
  constexpr std::uint64_t kWindow = 256;
  for (const Case& c : cases()) {
    const double mean = static_cast<double>(kWindow) * c.process->loss_rate();
    Estimate squared_deviation;
    for (std::uint64_t s = 0; s < kStreams; ++s) {
      const PacketMask mask = stream_mask(*c.process, s, kPackets);
      // Every fourth window: 768 packets between, after which all these chains have forgotten.
      for (std::size_t w = 0; w + 4 <= mask.words().size(); w += 16) {
        int lost = 0;
        for (std::size_t i = 0; i < 4; ++i) lost += std::popcount(mask.words()[w + i]);
        squared_deviation.add((lost - mean) * (lost - mean));
      }
    }
    EXPECT_LT(std::fabs(squared_deviation.z(c.process->lost_count_variance(kWindow))), 5) << c.process->describe();
  }
}

/// Chi-square of observed burst lengths 1 to kBins - 1 and longer, as a standard normal.
/// Source: Wilson and Hilferty 1931, the cube root of chi-square over its degrees of freedom.
constexpr std::size_t kBins = 8;
double burst_law_z(const LossProcess& process, const std::array<std::uint64_t, kBins>& observed) {
  double bursts = 0;
  for (const std::uint64_t o : observed) bursts += static_cast<double>(o);
  double chi_square = 0;
  for (std::size_t i = 0; i < kBins; ++i) {
    const double share = process.burst_at_least(i + 1) - (i + 1 < kBins ? process.burst_at_least(i + 2) : 0);
    const double expected = bursts * share;
    EXPECT_GT(expected, 5) << "a bin too small for chi-square";
    const double difference = static_cast<double>(observed[i]) - expected;
    chi_square += difference * difference / expected;
  }
  const double k = kBins - 1;
  return (std::cbrt(chi_square / k) - (1 - 2 / (9 * k))) / std::sqrt(2 / (9 * k));
}

TEST(LossStatistics, BurstLengthsFollowTheirLaw) {
  for (const GilbertElliottRates& rates :
       {GilbertElliottRates{0.01, 0.25, 0, 1}, GilbertElliottRates{0.02, 0.2, 0.005, 0.6},
        GilbertElliottRates{0.6, 0.4, 0.3, 0.8}, GilbertElliottRates{0.8, 0.7, 0.3, 0.8}}) {
    const GilbertElliott process(rates);
    // Bursts that begin at every 100th packet: so far apart that they are independent, also with noise in both states.
    std::array<std::uint64_t, kBins> observed{};
    for (std::uint64_t s = 0; s < 40; ++s) {
      const PacketMask mask = stream_mask(process, s, 1000000);
      for (std::uint64_t t = 1; t + 64 < mask.size(); t += 100) {
        if (mask.lost(t - 1) || !mask.lost(t)) continue;
        std::size_t length = 1;
        while (length < kBins && mask.lost(t + length)) ++length;
        ++observed[length - 1];
      }
    }
    EXPECT_LT(burst_law_z(process, observed), 5) << process.describe();
  }
}

TEST(LossStatistics, GapsOfSimpleGilbertAreGeometric) {
  const GilbertElliott process({0.05, 0.3, 0, 1});
  // P(gap >= m) = (1 - p)^(m - 1), counted over gaps that begin at every 200th packet.
  double gaps = 0;
  double long_gaps = 0;
  for (std::uint64_t s = 0; s < 40; ++s) {
    const PacketMask mask = stream_mask(process, s, 1000000);
    for (std::uint64_t t = 1; t + 64 < mask.size(); t += 200) {
      if (!mask.lost(t - 1) || mask.lost(t)) continue;
      std::uint64_t length = 1;
      while (length < 20 && !mask.lost(t + length)) ++length;
      gaps += 1;
      long_gaps += length >= 20 ? 1 : 0;
    }
  }
  const double share = std::pow(0.95, 19);
  EXPECT_LT(std::fabs(long_gaps - gaps * share) / std::sqrt(gaps * share * (1 - share)), 5);
}

TEST(LossStatistics, StationaryFromTheFirstPacket) {
  constexpr int kTrials = 100000;
  for (const GilbertElliottRates& rates :
       {GilbertElliottRates{0.01, 0.25, 0, 1}, GilbertElliottRates{0.02, 0.2, 0.005, 0.6},
        GilbertElliottRates{0.6, 0.7, 0.1, 0.8}, GilbertElliottRates{0.9, 0.8, 0, 1}, rates_of_burst(0.4, 50)}) {
    const GilbertElliott process(rates);
    int lost = 0;
    int first_two = 0;
    PacketMask mask(2);
    for (int seed = 0; seed < kTrials; ++seed) {
      process.draw(static_cast<std::uint64_t>(seed), link_of(3), 0, mask);
      lost += mask.lost(0) ? 1 : 0;
      first_two += mask.lost(0) && mask.lost(1) ? 1 : 0;
    }
    const double p = process.loss_rate();
    EXPECT_LT(std::fabs(lost - kTrials * p) / std::sqrt(kTrials * p * (1 - p)), 5) << process.describe();
    const double both = p * p + p * (1 - p) * process.autocorrelation(1);
    EXPECT_LT(std::fabs(first_two - kTrials * both) / std::sqrt(kTrials * both * (1 - both)), 5) << process.describe();
  }
}

}  // namespace
}  // namespace droptest::sim::loss_statistics_test
