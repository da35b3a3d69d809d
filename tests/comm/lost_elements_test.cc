// SPDX-License-Identifier: Apache-2.0
// Receivers learn which elements of a message were lost; a message can be sent with certain delivery.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/metered_communicator.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "tests/comm/lossy_recovery.h"

namespace droptest::comm::lost_elements_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Ranges = std::vector<sim::ElementRange>;

constexpr std::size_t kFloats = 300;  // 19 packets, the last one short
constexpr auto kForward = sim::TrafficClass::kSequenceForward;

/// The elements of `got` that are zero; those that were sent are not.
Ranges zeros(const Floats& got) {
  Ranges ranges;
  for (std::uint64_t i = 0; i < got.size(); ++i) {
    if (got[i] != 0) continue;
    if (ranges.empty() || ranges.back().end != i) ranges.push_back({i, i});
    ranges.back().end = i + 1;
  }
  return ranges;
}

LossyOptions options_of(const ClassNetwork& network) {
  LossyOptions options;
  options.network.seed = 5;
  options.network.of(kForward) = network;
  return options;
}

ClassNetwork absent_network(double rate) {
  ClassNetwork network = recovery_network("direct", 0, rate);
  network.gather.fill = Fill::kAbsent;
  return network;
}

/// Calls that receive `output` from the other of two ranks, or from both.
using Call = void (*)(Communicator& group, const Floats& sent, Floats& output, const Message& message);

void by_all_to_all(Communicator& group, const Floats& sent, Floats& output, const Message& message) {
  output.assign(kFloats + 7, -1);
  Floats input = sent;
  input.resize(kFloats + 7, 1);
  const std::vector<std::uint64_t> send =
      group.rank() == 0 ? std::vector<std::uint64_t>{7, kFloats} : std::vector<std::uint64_t>{kFloats, 7};
  const std::vector<std::uint64_t> receive =
      group.rank() == 0 ? std::vector<std::uint64_t>{7, kFloats} : std::vector<std::uint64_t>{kFloats, 7};
  group.all_to_all(std::span<const float>(input), send, std::span(output), receive, message);
}
void by_all_gather(Communicator& group, const Floats& sent, Floats& output, const Message& message) {
  output.assign(2 * kFloats, -1);
  group.all_gather(std::span<const float>(sent), std::span(output), std::vector<std::uint64_t>{kFloats, kFloats},
                   message);
}
void by_broadcast(Communicator& group, const Floats& sent, Floats& output, const Message& message) {
  output = sent;
  group.broadcast(std::span(output), 1, message);
}
void by_exchange(Communicator& group, const Floats& sent, Floats& output, const Message& message) {
  output.assign(kFloats, -1);
  const int peer = 1 - group.rank();
  const Send send{std::span<const float>(sent), peer, message};
  const Receive receive{std::span(output), peer, message};
  group.exchange({&send, 1}, {&receive, 1});
}
void by_started_messages(Communicator& group, const Floats& sent, Floats& output, const Message& message) {
  output.assign(kFloats, -1);
  const int peer = 1 - group.rank();
  Work send = group.start_send(std::span<const float>(sent), peer, message);
  group.start_recv(std::span(output), peer, message).wait();
  send.wait();
}
constexpr Call kCalls[] = {by_all_to_all, by_all_gather, by_broadcast, by_exchange, by_started_messages};

TEST(LostElements, AreThoseThatGotTheFill) {
  for (const Call call : kCalls) {
    for (const std::uint64_t interleave : {1, 3}) {
      for (const double rate : {0.0, 0.3, 1.0}) {
        ClassNetwork network = absent_network(rate);
        network.recovery.interleave_packets = interleave;
        std::vector<Ranges> reported(2);
        std::vector<Ranges> expected(2);
        run_ranks(2, kRecoveryTimeout, [&](Communicator& inner) {
          LossyCommunicator lossy(inner, options_of(network));
          const auto me = static_cast<std::size_t>(inner.rank());
          const Floats sent(kFloats, 2);
          Floats output;
          for (int step = 0; step < 3; ++step) {
            Ranges lost = {{3, 4}};
            Message message{kForward, "keys", 0};
            message.lost = &lost;
            call(lossy, sent, output, message);
            reported[me].insert(reported[me].end(), lost.begin(), lost.end());
            const Ranges holes = zeros(output);
            expected[me].insert(expected[me].end(), holes.begin(), holes.end());
          }
          lossy.verify_fates();
        });
        EXPECT_EQ(reported, expected) << rate << ", " << interleave;
        EXPECT_EQ(reported[0].empty(), rate == 0);
      }
    }
  }
}

