// SPDX-License-Identifier: Apache-2.0
// The state of links at their two ends: its counts, and their comparison.
#include "comm/lossy/flows/flow_ledger.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "sim/error.h"
#include "sim/loss/bernoulli.h"

namespace droptest::comm::flow_ledger_test {
namespace {

constexpr sim::Link kLink{sim::TrafficClass::kTpForward, sim::Half::kReduce, 0, 1};

Network network_of(double p) {
  Network network;
  network.seed = 5;
  ClassNetwork of_class;
  of_class.path = "direct";
  of_class.payload_bytes = 64;
  of_class.reduce.loss = std::make_shared<sim::Bernoulli>(p);
  network.of(kLink.traffic_class) = of_class;
  return network;
}

const Flow& flow_of(const FlowLedger& ledger) { return ledger.flows().at({kLink, 0}); }

bool draw(FlowLedger& ledger, const sim::Packetizer& packets, Delivery delivery = Delivery::kByNetwork) {
  CallFates call;
  call.delivery = delivery;
  sim::PacketMask missing;
  return ledger.draw_message(call, kLink, packets, Tally::kCounted, missing);
}

void pass(FlowLedger& ledger, const sim::Packetizer& packets, Delivery delivery = Delivery::kByNetwork) {
  CallFates call;
  call.delivery = delivery;
  ledger.pass_message(call, kLink, packets);
}

TEST(FlowLedger, TheEndThatPassesMessagesChecksEverySixteenth) {
  FlowLedger receiver(network_of(0.3));
  FlowLedger sender(network_of(0.3));
  const sim::Packetizer packets(4000, 4, 64);
  std::vector<int> checked;
  std::uint64_t before = 0;
  for (int message = 0; message < 40; ++message) {
    draw(receiver, packets);
    pass(sender, packets);
    EXPECT_EQ(flow_of(sender).packets, flow_of(receiver).packets);
    EXPECT_EQ(flow_of(sender).check(), flow_of(receiver).check()) << message;
    if (flow_of(sender).check() != before) checked.push_back(message);
    before = flow_of(sender).check();
  }
  EXPECT_EQ(flow_of(sender).tally, nullptr);
  EXPECT_EQ(checked, (std::vector<int>{0, 16, 32}));
  EXPECT_NE(flow_of(receiver).check(), flow_of(receiver).tally->digest());
}

TEST(FlowLedger, ACheckedMessageShowsThatTheEndsDiffer) {
  FlowLedger receiver(network_of(0.3));
  FlowLedger sender(network_of(0.3));
  const sim::Packetizer packets(4000, 4, 64);
  for (int message = 0; message < 33; ++message) {
    if (message > 0) {
      EXPECT_EQ(flow_of(sender).check(), flow_of(receiver).check());
    }
    draw(receiver, packets);
    pass(sender, packets, message == 32 ? Delivery::kCertain : Delivery::kByNetwork);
  }
  EXPECT_NE(flow_of(sender).check(), flow_of(receiver).check());
}

// The error does not depend on the message that was expected next.
TEST(FlowLedger, LinksInAnyOrderHaveTheirOwnFates) {
  FlowLedger ledger(network_of(0.3));
  const sim::Packetizer packets(1000, 4, 64);
  std::array<std::uint64_t, 5> used{};
  for (int message = 0; message < 200; ++message) {
    const auto source = static_cast<std::uint16_t>(message < 20 ? message % 5 : message * message % 11 % 5);
    sim::Link link = kLink;
    link.source = static_cast<std::uint16_t>(source + 2);
    if (message % 7 == 3) {
      CallFates call;
      ledger.pass_message(call, link, packets);
    } else {
      sim::PacketMask want(packets.packets());
      sim::Bernoulli(0.3).draw(5, link, used[source], want);
      CallFates call;
      sim::PacketMask lost;
      ASSERT_TRUE(ledger.draw_message(call, link, packets, Tally::kCounted, lost));
      EXPECT_EQ(lost, want) << message;
    }
    used[source] += packets.packets();
  }
  EXPECT_EQ(ledger.flows().size(), 5U);
}

using Counts = std::map<std::uint64_t, std::uint64_t>;

TEST(FlowLedger, BurstsRunOnAlongALinkUnlessEachMessageIsOnItsOwn) {
  const sim::Packetizer packets(1000, 4, 64);  // 63 packets
  for (const BurstScope scope : {BurstScope::kLink, BurstScope::kMessage}) {
    Network network = network_of(1);
    network.of(kLink.traffic_class)->burst_scope = scope;
    FlowLedger ledger(network);
    for (int message = 0; message < 3; ++message) draw(ledger, packets);
    const LossCounts counts = flow_of(ledger).loss_counts();
    const Counts expected = scope == BurstScope::kLink ? Counts{{189, 1}} : Counts{{63, 3}};
    EXPECT_EQ(counts.bursts, expected);
    EXPECT_EQ(counts.stretches, expected);
  }
}

// Message 2^24 of a group would have the draws of message 0 of the next one.
TEST(LinkPosition, MessagesToEveryDestinationHaveNoDrawsOfAnotherGroup) {
  LinkPosition position;
  position.messages = LinkPosition::kMostMessagesToAll;
  const sim::Link to_one{sim::TrafficClass::kTpForward, sim::Half::kReduce, 0, 1};
  const sim::Link to_all{sim::TrafficClass::kTpForward, sim::Half::kGather, 0};
  const auto place = [&](const sim::Link& link, GroupNumber group) {
    return position.place({link, group}, 1, BurstScope::kMessage, std::nullopt).first_packet;
  };
  EXPECT_NO_THROW(place(to_all, 0));
  ++position.messages;
  EXPECT_NO_THROW(place(to_one, 0));
  for (const GroupNumber group : {GroupNumber{0}, GroupNumber{1}}) EXPECT_THROW(place(to_all, group), ConfigError);
}

TEST(FlowLedger, AMessageThatArrivesForCertainEndsABurst) {
  const sim::Packetizer packets(1000, 4, 64);
  FlowLedger ledger(network_of(1));
  for (int message = 0; message < 5; ++message) {
    draw(ledger, packets, message == 2 ? Delivery::kCertain : Delivery::kByNetwork);
  }
  const LossCounts counts = flow_of(ledger).loss_counts();
  EXPECT_EQ(counts.bursts, (Counts{{126, 2}}));
  EXPECT_EQ(counts.stretches, (Counts{{126, 2}}));
  EXPECT_EQ(counts.lost_packets, 4U * 63);
}

TEST(FlowLedger, CountsNothingWhereNobodyAsks) {
  FlowLedger ledger(network_of(1), Counting::kOff);
  EXPECT_TRUE(draw(ledger, sim::Packetizer(100, 4, 64)));
  EXPECT_EQ(flow_of(ledger).tally, nullptr);
  EXPECT_EQ(flow_of(ledger).loss_counts().packets, 0U);
}

// The times have one entry for each message, and messages that are only forwarded use up their entries, too.
TEST(FlowLedger, PassedMessagesUseUpTheirTimes) {
  FlowLedger ledger(network_of(0));
  SendTimes times;
  CallFates call;
  call.times = &times;
  for (int collective = 0; collective < 8; ++collective) {
    // Three messages of a collective: one of one packet, two of two. Message 16, which is drawn, is the second of its
    // own.
    times.clear();
    for (const std::uint64_t packets : {1U, 2U, 2U}) times.add(kLink, {0, 0, packets, std::nullopt});
    for (const std::uint64_t packets : {1U, 2U, 2U}) {
      ledger.pass_message(call, kLink, sim::Packetizer(16 * packets, 4, 64));
    }
  }
  EXPECT_EQ(call.verdict, Verdict::kLossless);
}

}  // namespace
}  // namespace droptest::comm::flow_ledger_test
