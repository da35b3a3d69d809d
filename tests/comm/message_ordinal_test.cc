// SPDX-License-Identifier: Apache-2.0
// Messages with a place on their link that both ends compute.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/lossy/flows/flow_ledger.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/loss/gilbert_elliott.h"
#include "tests/comm/lossy_recovery.h"
#include "tests/comm/timed_network.h"

namespace droptest::comm::message_ordinal_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kFloats = 300;  // 19 packets, the last one short

LossyOptions bursty(BurstScope scope) {
  ClassNetwork network = recovery_network("direct", 0, 0.2);
  network.gather.loss = std::make_shared<sim::GilbertElliott>(sim::GilbertElliottRates{0.05, 0.2, 0, 1});
  network.burst_scope = scope;
  return recovery_options(network);
}

// The values that rank 1 receives of rank 0's messages, by ordinal; and the digest of the class's fates.
std::map<std::uint64_t, Floats> received(const LossyOptions& options, const std::vector<std::uint64_t>& order,
                                         std::uint64_t* digest = nullptr) {
  std::map<std::uint64_t, Floats> result;
  run_ranks(2, kRecoveryTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    for (const std::uint64_t ordinal : order) {
      Floats data = recovery_values(static_cast<int>(ordinal), 0, kFloats);
      const Message message{kRecoveryClass, "activation", 0, ordinal};
      if (inner.rank() == 0) {
        lossy.send(std::span<const float>(data), 1, message);
      } else {
        lossy.recv(std::span(data), 0, message);
        result[ordinal] = data;
      }
    }
    lossy.verify_fates();
    const auto statistics = lossy.collect_statistics(LinkDetail::kOmit);
    if (inner.rank() == 1 && digest != nullptr) *digest = statistics.at(0).digest;
  });
  return result;
}

TEST(MessageOrdinal, FatesDoNotDependOnTheOrderOfTheMessages) {
  for (const BurstScope scope : {BurstScope::kLink, BurstScope::kMessage}) {
    const LossyOptions options = bursty(scope);
    const auto in_order = received(options, {0, 1, 2, 3, 16, 32});
    EXPECT_EQ(received(options, {32, 3, 0, 16, 2, 1}), in_order);
    EXPECT_EQ(received(options, {2}).at(2), in_order.at(2)) << "others need not be sent";
    EXPECT_NE(std::count(in_order.at(0).begin(), in_order.at(0).end(), 0.0F),
              std::count(in_order.at(1).begin(), in_order.at(1).end(), 0.0F));
  }
}

TEST(MessageOrdinal, InOrderThePlacesAreThoseOfMessagesWithoutOne) {
  for (const BurstScope scope : {BurstScope::kLink, BurstScope::kMessage}) {
    Network network = bursty(scope).network;
    FlowLedger with(network);
    FlowLedger without(network);
    const sim::Link link{kRecoveryClass, sim::Half::kGather, 0, 1};
    const sim::Packetizer packets(kFloats, 4, 64);
    for (std::uint64_t ordinal = 0; ordinal < 40; ++ordinal) {
      CallFates plain;
      CallFates numbered;
      numbered.ordinal = ordinal;
      sim::PacketMask a;
      sim::PacketMask b;
      ASSERT_EQ(without.draw_message(plain, link, packets, Tally::kCounted, a),
                with.draw_message(numbered, link, packets, Tally::kCounted, b));
      if (plain.verdict == Verdict::kLossy) {
        ASSERT_EQ(a, b);
      }
    }
    const LossCounts counts = with.flows().at({link, 0}).loss_counts();
    const LossCounts plain = without.flows().at({link, 0}).loss_counts();
    EXPECT_EQ(counts.bursts, plain.bursts);
    EXPECT_EQ(counts.gaps, plain.gaps);
    EXPECT_EQ(counts.stretches, plain.stretches);
    EXPECT_EQ(counts.lost_packets, plain.lost_packets);
    EXPECT_EQ(counts.expected_lost, plain.expected_lost);
    EXPECT_DOUBLE_EQ(counts.expected_lost_variance, plain.expected_lost_variance);
  }
}

TEST(MessageOrdinal, TheClocksRepetitionsKeepThePlace) {
  LossyOptions options = options_of("direct", 0.4, model_of());
  apply_recovery(*options.network.of(kClass), protocol("selective_repeat", 2));
  const auto result = [&](const std::vector<std::uint64_t>& order) {
    std::map<std::uint64_t, Floats> of_ordinal;
    run_ranks(2, kRecoveryTimeout, [&](Communicator& inner) {
      LossyCommunicator lossy(inner, options);
      for (const std::uint64_t ordinal : order) {
        Floats data = recovery_values(static_cast<int>(ordinal), 0, 4096);
        const Message message{kClass, "activation", 0, ordinal};
        if (inner.rank() == 0) {
          lossy.send(std::span<const float>(data), 1, message);
        } else {
          lossy.recv(std::span(data), 0, message);
          of_ordinal[ordinal] = data;
        }
      }
      lossy.verify_fates();
    });
    return of_ordinal;
  };
  const auto in_order = result({0, 1, 2});
  EXPECT_EQ(result({2, 0, 1}), in_order);
  EXPECT_NE(std::count(in_order.at(1).begin(), in_order.at(1).end(), 0.0F), 0);
}