TEST(LostElements, OfTransformedMessagesAreWholeBlocks) {
  ClassNetwork network = absent_network(0.1);
  network.recovery.hadamard_block_elems = 64;
  run_ranks(2, kRecoveryTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options_of(network));
    const Floats sent = recovery_values(3, 1 - inner.rank(), kFloats);
    Floats output;
    Ranges lost;
    Message message{kForward, "keys", 0};
    message.lost = &lost;
    by_exchange(lossy, recovery_values(3, inner.rank(), kFloats), output, message);
    ASSERT_FALSE(lost.empty());
    std::vector<bool> is_lost(kFloats);
    for (const sim::ElementRange& range : lost) {
      EXPECT_EQ(range.begin % 4, 0U);
      for (std::uint64_t i = range.begin; i < range.end; ++i) is_lost[i] = true;
    }
    for (std::size_t i = 0; i < kFloats; ++i) {
      if (is_lost[i]) {
        EXPECT_TRUE(is_lost[i / 64 * 64] || i >= 256) << i;
      } else {
        EXPECT_NEAR(output[i], sent[i], 1e-5) << i;
      }
    }
    EXPECT_GT(std::count(is_lost.begin(), is_lost.end(), false), 0);
  });
}

TEST(LostElements, StayAsTheyAreWithoutALossLayer) {
  run_ranks(2, kRecoveryTimeout, [&](Communicator& inner) {
    Ranges lost = {{3, 4}};
    Message message{kForward, "keys", 0};
    message.lost = &lost;
    Floats output;
    by_exchange(inner, Floats(kFloats, 2), output, message);
    EXPECT_EQ(lost, (Ranges{{3, 4}}));
  });
}

TEST(LostElements, AreNoneOfSumsAndNotKnownAfterSeveralHops) {
  for (const std::string_view path : {"direct", "ring"}) {
    run_ranks(2, kRecoveryTimeout, [&](Communicator& inner) {
      ClassNetwork network = absent_network(0.3);
      network.path = path == "ring" ? "ring" : "direct";
      LossyCommunicator lossy(inner, options_of(network));
      Ranges lost;
      Message message{kForward, "keys", 0};
      message.lost = &lost;
      const auto error_of = [&](const auto& call) -> std::string {
        try {
          call();
        } catch (const ConfigError& error) {
          return error.what();
        }
        return "no error";
      };
      Floats data(10, 1);
      EXPECT_THAT(error_of([&] { lossy.all_reduce(std::span(data), ReduceOp::kSum, message); }),
                  AllOf(HasSubstr("all_reduce on path"), HasSubstr("\"keys\""), HasSubstr("want all_to_all")));
      if (path == "direct") return;
      EXPECT_THAT(error_of([&] { lossy.broadcast(std::span(data), 0, message); }), HasSubstr("several hops"));
      Floats output;
      EXPECT_NO_THROW(by_all_to_all(lossy, Floats(kFloats, 2), output, message));
      EXPECT_EQ(lost, zeros(output));
    });
  }
}

TEST(CertainDelivery, ArrivesAndIsCounted) {
  run_ranks(2, kRecoveryTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options_of(absent_network(1)));
    Ranges lost;
    Message message{kForward, "keys", 0};
    message.lost = &lost;
    message.delivery = Delivery::kCertain;
    for (const Call call : kCalls) {
      Floats output;
      call(lossy, Floats(kFloats, 2), output, message);
      EXPECT_EQ(zeros(output), Ranges{});
      EXPECT_TRUE(lost.empty());
    }
    message.delivery = Delivery::kByNetwork;
    Floats output;
    by_exchange(lossy, Floats(kFloats, 2), output, message);
    EXPECT_EQ(output, Floats(kFloats, 0));
    lossy.verify_fates();
    const LossCounts counts = lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit).at(0).total();
    EXPECT_EQ(counts.packets, 2 * 5 * 19U + 19U);  // a broadcast goes one way
    EXPECT_EQ(counts.lost_packets, 2 * 19U);
  });
}

