// SPDX-License-Identifier: Apache-2.0
// Interleaving and the randomised Hadamard transform: the places of a lost packet's elements.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "sim/error.h"
#include "sim/packets/interleaver.h"
#include "sim/packets/packetizer.h"
#include "sim/recovery/hadamard.h"

namespace droptest::sim::spreading_test {
namespace {

TEST(Interleaver, IsABijectionForEveryLengthAndStride) {
  for (const std::uint64_t stride : {1U, 2U, 3U, 8U}) {
    for (const std::uint64_t per_packet : {1U, 4U, 5U}) {
      const Interleaver interleaver(stride, per_packet);
      for (std::uint64_t count = 0; count <= 60; ++count) {
        std::vector<std::uint64_t> message(count);
        std::iota(message.begin(), message.end(), 0U);
        std::vector<std::uint64_t> sent(count, 999);
        interleaver.spread(std::as_bytes(std::span(message)), std::as_writable_bytes(std::span(sent)), 8);
        for (std::uint64_t e = 0; e < count; ++e) ASSERT_EQ(sent[interleaver.place(e, count)], e);
        std::vector<std::uint64_t> back(count);
        interleaver.gather(std::as_bytes(std::span(sent)), std::as_writable_bytes(std::span(back)), 8);
        ASSERT_EQ(back, message);
        std::vector<float> values(message.begin(), message.end());
        std::vector<float> spread(count);
        interleaver.spread(std::as_bytes(std::span(values)), std::as_writable_bytes(std::span(spread)), 4);
        for (std::uint64_t i = 0; i < count; ++i) ASSERT_EQ(spread[i], static_cast<float>(sent[i]));
        const std::vector<std::uint16_t> words(message.begin(), message.end());
        std::vector<std::uint16_t> spread_words(count);
        interleaver.spread(std::as_bytes(std::span(words)), std::as_writable_bytes(std::span(spread_words)), 2);
        for (std::uint64_t i = 0; i < count; ++i) ASSERT_EQ(spread_words[i], sent[i]);
      }
    }
  }
}

TEST(Interleaver, APacketHasEveryStrideThElementOfItsGroup) {
  const Interleaver interleaver(4, 8);
  const Packetizer packets(64, 4, 32);
  for (std::uint64_t e = 0; e < 64; ++e) {
    EXPECT_EQ(packets.packet_of(interleaver.place(e, 64)), e / 32 * 4 + e % 4) << e;
  }
  EXPECT_EQ(Interleaver(1, 8).place(13, 64), 13U);
  EXPECT_THROW(Interleaver(0, 8), ConfigError);
}

std::vector<double> ramp(std::size_t count) {
  std::vector<double> x(count);
  for (std::size_t i = 0; i < count; ++i) x[i] = std::sin(0.37 * static_cast<double>(i)) + 0.2;
  return x;
}

double energy(const std::vector<double>& x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return sum;
}

TEST(RandomisedHadamard, IsItsDefinition) {
  // y_j = sum over i of (-1)^popcount(i & j) d_i x_i / sqrt(b); the signs d from the transform of unit vectors.
  RandomisedHadamard transform(7, 0, 8);
  std::vector<double> sign(8);
  for (std::size_t i = 0; i < 8; ++i) {
    std::vector<double> unit(8);
    unit[i] = 1;
    transform.forward(std::span(unit));
    sign[i] = unit[0] * std::sqrt(8.0);
    EXPECT_NEAR(std::abs(sign[i]), 1, 1e-15);
    for (std::size_t j = 0; j < 8; ++j) {
      const double h = __builtin_popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? 1 : -1;
      EXPECT_NEAR(unit[j], h * sign[i] / std::sqrt(8.0), 1e-15);
    }
  }
}

TEST(RandomisedHadamard, PreservesEnergyAndComesBack) {
  for (const std::uint64_t block : {2U, 64U, 1024U, 16384U}) {
    for (const std::size_t count : {0U, 1U, 3U, 100U, 1024U, 5000U, 40000U}) {
      RandomisedHadamard transform(7, 0, block);
      const std::vector<double> x = ramp(count);
      std::vector<double> y = x;
      transform.forward(std::span(y));
      EXPECT_NEAR(energy(y), energy(x), 1e-11 * (1 + energy(x)));
      transform.inverse(std::span(y));
      for (std::size_t i = 0; i < count; ++i) ASSERT_NEAR(y[i], x[i], 1e-13) << block << " " << count;
    }
  }
}

TEST(RandomisedHadamard, IsLinearAndDependsOnThePositionAlone) {
  RandomisedHadamard a(7, 0, 256);
  RandomisedHadamard b(7, 0, 256);
  std::vector<double> x = ramp(600);
  std::vector<double> y(x.rbegin(), x.rend());
  std::vector<double> sum(600);
  for (std::size_t i = 0; i < 600; ++i) sum[i] = x[i] + y[i];
  std::vector<double> first(x.begin(), x.begin() + 512);
  a.forward(std::span(sum));
  b.forward(std::span(first));  // signs are drawn for a shorter message first
  b.forward(std::span(x));
  b.forward(std::span(y));
  for (std::size_t i = 0; i < 600; ++i) ASSERT_NEAR(sum[i], x[i] + y[i], 1e-12);
  for (std::size_t i = 0; i < 512; ++i) ASSERT_EQ(first[i], x[i]);
  std::vector<double> other = ramp(600);
  RandomisedHadamard(8, 0, 256).forward(std::span(other));
  EXPECT_NE(other, x) << "another seed has other signs";
}

/// The share of signs that are negative, and of neighbours that differ, is a half.
TEST(RandomisedHadamard, SignsAreFair) {
  const std::size_t count = 1 << 16;
  std::vector<double> ones(count, 1);
  RandomisedHadamard(7, 0, 2).forward(std::span(ones));  // (d0 + d1, d0 - d1) / sqrt(2)
  double zeros = 0;
  for (std::size_t i = 0; i < count; i += 2) zeros += std::abs(ones[i]) < 1e-9 ? 1 : 0;
  EXPECT_LT(std::abs(zeros - count / 4.0) / std::sqrt(count / 8.0), 4);
}

/// A burst of losses becomes small noise: its energy stays, and it is spread evenly.
TEST(RandomisedHadamard, SpreadsABurstOverItsBlock) {
  const std::vector<double> x = ramp(4096);
  std::vector<double> plain = x;
  std::vector<double> spread = x;
  RandomisedHadamard transform(7, 0, 4096);
  transform.forward(std::span(spread));
  double lost_energy = 0;
  for (std::size_t i = 1000; i < 1410; ++i) {  // a tenth
    lost_energy += spread[i] * spread[i];
    plain[i] = 0;
    spread[i] = 0;
  }
  transform.inverse(std::span(spread));
  double error = 0;
  double worst = 0;
  double worst_plain = 0;
  for (std::size_t i = 0; i < 4096; ++i) {
    error += (spread[i] - x[i]) * (spread[i] - x[i]);
    worst = std::max(worst, std::abs(spread[i] - x[i]));
    worst_plain = std::max(worst_plain, std::abs(plain[i] - x[i]));
  }
  EXPECT_NEAR(error, lost_energy, 1e-10);
  EXPECT_NEAR(error / energy(x), 0.1, 0.03) << "a tenth of the coefficients carries about a tenth of the energy";
  EXPECT_GT(worst_plain, 1.19) << "all of an element";
  EXPECT_LT(worst, 5 * std::sqrt(error / 4096)) << "nowhere far above the root mean square";
  // Spread over elements: the variance of the squared error, in units of its mean, is that of noise.
  double fourth = 0;
  double fourth_plain = 0;
  for (std::size_t i = 0; i < 4096; ++i) {
    fourth += std::pow(spread[i] - x[i], 4);
    fourth_plain += std::pow(plain[i] - x[i], 4);
  }
  double error_plain = 0;
  for (std::size_t i = 1000; i < 1410; ++i) error_plain += x[i] * x[i];
  const double kurtosis = fourth * 4096 / (error * error);
  const double kurtosis_plain = fourth_plain * 4096 / (error_plain * error_plain);
  EXPECT_NEAR(kurtosis, 3, 0.5) << "that of a normal distribution";
  EXPECT_GT(kurtosis_plain, 12);
}

TEST(RandomisedHadamard, RefusesBlocksThatAreNoPowersOfTwo) {
  for (const std::uint64_t block : {0U, 1U, 3U, 1000U, 1U << 25})
    EXPECT_THROW(RandomisedHadamard(1, 0, block), ConfigError);
}

}  // namespace
}  // namespace droptest::sim::spreading_test