struct MicroBatches {
  std::vector<std::uint64_t> order;  // order of the ordinals
  bool is_blocking = false;
};
struct Traffic {
  std::map<std::uint64_t, Floats> activations;  // activations of rank 0 that rank 1 receives
  std::map<std::uint64_t, Floats> gradients;    // gradients of rank 1 that rank 0 receives
  std::uint64_t digest = 0;
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

// Rank 0 starts all its sends, then all its receives; rank 1 a receive and a send in turns. Each waits backwards.
Traffic started(const LossyOptions& options, const MicroBatches& batches) {
  Traffic traffic;
  run_ranks(2, kRecoveryTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    const int other = 1 - lossy.rank();
    std::map<std::uint64_t, Floats> sent;
    std::map<std::uint64_t, Floats> received;
    std::vector<Work> works;
    const auto begin = [&](Work work) {
      if (batches.is_blocking) work.wait();
      works.push_back(std::move(work));
    };
    const auto send = [&](std::uint64_t ordinal) {
      sent[ordinal] = recovery_values(static_cast<int>(ordinal), lossy.rank(), kFloats);
      begin(lossy.start_send(std::span<const float>(sent[ordinal]), other,
                             {kRecoveryClass, "sent " + std::to_string(ordinal + 100 * lossy.rank()), 0, ordinal}));
    };
    const auto receive = [&](std::uint64_t ordinal) {
      received[ordinal].resize(kFloats);
      begin(lossy.start_recv(std::span(received[ordinal]), other,
                             {kRecoveryClass, "sent " + std::to_string(ordinal + 100 * other), 0, ordinal}));
    };
    if (lossy.rank() == 0) {
      for (const std::uint64_t ordinal : batches.order) send(ordinal);
    }
    for (const std::uint64_t ordinal : batches.order) {
      receive(ordinal);
      if (lossy.rank() == 1) send(ordinal);
    }
    for (std::size_t i = works.size(); i-- > 0;) works[i].wait();
    lossy.verify_fates();
    const auto statistics = lossy.collect_statistics(LinkDetail::kOmit);
    if (lossy.rank() == 0) {
      traffic.gradients = received;
      traffic.digest = statistics.at(0).digest;
    } else {
      traffic.activations = received;
    }
  });
  return traffic;
}

TEST(MessageOrdinal, StartedMessagesKeepTheirPlacesInEverySchedule) {
  for (const BurstScope scope : {BurstScope::kLink, BurstScope::kMessage}) {
    for (const bool has_clock : {false, true}) {  // with a clock, works are planned at the wait
      SCOPED_TRACE(has_clock ? "clock" : "no clock");
      LossyOptions options = bursty(scope);
      if (has_clock) {
        apply_recovery(*options.network.of(kRecoveryClass), protocol("selective_repeat", 1));
        options.time = model_of();
      }
      const Traffic in_order = started(options, {{0, 1, 2, 3, 16}, true});
      EXPECT_EQ(started(options, {{0, 1, 2, 3, 16}}), in_order);
      const Traffic shuffled = started(options, {{16, 2, 0, 3, 1}});
      EXPECT_EQ(shuffled.activations, in_order.activations);
      EXPECT_EQ(shuffled.gradients, in_order.gradients);
      EXPECT_EQ(shuffled, started(options, {{16, 2, 0, 3, 1}, true}));
      EXPECT_NE(std::count(in_order.activations.at(0).begin(), in_order.activations.at(0).end(), 0.0F),
                std::count(in_order.activations.at(1).begin(), in_order.activations.at(1).end(), 0.0F));
    }
  }
}

template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(MessageOrdinal, WhatHasNoPlaceIsRefused) {
  FlowLedger ledger(bursty(BurstScope::kLink).network);
  const sim::Link link{kRecoveryClass, sim::Half::kGather, 0, 1};
  const auto pass = [&](std::optional<std::uint64_t> ordinal, std::uint64_t floats) {
    CallFates call;
    call.ordinal = ordinal;
    ledger.pass_message(call, link, sim::Packetizer(floats, 4, 64));
  };
  pass(3, 0);  // nothing is sent
  pass(7, kFloats);
  EXPECT_THAT(error_of([&] { pass(8, 10 * kFloats); }), AllOf(HasSubstr("link 0 -> 1 of class tp_forward"),
                                                              HasSubstr("got a message of 188 packets with an ordinal"),
                                                              HasSubstr("want one of 19 packets with an ordinal")));
  EXPECT_THAT(error_of([&] { pass(std::uint64_t{1} << 47U, kFloats); }),
              AllOf(HasSubstr("got the ordinal 140737488355328"), HasSubstr("want at most 14814472458454")));
  EXPECT_THAT(error_of([&] { pass(std::nullopt, kFloats); }), HasSubstr("got a message without an ordinal"));
  run_ranks(2, kRecoveryTimeout, [](Communicator& inner) {
    LossyCommunicator lossy(inner, bursty(BurstScope::kLink));
    Floats data(4);
    EXPECT_THAT(error_of([&] {
                  lossy.all_reduce(std::span(data), ReduceOp::kSum, {kRecoveryClass, "sum", 0, 5});
                }),
                HasSubstr("got an ordinal, which only messages between two ranks have"));
  });
}

TEST(MessageOrdinal, EndsThatDeriveDifferentOnesAreNamed) {
  std::string error;
  EXPECT_THROW(run_ranks(2, kRecoveryTimeout,
                         [&](Communicator& inner) {
                           Floats data(4);
                           if (inner.rank() == 0) {
                             inner.send(std::span<const float>(data), 1, {kRecoveryClass, "activation", 0, 1});
                             return;
                           }
                           try {
                             inner.recv(std::span(data), 0, {kRecoveryClass, "activation", 0, 2});
                           } catch (const CommError& thrown) {
                             error = thrown.what();
                             throw;
                           }
                         }),
               CommError);
  EXPECT_THAT(error, AllOf(HasSubstr("ordinal 1"), HasSubstr("ordinal 2")));
}

}  // namespace
}  // namespace droptest::comm::message_ordinal_test
