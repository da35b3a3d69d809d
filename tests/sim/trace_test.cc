// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/trace.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>

#include "sim/error.h"
#include "sim/loss/trace_format.h"

namespace droptest::sim::trace_test {
namespace {

const Link kLink{TrafficClass::kTpForward, Half::kReduce, 0, 1};

std::string bits(const PacketMask& mask) {
  std::string text;
  for (std::uint64_t i = 0; i < mask.size(); ++i) text += mask.lost(i) ? '1' : '0';
  return text;
}

std::string error_of(std::string_view contents) {
  try {
    parse_trace(contents, "t");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

std::string bit_file(std::uint64_t packets, const std::string& bytes) {
  std::string file = "DTTRACE1";
  for (int i = 0; i < 8; ++i) file += static_cast<char>(packets >> (8 * i) & 0xff);
  return file + bytes;
}

TEST(TraceFormat, ReadsItsThreeForms) {
  EXPECT_EQ(bits(parse_trace("00 1\t1\r\n# a comment 111\n01 # more\n", "t")), "001101");
  EXPECT_EQ(bits(parse_trace("droptest-trace-runs 1\n2 2 # delivered, lost\n1\n3", "t")), "00110111");
  EXPECT_EQ(bits(parse_trace("droptest-trace-runs 1\n0 2 1", "t")), "110");
  EXPECT_EQ(bits(parse_trace(bit_file(11, "\x05\x06"), "t")), "10100000011");
}

TEST(TraceFormat, FaultsHaveTheirPlace) {
  EXPECT_EQ(error_of("01\n0x"),
            "t: line 2, column 2: got 'x', want 0 (delivered), 1 (lost), blanks or a comment after #");
  EXPECT_EQ(error_of("0\n\x01"),
            "t: line 2, column 1: got byte 1, want 0 (delivered), 1 (lost), blanks or a comment "
            "after #");
  EXPECT_EQ(error_of("# nothing\n"), "t: got a trace of 0 packets, want at least 1");
  EXPECT_EQ(error_of(""), "t: got a trace of 0 packets, want at least 1");
  EXPECT_EQ(error_of("droptest-trace-runs 2\n1 1"),
            "t: line 1, column 21: got version \"2\" of droptest-trace-runs, want 1");
  EXPECT_EQ(error_of("droptest-trace-runs 1\n5 0"),
            "t: line 2, column 3: got \"0\", want the length of a run of lost packets: an integer in [1, 8589934587]");
  EXPECT_EQ(error_of("droptest-trace-runs 1\n5 3\n -1"),
            "t: line 3, column 2: got \"-1\", want the length of a run of delivered packets: an integer in [1, "
            "8589934584]");
  EXPECT_EQ(error_of("droptest-trace-runs 1\n9999999999"),
            "t: line 2, column 1: got \"9999999999\", want the length of a run of delivered packets: an integer in [0, "
            "8589934592]");
  EXPECT_EQ(error_of("droptest-trace-runs"), "t: line 1, column 20: got version \"\" of droptest-trace-runs, want 1");
  EXPECT_EQ(error_of("DTTRACE1"), "t: got 8 bytes, want a header of 16");
  EXPECT_EQ(error_of(bit_file(9, "\x01")), "t: got 17 bytes, want 18 for the 9 packets that the header names");
  EXPECT_EQ(error_of(bit_file(4, "\x11")), "t: byte 16: got bits beyond the last packet, want zeros there");
  EXPECT_NE(error_of(bit_file(std::uint64_t{1} << 60, "")).find("want at most 8589934592"), std::string::npos);
}

PacketMask pseudo_trace(std::uint64_t packets) {
  PacketMask mask(packets);
  for (std::uint64_t i = 0; i < packets; ++i) {
    if (i * i % 7 == 1 || i % 50 > 45) mask.set_lost(i);
  }
  return mask;
}

TEST(Trace, RepeatsItselfFromAnyPlace) {
  for (const std::uint64_t length : {1U, 2U, 63U, 64U, 65U, 1000U, 4096U, 10007U}) {
    const PacketMask fates = pseudo_trace(length);
    const Trace trace(fates, TraceStart::kBeginning, "t");
    for (const std::uint64_t first : {0U, 1U, 63U, 64U, 999U, 12345U}) {
      for (const std::uint64_t packets : {0U, 1U, 64U, 130U, 12000U}) {
        PacketMask mask(packets);
        trace.draw(1, kLink, first, mask);
        for (std::uint64_t i = 0; i < packets; ++i) {
          ASSERT_EQ(mask.lost(i), fates.lost((first + i) % length)) << length << " " << first << " " << i;
        }
        const LostCount count = trace.message_count(1, kLink, {first, 0, 0, {}}, packets);
        ASSERT_EQ(count.mean, static_cast<double>(mask.lost_count()));
        ASSERT_EQ(count.variance, 0);
      }
    }
  }
}

TEST(Trace, CountsFromTheOrigin) {
  const Trace trace(pseudo_trace(100), TraceStart::kBeginning, "t");
  const std::uint64_t origin = std::uint64_t{5} << 48;
  PacketMask mask(300);
  PacketMask expected(300);
  trace.draw_message(1, kLink, {origin + 30, origin, 4, {}}, mask);
  trace.draw(1, kLink, 30, expected);
  EXPECT_EQ(mask, expected);
}

TEST(Trace, LinksStartApartWhereAskedTo) {
  const PacketMask fates = pseudo_trace(10007);
  const Trace trace(fates, TraceStart::kRandom, "t");
  std::set<std::string> seen;
  for (std::uint16_t source = 0; source < 20; ++source) {
    const Link link{TrafficClass::kTpForward, Half::kReduce, source, 40};
    PacketMask mask(10007);
    trace.draw(1, link, 0, mask);
    EXPECT_EQ(mask.lost_count(), fates.lost_count()) << "a whole turn loses what the trace loses";
    seen.insert(bits(mask));
    PacketMask later(100);
    trace.draw(1, link, 10007 + 50, later);
    for (std::uint64_t i = 0; i < 100; ++i) ASSERT_EQ(later.lost(i), mask.lost(50 + i));
    PacketMask short_mask(77);
    trace.draw(1, link, 3, short_mask);
    EXPECT_EQ(trace.message_count(1, link, {3, 0, 0, {}}, 77).mean, static_cast<double>(short_mask.lost_count()));
  }
  EXPECT_EQ(seen.size(), 20U);
  PacketMask a(10007), b(10007);
  trace.draw(1, kLink, 0, a);
  trace.draw(2, kLink, 0, b);
  EXPECT_NE(bits(a), bits(b)) << "the seed moves the start";
}

TEST(Trace, TheoryIsTheTracesOwn) {
  const Trace trace(parse_trace("1100101 0001", "t"), TraceStart::kRandom, "t");  // a circle with bursts of 3, 1, 1
  EXPECT_DOUBLE_EQ(trace.loss_rate(), 5.0 / 11);
  EXPECT_DOUBLE_EQ(trace.mean_burst_packets(), 5.0 / 3);
  EXPECT_DOUBLE_EQ(trace.mean_gap_packets(), 2);
  EXPECT_DOUBLE_EQ(trace.burst_at_least(1), 1);
  EXPECT_DOUBLE_EQ(trace.burst_at_least(2), 1.0 / 3);
  EXPECT_DOUBLE_EQ(trace.burst_at_least(4), 0);
  for (std::uint64_t n = 0; n < 40; ++n) {
    double squares = 0;
    for (std::uint64_t start = 0; start < 11; ++start) {
      const Trace turned(parse_trace("1100101 0001", "t"), TraceStart::kBeginning, "t");
      PacketMask mask(n);
      turned.draw(1, kLink, start, mask);
      const double deviation = static_cast<double>(mask.lost_count()) - static_cast<double>(n) * 5 / 11;
      squares += deviation * deviation / 11;
    }
    EXPECT_NEAR(trace.lost_count_variance(n), squares, 1e-12) << n;
  }
}

TEST(Trace, NothingOrEverythingLost) {
  const Trace none(parse_trace("000", "t"), TraceStart::kBeginning, "t");
  EXPECT_FALSE(none.can_lose());
  EXPECT_EQ(none.mean_burst_packets(), 0);
  EXPECT_EQ(none.mean_gap_packets(), std::numeric_limits<double>::infinity());
  const Trace all(parse_trace("11", "t"), TraceStart::kBeginning, "t");
  EXPECT_EQ(all.loss_rate(), 1);
  EXPECT_EQ(all.mean_burst_packets(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(all.mean_gap_packets(), 0);
  EXPECT_EQ(all.burst_at_least(1000), 1);
}

}  // namespace
}  // namespace droptest::sim::trace_test
