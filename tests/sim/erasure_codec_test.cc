// SPDX-License-Identifier: Apache-2.0
// What parity repairs is bitwise what was sent, for every pattern of losses.
#include "sim/recovery/erasure_codec.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "sim/error.h"

namespace droptest::sim {
namespace {

using Packet = std::vector<std::byte>;

std::vector<Packet> packets(std::size_t count, std::size_t bytes, unsigned salt) {
  std::vector<Packet> result(count, Packet(bytes));
  std::uint32_t state = 12345 + salt;
  for (Packet& packet : result) {
    for (std::byte& b : packet) {
      state = state * 1664525 + 1013904223;
      b = static_cast<std::byte>(state >> 24);
    }
  }
  return result;
}

std::vector<std::byte*> pointers(std::vector<Packet>& of) {
  std::vector<std::byte*> result;
  for (Packet& packet : of) result.push_back(packet.data());
  return result;
}
std::vector<const std::byte*> readers(const std::vector<Packet>& of) {
  std::vector<const std::byte*> result;
  for (const Packet& packet : of) result.push_back(packet.data());
  return result;
}

/// Encodes one block, loses every subset of its packets in turn, and compares with the rule for masks.
void lose_every_pattern(const ParityCode& code, std::size_t data_packets, std::size_t bytes) {
  const ErasureCodec codec(code);
  const Parity rule(code);
  const std::vector<Packet> sent = packets(data_packets, bytes, static_cast<unsigned>(code.data * 16 + code.parity));
  std::vector<Packet> parity(code.parity, Packet(bytes));
  codec.encode(readers(sent), pointers(parity), bytes);
  const std::size_t n = data_packets + code.parity;
  const Packet garbage(bytes, std::byte{0xa5});
  for (unsigned pattern = 0; pattern < (1U << n); ++pattern) {
    std::vector<Packet> data = sent;
    std::vector<Packet> arrived_parity = parity;
    std::vector<bool> lost(n);
    PacketMask mask(n);
    for (std::size_t i = 0; i < n; ++i) {
      if ((pattern >> i & 1) == 0) continue;
      lost[i] = true;
      mask.set_lost(i);
      (i < data_packets ? data[i] : arrived_parity[i - data_packets]) = garbage;
    }
    PacketMask missing(data_packets);
    rule.recover(mask, {}, {}, missing);
    std::size_t lost_data = 0;
    for (std::size_t i = 0; i < data_packets; ++i) lost_data += lost[i] ? 1 : 0;
    const bool decoded = codec.decode(pointers(data), readers(arrived_parity), lost, bytes);
    ASSERT_EQ(decoded, static_cast<std::size_t>(__builtin_popcount(pattern)) <= code.parity) << pattern;
    if (lost_data > 0) {
      ASSERT_EQ(decoded, !missing.any_lost()) << "the mask's rule and the code disagree";
    }
    for (std::size_t i = 0; i < data_packets; ++i) {
      ASSERT_EQ(data[i], decoded || !lost[i] ? sent[i] : garbage) << pattern << ", packet " << i;
    }
  }
}

TEST(ErasureCodec, RestoresEveryPatternItCanBitwise) {
  for (const std::uint64_t k : {1U, 2U, 4U, 6U}) {
    for (const std::uint64_t m : {1U, 2U, 3U, 4U}) lose_every_pattern({k, m, 1}, k, 64);
  }
  lose_every_pattern({8, 3, 1}, 8, 1408);
  lose_every_pattern({3, 2, 1}, 3, 1);
  lose_every_pattern({3, 2, 1}, 3, 37);
}

TEST(ErasureCodec, ShorterLastBlocksUseTheSameCode) {
  for (std::size_t data = 1; data < 8; ++data) lose_every_pattern({8, 2, 1}, data, 40);
  for (std::size_t data = 1; data < 5; ++data) lose_every_pattern({5, 1, 1}, data, 40);
}

TEST(ErasureCodec, OneParityPacketIsTheXorOfTheData) {
  const ErasureCodec codec({5, 1, 1});
  const std::vector<Packet> sent = packets(5, 100, 1);
  std::vector<Packet> parity(1, Packet(100));
  codec.encode(readers(sent), pointers(parity), 100);
  for (std::size_t i = 0; i < 100; ++i) {
    std::byte x{0};
    for (const Packet& packet : sent) x ^= packet[i];
    ASSERT_EQ(parity[0][i], x);
  }
}

TEST(ErasureCodec, TheLongestCodeRepairsASpreadOfPatterns) {
  const ErasureCodec codec({200, 55, 1});
  const std::vector<Packet> sent = packets(200, 16, 9);
  std::vector<Packet> parity(55, Packet(16));
  codec.encode(readers(sent), pointers(parity), 16);
  for (std::size_t start = 0; start < 255; start += 17) {
    std::vector<Packet> data = sent;
    std::vector<bool> lost(255);
    for (std::size_t i = 0; i < 55; ++i) lost[(start + 4 * i) % 255] = true;
    for (std::size_t i = 0; i < 200; ++i) {
      if (lost[i]) data[i].assign(16, std::byte{0});
    }
    ASSERT_TRUE(codec.decode(pointers(data), readers(parity), lost, 16));
    ASSERT_EQ(data, sent) << start;
  }
}

TEST(ErasureCodec, RefusesSizesThatNoCodeHas) { EXPECT_THROW(ErasureCodec({200, 100, 1}), ConfigError); }

}  // namespace
}  // namespace droptest::sim