TEST(AbsentFill, IsKnownToItsReceivers) {
  run_ranks(2, kRecoveryTimeout, [&](Communicator& inner) {
    EXPECT_FALSE(inner.leaves_lost_out(kForward));
    LossyCommunicator lossy(inner, options_of(absent_network(0.3)));
    EXPECT_TRUE(lossy.leaves_lost_out(kForward));
    EXPECT_FALSE(lossy.leaves_lost_out(sim::TrafficClass::kSequenceBackward));
    EXPECT_TRUE(MeteredCommunicator(lossy).leaves_lost_out(kForward));
    {
      const LossyCommunicator::LosslessScope lossless(lossy);
      EXPECT_FALSE(lossy.leaves_lost_out(kForward));
    }
    EXPECT_FALSE(LossyCommunicator(inner, options_of(absent_network(0))).leaves_lost_out(kForward));
    ClassNetwork zero = absent_network(0.3);
    zero.gather.fill = Fill::kZero;
    EXPECT_FALSE(LossyCommunicator(inner, options_of(zero)).leaves_lost_out(kForward));
  });
}

TEST(LostGradient, IsKnownToReceivers) {
  run_ranks(2, kRecoveryTimeout, [&](Communicator& inner) {
    EXPECT_FALSE(inner.stops_lost_gradients(kForward));
    LossyCommunicator lossy(inner, options_of(absent_network(0.3)));
    EXPECT_TRUE(lossy.stops_lost_gradients(kForward));
    EXPECT_FALSE(lossy.stops_lost_gradients(sim::TrafficClass::kPpActivation)) << "without a network";
    EXPECT_TRUE(MeteredCommunicator(lossy).stops_lost_gradients(kForward));
    {
      const LossyCommunicator::LosslessScope lossless(lossy);
      EXPECT_FALSE(lossy.stops_lost_gradients(kForward));
    }
    EXPECT_FALSE(LossyCommunicator(inner, options_of(absent_network(0))).stops_lost_gradients(kForward));
    ClassNetwork through = absent_network(0.3);
    through.lost_gradient = LostGradient::kStraightThrough;
    EXPECT_FALSE(LossyCommunicator(inner, options_of(through)).stops_lost_gradients(kForward));
    LossyOptions of_stages = options_of(absent_network(0.3));
    ClassNetwork messages = absent_network(0.3);
    messages.gather.fill = Fill::kZero;
    of_stages.network.of(sim::TrafficClass::kPpActivation) = messages;
    EXPECT_FALSE(LossyCommunicator(inner, of_stages).stops_lost_gradients(sim::TrafficClass::kPpActivation));
    messages.lost_gradient = LostGradient::kZero;
    of_stages.network.of(sim::TrafficClass::kPpActivation) = messages;
    EXPECT_TRUE(LossyCommunicator(inner, of_stages).stops_lost_gradients(sim::TrafficClass::kPpActivation));
  });
}

TEST(AbsentFill, HasAMeaningForKeysAndValuesAlone) {
  const FillEntry& entry = fill_entry(Fill::kAbsent);
  for (const sim::TrafficClass c : sim::kAllTrafficClasses) {
    EXPECT_EQ(entry.has_meaning_in_gather_half(c), c == kForward);
  }
  EXPECT_TRUE(reduce_fill_refusal(Fill::kAbsent, "direct").has_value());
}

TEST(OwnFill, HasNoMeaningForKeysAndValues) {
  for (const Fill fill : {Fill::kOwn, Fill::kOwnScaled}) {
    EXPECT_FALSE(fill_entry(fill).has_meaning_in_gather_half(kForward));
    EXPECT_TRUE(fill_entry(fill).has_meaning_in_gather_half(sim::TrafficClass::kTpForward));
  }
}

}  // namespace
}  // namespace droptest::comm::lost_elements_test
