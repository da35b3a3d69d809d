// SPDX-License-Identifier: Apache-2.0
// Each protocol's walk along the slots of a link, against the closed forms of tests/vectors/retransmission.json and
// those of its budget.
#include "sim/recovery/retransmission.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/gilbert_elliott.h"
#include "sim/loss/pattern.h"
#include "sim/loss/schedule.h"
#include "sim/time/link_cost.h"
#include "tests/sim/timing_formulas.h"
#include "tests/sim/vector_file.h"

namespace droptest::sim::retransmission_test {
namespace {

constexpr std::uint64_t kSeed = 7;
constexpr Link kLink{TrafficClass::kTpForward, Half::kReduce, 0, 1};
// Slots that one message never reaches, so that messages are independent.
constexpr int kMessageShift = 36;

Parameters protocol(const std::string& name, const std::vector<std::pair<const char*, Parameters::Value>>& more = {}) {
  Parameters::Members members;
  members.emplace("protocol", Parameters(name, "spec.json: /time/reliable/protocol"));
  for (const auto& entry : more) {
    members.emplace(entry.first, Parameters(entry.second, "spec.json: /time/reliable/" + std::string(entry.first)));
  }
  return {std::move(members), "spec.json: /time/reliable"};
}

// Mean over messages, with its standard error.
struct Mean {
  double sum = 0;
  double squares = 0;
  double n = 0;
  void add(double x) {
    sum += x;
    squares += x * x;
    ++n;
  }
  double mean() const { return sum / n; }
  // Four standard errors, and the sum of ten events of this size: rare ones may not have been seen at all.
  double bound(double event) const { return 4 * std::sqrt((squares / n - mean() * mean()) / (n - 1)) + 10 * event / n; }
  double z(double expected) const {
    const double variance = (squares / n - mean() * mean()) / (n - 1);
    return (mean() - expected) / std::sqrt(variance);
  }
};

// One message with its first packet in slot `first`; sets the packets that stay missing.
Repair walk(const LinkRecovery& protocol, const LossProcess& process, std::uint64_t first, std::uint64_t packets,
            const LinkTiming& timing, PacketMask& missing) {
  const MessagePosition place{first, 0, 0, std::nullopt};
  PacketMask lost(protocol.first_packets(packets));
  process.draw_message(kSeed, kLink, place, lost);
  missing.resize(packets);
  return protocol.recover(lost, draws_by_slot(process, kSeed, kLink, place), timing, missing);
}

template <class Value>
Mean over_messages(const Retransmission& protocol, const LossProcess& process, std::uint64_t packets,
                   const LinkTiming& timing, std::uint64_t messages, const Value& value) {
  Mean mean;
  PacketMask missing;
  for (std::uint64_t message = 0; message < messages; ++message) {
    mean.add(value(walk(protocol, process, message << kMessageShift, packets, timing, missing)));
    if (protocol.is_reliable()) {
      EXPECT_FALSE(missing.any_lost());
    }
  }
  return mean;
}

TEST(Retransmission, RoundsOfSelectiveRepeatFollowTheOracle) {
  const auto vectors = read_vectors("retransmission.json");
  for (const auto& row : vectors.at("selective_repeat_rounds")) {
    const double p = row.at("p");
    const std::uint64_t packets = row.at("packets");
    const auto selective = make_retransmission(protocol("selective_repeat"));
    const std::uint64_t messages = packets > 10000 ? 400 : 4000;
    const Mean rounds = over_messages(*selective, Bernoulli(p), packets, {1, 10}, messages,
                                      [](const Repair& d) { return static_cast<double>(d.rounds); });
    EXPECT_LT(std::abs(rounds.z(row.at("rounds"))), 4) << row;
  }
}

TEST(Retransmission, SelectiveRepeatSendsEachPacketAGeometricNumberOfTimes) {
  const auto selective = make_retransmission(protocol("selective_repeat"));
  const LinkTiming timing{2e-6, 50e-6};
  const Bernoulli process(0.1);
  const Mean sent = over_messages(*selective, process, 100, timing, 4000,
                                  [](const Repair& d) { return static_cast<double>(100 + d.resent_packets); });
  EXPECT_LT(std::abs(sent.z(100 / 0.9)), 4);
  const Mean extra =
      over_messages(*selective, process, 100, timing, 4000, [](const Repair& d) { return d.extra_seconds(2e-6); });
  EXPECT_LT(std::abs(extra.z(selective->expected_extra_seconds(0.1, 100, timing))), 4);
  EXPECT_NEAR(selective->expected_extra_seconds(0.1, 100, timing), 100 * 2e-6 / 9 + 1.74021022 * 50e-6, 1e-12);
}

TEST(Retransmission, ATimeoutTakesThePlaceOfTheRoundTrip) {
  const auto acknowledged = make_retransmission(protocol("selective_repeat"));
  const auto timed = make_retransmission(protocol("selective_repeat", {{"timeout_microseconds", 100.0}}));
  const LinkTiming timing{1e-6, 10e-6};
  const Bernoulli process(0.05);
  PacketMask missing;
  const Repair quick = walk(*acknowledged, process, 0, 500, timing, missing);
  const Repair slow = walk(*timed, process, 0, 500, timing, missing);
  ASSERT_GE(quick.rounds, 2U);
  EXPECT_NEAR(quick.waiting_seconds, static_cast<double>(quick.rounds - 1) * 10e-6, 1e-15);
  EXPECT_NEAR(slow.waiting_seconds, static_cast<double>(slow.rounds - 1) * 100e-6, 1e-15);
}

TEST(Retransmission, SlotsOfGoBackNFollowTheOracle) {
  const auto vectors = read_vectors("retransmission.json");
  for (const auto& row : vectors.at("go_back_n_slots")) {
    const double p = row.at("p");
    const std::uint64_t packets = row.at("packets");
    const std::int64_t window = row.at("window");
    const double slots = row.at("slots");
    const auto go_back = make_retransmission(protocol("go_back_n", {{"window_packets", window}}));
    EXPECT_NEAR(go_back->expected_extra_seconds(p, packets, {1, 0}) + static_cast<double>(packets), slots, 0.005);
    const Mean mean = over_messages(*go_back, Bernoulli(p), packets, {1, 0}, 2000, [packets](const Repair& d) {
      return static_cast<double>(packets) + d.extra_slots;
    });
    EXPECT_LT(std::abs(mean.z(slots)), 4) << row;
  }
}

TEST(Retransmission, TheWindowOfGoBackNIsARoundTripUnlessGiven) {
  const auto given = make_retransmission(protocol("go_back_n", {{"window_packets", std::int64_t{26}}}));
  const auto by_round_trip = make_retransmission(protocol("go_back_n"));
  const LinkTiming timing{2e-6, 50e-6};
  EXPECT_EQ(by_round_trip->expected_extra_seconds(0.01, 1000, timing),
            given->expected_extra_seconds(0.01, 1000, timing));
}

TEST(Retransmission, SlotsOfGoBack0FollowTheOracle) {
  const auto vectors = read_vectors("retransmission.json");
  for (const auto& row : vectors.at("go_back_0_slots")) {
    const double p = row.at("p");
    const std::uint64_t packets = row.at("packets");
    const double slots = row.at("slots");
    const auto restart = make_retransmission(protocol("go_back_0", {{"window_packets", std::int64_t{1}}}));
    EXPECT_NEAR(restart->expected_extra_seconds(p, packets, {1, 0}) + static_cast<double>(packets), slots, 0.0006);
    const Mean mean = over_messages(*restart, Bernoulli(p), packets, {1, 0}, 2000, [packets](const Repair& d) {
      return static_cast<double>(packets) + d.extra_slots;
    });
    EXPECT_LT(std::abs(mean.z(slots)), 4) << row;
  }
  const auto wide = make_retransmission(protocol("go_back_0", {{"window_packets", std::int64_t{20}}}));
  const Mean extra =
      over_messages(*wide, Bernoulli(0.01), 100, {1, 0}, 4000, [](const Repair& d) { return d.extra_seconds(1); });
  EXPECT_LT(std::abs(extra.z(wide->expected_extra_seconds(0.01, 100, {1, 0}))), 4);
}

TEST(Retransmission, TimersThatDoubleFollowTheOracle) {
  const auto row = read_vectors("retransmission.json").at("backoff_waits").at(0);
  const double p = row.at("p");
  const auto timeout =
      make_retransmission(protocol("timeout", {{"timeout_microseconds", 1e6}, {"longest_timeout_microseconds", 1e12}}));
  const LinkTiming timing{1e-9, 0};
  EXPECT_NEAR(timeout->expected_extra_seconds(p, 1, timing), row.at("timeouts").get<double>(), 1e-9);
  const Mean one =
      over_messages(*timeout, Bernoulli(p), 1, timing, 40000, [](const Repair& d) { return d.waiting_seconds; });
  EXPECT_LT(std::abs(one.z(row.at("timeouts"))), 4);
  const Mean many =
      over_messages(*timeout, Bernoulli(p), 50, timing, 20000, [](const Repair& d) { return d.extra_seconds(1e-9); });
  EXPECT_LT(std::abs(many.z(timeout->expected_extra_seconds(p, 50, timing))), 4);
}

// If there were no longest timer, the mean would not exist from p = 1/2 on, and a walk at 90 % came to 1e18 seconds.
TEST(Retransmission, TimersDoubleUpToTheLongest) {
  const double p = 0.9;
  const auto timeout =
      make_retransmission(protocol("timeout", {{"timeout_microseconds", 1e6}, {"longest_timeout_microseconds", 8e6}}));
  const LinkTiming timing{1e-9, 0};
  // 1 + 2 + 4 s after the first three rounds, 8 s after each further one: p + 2 p^2 + 4 p^3 + 8 p^4 / (1 - p).
  EXPECT_NEAR(timeout->expected_extra_seconds(p, 1, timing), p + 2 * p * p + 4 * p * p * p + 8 * std::pow(p, 4) / 0.1,
              1e-6);
  const Mean waits =
      over_messages(*timeout, Bernoulli(p), 1, timing, 20000, [](const Repair& d) { return d.waiting_seconds; });
  EXPECT_LT(std::abs(waits.z(timeout->expected_extra_seconds(p, 1, timing))), 4);
  const auto unbounded = make_retransmission(protocol("timeout", {{"timeout_microseconds", 1e6}}));
  const Bernoulli process(0.99);
  PacketMask missing;
  const Repair repair = walk(*unbounded, process, 0, 3000, {1e-9, 0}, missing);
  EXPECT_GT(repair.rounds, 200U);
  EXPECT_LE(repair.waiting_seconds, 60.0 * static_cast<double>(repair.rounds)) << "RFC 6298: a minute at most";
}

TEST(Retransmission, TimesBeyondAllSlotsStayIntegers) {
  EXPECT_EQ(whole_slots(3.8e18, 1e-7), std::uint64_t{1'000'000'000'000'000'000});
  EXPECT_EQ(whole_slots(std::numeric_limits<double>::infinity(), 1), std::uint64_t{1'000'000'000'000'000'000});
  EXPECT_EQ(whole_slots(-1, 1), 0U);
  EXPECT_EQ(whole_slots(0, 1), 0U);
  EXPECT_EQ(whole_slots(7.9, 2), 3U);
}

TEST(Retransmission, ExpectedTriesSayWhatCannotGetAcross) {
  const auto restart = make_retransmission(protocol("go_back_0"));
  const auto selective = make_retransmission(protocol("selective_repeat"));
  EXPECT_NEAR(restart->expected_tries(Bernoulli(0.01), 100), std::pow(0.99, -100), 1e-12);
  EXPECT_GT(restart->expected_tries(Bernoulli(0.01), 8523), 1e36) << "3 million floats";
  EXPECT_NEAR(selective->expected_tries(Bernoulli(0.01), 8523), 1 / 0.99, 1e-12);
  EXPECT_EQ(restart->expected_tries(Pattern(1, 9, 0), 10), std::numeric_limits<double>::infinity());
  EXPECT_NEAR(restart->expected_tries(Pattern(1, 9, 0), 9), 10, 1e-12);
  // A burst ends the try: gaps of mean 100 packets.
  const GilbertElliott bursts(rates_of_burst(0.05, 5));
  EXPECT_NEAR(restart->expected_tries(bursts, 200), std::pow(1 - 1.0 / 95, -199) / 0.95, 1e-9);
  // The mean number of tries of a walk.
  const Mean tries = over_messages(*restart, Bernoulli(0.02), 100, {1, 10}, 4000,
                                   [](const Repair& d) { return static_cast<double>(d.rounds); });
  EXPECT_LT(std::abs(tries.z(restart->expected_tries(Bernoulli(0.02), 100))), 4);
  std::vector<Phase> phases;
  phases.push_back({0, std::make_unique<Bernoulli>(0.01)});
  phases.push_back({9, std::make_unique<Bernoulli>(0.2)});
  phases.push_back({10, std::make_unique<Bernoulli>(0.1)});
  EXPECT_NEAR(selective->expected_tries(Schedule(std::move(phases), "schedule"), 5), 1 / 0.8, 1e-12);
}

TEST(Retransmission, AWalkThatDoesNotEndIsGivenUp) {
  const auto restart = make_retransmission(protocol("go_back_0", {{"window_packets", std::int64_t{10}}}));
  const Pattern never(1, 9, 0);
  PacketMask missing;
  try {
    walk(*restart, never, 0, 10, {1, 0}, missing);
    FAIL() << "a packet of every ten is lost, and ten have to arrive";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("a message of 10 packets is still not across after 140000 rounds"),
              std::string::npos)
        << error.what();
  }
}

TEST(Retransmission, RepetitionsMeetTheBurstThatLostThePacket) {
  const auto vectors = read_vectors("retransmission.json");
  for (const auto& row : vectors.at("gilbert_transmissions")) {
    const GilbertElliott process({row.at("p_good_to_bad"), row.at("p_bad_to_good"), 0, 1});
    const std::uint64_t between = row.at("slots_between");
    const double expected = row.at("transmissions");
    EXPECT_NEAR(gilbert_mean_transmissions(row.at("p_good_to_bad"), row.at("p_bad_to_good"), between), expected, 6e-9);
    // One packet; with this round trip its repetition comes `between` slots later.
    const auto selective = make_retransmission(protocol("selective_repeat"));
    const Mean sent = over_messages(*selective, process, 1, {1, static_cast<double>(between - 1)}, 20000,
                                    [](const Repair& d) { return static_cast<double>(1 + d.resent_packets); });
    EXPECT_LT(std::abs(sent.z(expected)), 4) << row;
  }
}

TEST(Retransmission, ALosslessLinkTakesTheSlotsOfThePackets) {
  const Bernoulli lossless(0);
  for (const RetransmissionEntry& entry : retransmission_protocols()) {
    const bool timed = entry.protocol == "timeout";
    const auto made =
        make_retransmission(timed ? protocol(std::string(entry.protocol), {{"timeout_microseconds", 100.0}})
                                  : protocol(std::string(entry.protocol)));
    PacketMask missing;
    const Repair repair = walk(*made, lossless, 0, 3000, {1e-6, 1e-5}, missing);
    EXPECT_EQ(repair.extra_slots, 0) << entry.protocol;
    EXPECT_EQ(repair.resent_packets, 0U) << entry.protocol;
    EXPECT_EQ(repair.rounds, 1U) << entry.protocol;
    EXPECT_EQ(repair.extra_seconds(1e-6), 0) << entry.protocol;
    EXPECT_EQ(made->expected_extra_seconds(0, 3000, {1e-6, 1e-5}), 0) << entry.protocol;
    EXPECT_EQ(walk(*made, lossless, 0, 0, {1e-6, 1e-5}, missing).extra_slots, 0) << entry.protocol;
  }
}

TEST(Retransmission, WrongProtocolsSayWhatIsAllowed) {
  const auto error_of = [](const Parameters& parameters) -> std::string {
    try {
      make_retransmission(parameters);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of(protocol("tcp")),
            "spec.json: /time/reliable/protocol: got \"tcp\", want one of selective_repeat, go_back_n, go_back_0, "
            "timeout");
  EXPECT_EQ(error_of(protocol("timeout")), "spec.json: /time/reliable/timeout_microseconds: is missing");
  EXPECT_NE(error_of(protocol("go_back_n", {{"window_packets", std::int64_t{0}}})).find("window_packets"),
            std::string::npos);
  EXPECT_NE(error_of(protocol("selective_repeat", {{"window_packets", std::int64_t{9}}})).find("window_packets"),
            std::string::npos);
}

// The mean number of packets that stay missing, and the mean extra time, under a budget.
TEST(Retransmission, BudgetsFollowTheirExpectations) {
  const LinkTiming timing{1, 12};
  for (const RetransmissionEntry& entry : retransmission_protocols()) {
    for (const std::int64_t rounds : {1, 2, 5}) {
      std::vector<std::pair<const char*, Parameters::Value>> more = {{"rounds", rounds}};
      if (entry.protocol == "timeout") more.emplace_back("timeout_microseconds", 3e6);
      const auto made = make_retransmission(protocol(std::string(entry.protocol), more));
      EXPECT_FALSE(made->is_reliable());
      for (const double p : {0.02, 0.3}) {
        const Bernoulli process(p);
        constexpr std::uint64_t kPackets = 60;
        Mean missing_share;
        Mean seconds;
        PacketMask missing;
        for (std::uint64_t message = 0; message < 4000; ++message) {
          const Repair repair = walk(*made, process, message << kMessageShift, kPackets, timing, missing);
          missing_share.add(static_cast<double>(missing.lost_count()) / kPackets);
          seconds.add(repair.extra_seconds(timing.slot_seconds));
          ASSERT_LE(static_cast<double>(repair.resent_packets), repair.extra_slots) << made->describe();
          ASSERT_DOUBLE_EQ(repair.wire_seconds(timing.slot_seconds) + repair.idle_seconds(timing.slot_seconds),
                           repair.extra_seconds(timing.slot_seconds));
          EXPECT_LE(repair.rounds, static_cast<std::uint64_t>(rounds) + 1);
        }
        const std::string what = made->describe() + " at " + std::to_string(p);
        EXPECT_LE(std::abs(missing_share.mean() - made->expected_missing(p, kPackets)),
                  missing_share.bound(1.0 / kPackets))
            << what;
        EXPECT_LE(std::abs(seconds.mean() - made->expected_extra_seconds(p, kPackets, timing)),
                  seconds.bound(timing.slot_seconds * static_cast<double>(timing.window_slots())))
            << what;
      }
    }
  }
  // Computed by hand: p^3 after two rounds; one of two packets in order is missing, or both.
  EXPECT_NEAR(SelectiveRepeat(2).expected_missing(0.1, 9), 1e-3, 1e-15);
  EXPECT_NEAR(GoBackN(1, 1).expected_missing(0.5, 2), 1 - (0.75 + 0.5) / 2, 1e-12);
  EXPECT_NEAR(GoBack0(1, 1).expected_missing(0.5, 2), 9.0 / 16, 1e-15);
}

// Each repetition has its slot whatever else was lost, so that fewer losses leave less missing.
TEST(Retransmission, WhatIsMissingIsMonotoneInTheLossRateAlongSlotsToo) {
  std::vector<std::shared_ptr<const Retransmission>> protocols;
  protocols.push_back(std::make_shared<SelectiveRepeat>(1));
  protocols.push_back(std::make_shared<SelectiveRepeat>(2, Parity({4, 1, 1})));
  protocols.push_back(std::make_shared<SelectiveRepeat>(2, std::nullopt, RepeatTimer{3, 9}));
  protocols.push_back(std::make_shared<GoBackN>(3));
  protocols.push_back(std::make_shared<GoBack0>(4));
  for (const auto& made : protocols) {
    std::uint64_t total = 0;
    for (std::uint64_t message = 0; message < 300; ++message) {
      PacketMask at_less(60);
      for (const double rate : {0.02, 0.05, 0.1}) {
        const GilbertElliott process(rates_of_burst(rate, 3));
        PacketMask missing;
        walk(*made, process, message << kMessageShift, 60, {1, 7}, missing);
        for (std::uint64_t i = 0; i < 60; ++i) ASSERT_LE(at_less.lost(i), missing.lost(i)) << made->describe();
        total += missing.lost_count();
        at_less = missing;
      }
    }
    EXPECT_GT(total, 0U) << made->describe();
  }
}

// The first transmission of packet i and its repetitions have the fates of the link's own slots.
TEST(Retransmission, SlotsAreTheProcessesOwn) {
  const Bernoulli process(0.3);
  constexpr std::uint64_t kFirst = 12345;
  constexpr std::uint64_t kPackets = 40;
  PacketMask line(1000);
  process.draw(kSeed, kLink, kFirst, line);
  const LinkTiming timing{2, 20};
  PacketMask missing;
  walk(SelectiveRepeat(1), process, kFirst, kPackets, timing, missing);
  for (std::uint64_t i = 0; i < kPackets; ++i) {
    EXPECT_EQ(missing.lost(i), line.lost(i) && line.lost(kPackets + 10 + i)) << i;
  }
  const Repair repair = walk(GoBackN(1), process, kFirst, kPackets, timing, missing);
  std::uint64_t taken = 0;
  while (!line.lost(taken)) ++taken;
  while (taken < kPackets && !line.lost(taken + 11)) ++taken;
  for (std::uint64_t i = 0; i < kPackets; ++i) EXPECT_EQ(missing.lost(i), i >= taken) << i;
  EXPECT_EQ(repair.extra_slots, 11);
}

}  // namespace
}  // namespace droptest::sim::retransmission_test
