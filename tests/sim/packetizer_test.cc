// SPDX-License-Identifier: Apache-2.0
#include "sim/packets/packetizer.h"

#include <gtest/gtest.h>

#include <limits>

#include "sim/error.h"

namespace droptest::sim::packetizer_test {
namespace {

TEST(Packetizer, IsABijection) {
  for (const std::uint64_t elements : {1, 2, 3, 351, 352, 353, 704, 1000}) {
    for (const std::uint64_t payload : {4, 8, 12, 1408, 4096}) {
      const Packetizer cut(elements, 4, payload);
      std::uint64_t next = 0;
      std::uint64_t bytes = 0;
      for (std::uint64_t packet = 0; packet < cut.packets(); ++packet) {
        const ElementRange range = cut.elements(packet);
        EXPECT_EQ(range.begin, next);
        EXPECT_GT(range.size(), 0U);
        EXPECT_LE(4 * range.size(), payload);
        if (packet + 1 < cut.packets()) {
          EXPECT_EQ(4 * range.size(), payload);
        }
        for (std::uint64_t e = range.begin; e < range.end; ++e) EXPECT_EQ(cut.packet_of(e), packet);
        EXPECT_EQ(cut.payload_bytes(packet), 4 * range.size());
        bytes += cut.payload_bytes(packet);
        next = range.end;
      }
      EXPECT_EQ(next, elements);
      EXPECT_EQ(bytes, 4 * elements);
    }
  }
}

TEST(Packetizer, LastPacketIsShort) {
  const Packetizer cut(1000, 8, 1408);
  EXPECT_EQ(cut.elems_per_packet(), 176U);
  EXPECT_EQ(cut.packets(), 6U);
  EXPECT_EQ(cut.elements(5), (ElementRange{880, 1000}));
  EXPECT_EQ(cut.payload_bytes(5), 960U);
  EXPECT_EQ(cut.payload_bytes(4), 1408U);
}

TEST(Packetizer, NoElementsAreNoPackets) {
  const Packetizer cut(0, 4, 1408);
  EXPECT_EQ(cut.packets(), 0U);
  EXPECT_THROW(cut.elements(0), CheckError);
}

TEST(Packetizer, CountsBeyond32BitsAndUpToTheLastElement) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  const Packetizer cut(kMost, 1, 1000);
  EXPECT_EQ(cut.packets(), kMost / 1000 + 1);
  const ElementRange last = cut.elements(cut.packets() - 1);
  EXPECT_EQ(last.end, kMost);
  EXPECT_EQ(last.size(), kMost % 1000);
}

TEST(Packetizer, RefusesPayloadsThatSplitElements) {
  for (const std::uint64_t payload : {0, 3, 6, 1407}) {
    try {
      Packetizer(10, 4, payload);
      FAIL() << payload;
    } catch (const ConfigError& error) {
      EXPECT_EQ(std::string(error.what()), "payload_bytes: got " + std::to_string(payload) +
                                               ", want a positive multiple of 4 (the bytes of an element)");
    }
  }
  EXPECT_THROW(Packetizer(10, 0, 4), CheckError);
}

TEST(Packetizer, RefusesAPacketPastTheEnd) { EXPECT_THROW(Packetizer(10, 4, 8).elements(5), CheckError); }

}  // namespace
}  // namespace droptest::sim::packetizer_test
