// SPDX-License-Identifier: Apache-2.0
// Codes of values: their bytes, their range and their mean.
#include "comm/lossy/compression/block_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "sim/error.h"

namespace droptest::comm::block_codec_test {
namespace {

constexpr std::uint64_t kSeed = 7;

sim::PhiloxEngine draws() { return {kSeed, sim::Purpose::kRounding, 3}; }

std::vector<double> values(std::size_t count) {
  std::vector<double> result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = std::sin(1.7 * static_cast<double>(i)) * std::pow(10, i % 5);
  return result;
}

std::vector<double> decoded(const Compression& compression, const std::vector<double>& of, sim::PhiloxEngine engine) {
  BlockCodec codec(compression);
  std::vector<double> result(of.size());
  codec.decode(codec.encode(ConstTensor(std::span<const double>(of)), engine), Tensor(std::span(result)));
  return result;
}

// The format again, byte by byte.
std::vector<std::uint8_t> naive_bytes(const std::vector<double>& of, std::size_t block, int bits) {
  std::vector<std::uint8_t> bytes;
  sim::PhiloxEngine engine = draws();
  const double most = bits == 8 ? 127 : 7;
  for (std::size_t begin = 0; begin < of.size(); begin += block) {
    const std::size_t end = std::min(of.size(), begin + block);
    double largest = 0;
    for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(of[i]));
    auto scale = static_cast<float>(largest / most);
    if (static_cast<double>(scale) < largest / most) scale = std::nextafter(scale, 1e30F);
    std::uint32_t word = 0;
    std::memcpy(&word, &scale, 4);
    for (int b = 0; b < 4; ++b) bytes.push_back(static_cast<std::uint8_t>(word >> (8 * b)));
    std::vector<int> codes;
    for (std::size_t i = begin; i < end; ++i) {
      const double exact = scale > 0 ? of[i] / static_cast<double>(scale) : 0;
      const double low = std::floor(exact);
      codes.push_back(static_cast<int>(low) + (static_cast<double>(engine()) / 0x1p32 < exact - low ? 1 : 0));
    }
    if (bits == 8) {
      for (const int code : codes) bytes.push_back(static_cast<std::uint8_t>(code));
    } else {
      for (std::size_t i = 0; i < codes.size(); i += 2) {
        const int high = i + 1 < codes.size() ? codes[i + 1] : 0;
        bytes.push_back(static_cast<std::uint8_t>((codes[i] & 15) | ((high & 15) << 4)));
      }
    }
  }
  return bytes;
}

TEST(BlockCodec, BytesAreThoseOfTheFormat) {
  for (const int bits : {8, 4}) {
    for (const std::size_t count : {1U, 2U, 7U, 8U, 9U, 64U, 101U}) {
      const Compression compression{bits == 8 ? CompressionKind::kInt8 : CompressionKind::kInt4, 7};
      const std::vector<double> of = values(count);
      BlockCodec codec(compression);
      sim::PhiloxEngine engine = draws();
      const auto message = codec.encode(ConstTensor(std::span<const double>(of)), engine);
      const std::vector<std::uint8_t> naive = naive_bytes(of, 7, bits);
      ASSERT_EQ(message.size(), naive.size()) << bits << " bits, " << count;
      EXPECT_EQ(message.size(), coding_of(compression, ElementType::kFloat64).bytes(count));
      EXPECT_EQ(std::memcmp(message.data(), naive.data(), naive.size()), 0) << bits << " bits, " << count;
    }
  }
}

TEST(BlockCodec, MultiplesOfTheScaleAndZerosAreExact) {
  for (const CompressionKind kind : {CompressionKind::kInt8, CompressionKind::kInt4}) {
    const int most = kind == CompressionKind::kInt8 ? 127 : 7;
    std::vector<double> of;
    for (int code = -most; code <= most; ++code) of.push_back(0.25 * code);
    EXPECT_EQ(decoded({kind, of.size()}, of, draws()), of);
    const std::vector<double> zeros(9, 0.0);
    EXPECT_EQ(decoded({kind, 4}, zeros, draws()), zeros);
  }
  const std::vector<double> halves = {1.5, -0.375, 0, 2, 65280};
  EXPECT_EQ(decoded({CompressionKind::kFloat16}, halves, draws()), halves);
  EXPECT_EQ(decoded({CompressionKind::kBfloat16}, halves, draws()), halves);
}

// Mean of n draws of a value between two codes: variance f (1 - f) scale^2 / n.
TEST(BlockCodec, TheMeanOverDrawsIsTheValue) {
  constexpr int kTrials = 20000;
  const std::vector<double> of = {1.0, 0.3141, -0.777, 0.05, -0.0031};
  for (const CompressionKind kind : {CompressionKind::kInt8, CompressionKind::kInt4}) {
    const double scale = 1.0 / (kind == CompressionKind::kInt8 ? 127 : 7);
    std::vector<double> sums(of.size());
    BlockCodec codec({kind, of.size()});
    sim::PhiloxEngine engine = draws();
    std::vector<double> result(of.size());
    for (int trial = 0; trial < kTrials; ++trial) {
      codec.decode(codec.encode(ConstTensor(std::span<const double>(of)), engine), Tensor(std::span(result)));
      for (std::size_t i = 0; i < of.size(); ++i) sums[i] += result[i];
    }
    for (std::size_t i = 1; i < of.size(); ++i) {
      const double fraction = of[i] / scale - std::floor(of[i] / scale);
      const double deviation = scale * std::sqrt(fraction * (1 - fraction) / kTrials);
      EXPECT_LT(std::abs(sums[i] / kTrials - of[i]) / deviation, 4.5) << i;
    }
  }
}

TEST(BlockCodec, ABlockWithAnInfinityIsNotANumber) {
  std::vector<double> of = values(12);
  of[5] = std::numeric_limits<double>::infinity();
  const std::vector<double> result = decoded({CompressionKind::kInt8, 4}, of, draws());
  for (std::size_t i = 0; i < of.size(); ++i) EXPECT_EQ(std::isnan(result[i]), i >= 4 && i < 8) << i;
}

TEST(ElementCoding, SizesOfBlocksAndPackets) {
  const sim::ElementCoding int4{256, 4, 4};
  EXPECT_EQ(int4.bytes(0), 0U);
  EXPECT_EQ(int4.bytes(1), 5U);
  EXPECT_EQ(int4.bytes(256), 132U);
  EXPECT_EQ(int4.bytes(259), 138U);
  const sim::Packetizer packets(10000, int4, 1408, 40000);  // 10 blocks in a packet
  EXPECT_EQ(packets.elems_per_packet(), 2560U);
  EXPECT_EQ(packets.packets(), 4U);
  EXPECT_EQ(packets.payload_bytes(0), 1320U);
  EXPECT_EQ(packets.payload_bytes(3), int4.bytes(10000 - 3 * 2560));
  EXPECT_EQ(packets.bytes(), 3 * 1320 + packets.payload_bytes(3));
  EXPECT_EQ(packets.content_bytes(), 40000U);
  EXPECT_THROW(sim::Packetizer(1, int4, 128, 4), ConfigError);
}

}  // namespace
}  // namespace droptest::comm::block_codec_test
