// SPDX-License-Identifier: Apache-2.0
// Started calls with fates that depend on time: programs that end, and results that do not depend on the order of
// waits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "comm/metered_communicator.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "tests/comm/observed_communicator.h"
#include "tests/comm/timed_network.h"
#include "tests/comm/timed_programs.h"
#include "tests/sanitizers.h"

namespace droptest::comm::timed_calls_test {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kTimeout{60000};
constexpr int kRanks = 3;
constexpr std::uint64_t kPrograms = kThreadSanitizer ? 100 : kAddressSanitizer ? 300 : 1000;

std::vector<TimedOutcome> outcomes(const LossyOptions& options, Calls calls, std::uint64_t end = kPrograms) {
  std::vector<TimedOutcome> all(kRanks);
  run_ranks(kRanks, kTimeout, [&](Communicator& inner) {
    all[static_cast<std::size_t>(inner.rank())] = run_timed_programs(inner, options, calls, 0, end);
  });
  return all;
}

// If no deadline is missed, times change nothing: results, indices and losses are those without a clock.
TEST(TimedCalls, FatesThatTimeDoesNotChangeAreThoseWithoutAClock) {
  for (const char* const path : {"direct", "ring", "contribution"}) {
    SCOPED_TRACE(path);
    LossyOptions options = bursts_with_repetitions(path);
    options.network.of(kTimedClass)->reduce.recovery = options.network.of(kTimedClass)->gather.recovery = nullptr;
    options.time->deadline_seconds = 1;
    std::vector<TimedOutcome> timed = outcomes(options, Calls::kStarted);
    EXPECT_GT(timed[0].seconds, 0);
    options.time.reset();
    std::vector<TimedOutcome> without = outcomes(options, Calls::kStarted);
    // Digests depend on the order in which messages and collectives of a link are drawn.
    for (auto* all : {&timed, &without}) {
      for (TimedOutcome& outcome : *all) outcome.seconds = 0, outcome.digest = 0;
    }
    EXPECT_EQ(timed, without);
    EXPECT_GT(timed[0].lost, 0U);
  }
}

TEST(TimedCalls, RandomProgramsHaveOneOutcomeInAnyOrderOfThreads) {
  for (const LossyOptions& options : {bursts_with_repetitions("direct"), bursts_with_repetitions("ring"),
                                      episodes("direct"), episodes("contribution")}) {
    const std::vector<TimedOutcome> first = outcomes(options, Calls::kStarted);
    EXPECT_EQ(outcomes(options, Calls::kStarted), first);
    EXPECT_GT(first[0].lost, 0U);
    EXPECT_LT(first[0].lost, first[0].packets);
  }
}

Work start(LossyCommunicator& lossy, std::vector<float>& data, ReduceOp op, const Message& message) {
  return lossy.start_all_reduce(std::span<const float>(data), std::span(data), op, message);
}

using Body = std::function<void(LossyCommunicator&)>;

void run_two(const Body& body) {
  for (const LossyOptions& options : {bursts_with_repetitions("direct"), episodes("direct")}) {
    run_ranks(2, kTimeout, [&](Communicator& inner) {
      LossyCommunicator lossy(inner, options);
      body(lossy);
      lossy.verify_fates();
    });
  }
}

// A receive with an ordinal that this rank started, and which its peer sends only at the end of the program.
class LateMessage {
 public:
  LateMessage(LossyCommunicator& lossy, std::uint64_t ordinal) : lossy_(lossy), ordinal_(ordinal) {
    if (lossy.rank() == 0) work_ = lossy.start_recv(std::span(data_), 1, message());
  }
  void finish() {
    if (lossy_.rank() == 1) lossy_.send(std::span<const float>(data_), 0, message());
    work_.wait();
  }

 private:
  Message message() const { return {kTimedClass, ordinal_ == 0 ? "zero" : "one", 0, ordinal_}; }
  LossyCommunicator& lossy_;
  std::uint64_t ordinal_;
  std::vector<float> data_ = std::vector<float>(300, 1);
  Work work_;
};

TEST(TimedCalls, AReceiveUnderWayHoldsUpNoOtherCall) {
  const std::vector<float> sent(40, 2);
  const Message about{sim::TrafficClass::kDpGradient, "exchanged", 1, 7};
  run_two([&](LossyCommunicator& lossy) {
    LateMessage first(lossy, 0);
    LateMessage second(lossy, 1);
    std::vector<float> received(40);
    const int peer = 1 - lossy.rank();
    if (lossy.rank() == 1) {
      // The peer's receives come first on the link: their messages must, too.
      first.finish();
      second.finish();
    }
    lossy.barrier({sim::TrafficClass::kControl, "barrier"});
    lossy.begin_step(1);
    {
      const LossyCommunicator::ProtectedScope scope(lossy);
      const Send send{std::span<const float>(sent), peer, about};
      const Receive receive{std::span(received), peer, about};
      lossy.exchange({&send, 1}, {&receive, 1});
    }
    EXPECT_EQ(received, sent) << "what is protected arrives";
    if (lossy.rank() == 0) {
      first.finish();
      second.finish();
    }
  });
}

TEST(TimedCalls, AReceiveWhosePeerSendsLaterHoldsUpNoCollective) {
  run_two([](LossyCommunicator& lossy) {
    LateMessage first(lossy, 0);
    LateMessage second(lossy, 1);
    lossy.barrier({sim::TrafficClass::kControl, "barrier"});
    lossy.begin_step(1);
    {
      const LossyCommunicator::ProtectedScope scope(lossy);
      std::vector<float> data(10, 1);
      Work work = start(lossy, data, ReduceOp::kSum, {sim::TrafficClass::kControl, "sum"});
      work.wait();
    }
    first.finish();
    second.finish();
  });
}

// The start refuses everything that a plan refuses, whenever the fates are drawn.
TEST(TimedCalls, WhatHasNoMeaningIsRefusedAtTheStart) {
  LossyOptions options = bursts_with_repetitions("contribution");
  options.network.of(kTimedClass)->reduce.recovery = options.network.of(kTimedClass)->gather.recovery = nullptr;
  options.network.of(kTimedClass)->reduce.loss = options.network.of(kTimedClass)->gather.loss =
      episodes("contribution").network.of(kTimedClass)->reduce.loss;
  apply_fill(*options.network.of(kTimedClass), Fill::kInverseProbability);
  run_ranks(2, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    std::vector<float> data(10, 1);
    const auto refused = [&] { (void)start(lossy, data, ReduceOp::kMax, {kTimedClass, "max", 0}); };
    EXPECT_THROW(refused(), ConfigError);
    lossy.all_reduce(std::span(data), ReduceOp::kSum, {kTimedClass, "sum", 0});
    lossy.verify_fates();
  });
}

// A reliable class may pass a collective that has started and not run.
TEST(TimedCalls, CollectivesOfReliableClassesPass) {
  run_two([](LossyCommunicator& lossy) {
    std::vector<float> data(500, 1);
    std::vector<float> control(4, 1);
    Work timed = start(lossy, data, ReduceOp::kSum, {kTimedClass, "timed", 0});
    Work reliable = start(lossy, control, ReduceOp::kSum, {sim::TrafficClass::kControl, "control"});
    reliable.wait();
    EXPECT_EQ(control, std::vector<float>(4, 2));
    EXPECT_FALSE(timed.done());
    timed.wait();
    EXPECT_TRUE(timed.done());
  });
}

// Receives of one rank over two groups, waited for in the other order, have the times of the sender's order.
TEST(TimedCalls, ReceivesOfTwoGroupsFromOneRankAreTimedInTheOrderOfTheirStarts) {
  run_two([](LossyCommunicator& lossy) {
    const auto part = lossy.split(0, 0);
    std::vector<float> first(900, 1);
    std::vector<float> second(900, 1);
    const Message about_first{kTimedClass, "first", 0};
    const Message about_second{kTimedClass, "second", 0};
    for (std::uint64_t step = 0; step < 20; ++step) {
      lossy.begin_step(step);
      if (lossy.rank() == 0) {
        part->send(std::span<const float>(first), 1, about_first);
        lossy.send(std::span<const float>(second), 1, about_second);
        continue;
      }
      Work early = part->start_recv(std::span(first), 0, about_first);
      Work late = lossy.start_recv(std::span(second), 0, about_second);
      late.wait();
      early.wait();
    }
  });
}

// Statistics that are read while a receive is under way have the fates drawn so far.
TEST(TimedCalls, CountsHoldWhatIsDrawn) {
  LossyOptions options = bursts_with_repetitions("direct");
  run_ranks(2, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    std::vector<float> data(160, 1);  // ten packets
    const Message message{kTimedClass, "message", 0};
    Work work = lossy.rank() == 0 ? lossy.start_send(std::span<const float>(data), 1, message)
                                  : lossy.start_recv(std::span(data), 0, message);
    const auto packets = [&] {
      std::uint64_t drawn = 0;
      for (const ClassStatistics& of_class : lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit)) {
        drawn += of_class.total().packets;
      }
      return drawn;
    };
    EXPECT_EQ(packets(), 0U);
    work.wait();
    EXPECT_EQ(packets(), 10U);
  });
}

// One channel carries times of departure and data, and each receive gets its own.
TEST(TimedCalls, WithoutASecondChannelMessagesKeepTheirOrder) {
  class WithoutChannels final : public ObservedCommunicator {
   public:
    using ObservedCommunicator::ObservedCommunicator;
    std::unique_ptr<Communicator> channel(int /*number*/) override { return nullptr; }
  };
  run_ranks(2, kTimeout, [](Communicator& local) {
    WithoutChannels inner(local, [](const Message& /*message*/, std::size_t /*bytes*/) {});
    LossyOptions options = bursts_with_repetitions("direct");
    options.network.of(kTimedClass)->reduce.loss = options.network.of(kTimedClass)->gather.loss = nullptr;
    LossyCommunicator lossy(inner, options);
    std::vector<float> first(300, 1);
    std::vector<float> second(200, 2);
    std::vector<float> third(100, 3);
    const Message control{sim::TrafficClass::kControl, "third"};
    if (lossy.rank() == 0) {
      Work one = lossy.start_send(std::span<const float>(first), 1, {kTimedClass, "first", 0});
      Work two = lossy.start_send(std::span<const float>(second), 1, {kTimedClass, "second", 0});
      lossy.send(std::span<const float>(third), 1, control);
      two.wait();
      one.wait();
    } else {
      std::vector<float> a(300), b(200), c(100);
      Work one = lossy.start_recv(std::span(a), 0, {kTimedClass, "first", 0});
      Work two = lossy.start_recv(std::span(b), 0, {kTimedClass, "second", 0});
      two.wait();
      lossy.recv(std::span(c), 0, control);
      one.wait();
      EXPECT_EQ(a, first);
      EXPECT_EQ(b, second);
      EXPECT_EQ(c, third);
    }
    lossy.verify_fates();
  });
}

// If there is no second channel, later calls queue up behind the first one.
TEST(TimedCalls, WithoutASecondChannelCollectivesKeepTheirOrder) {
  class WithoutChannels final : public ObservedCommunicator {
   public:
    using ObservedCommunicator::ObservedCommunicator;
    std::unique_ptr<Communicator> channel(int /*number*/) override { return nullptr; }
  };
  run_ranks(2, kTimeout, [](Communicator& local) {
    WithoutChannels inner(local, [](const Message& /*message*/, std::size_t /*bytes*/) {});
    LossyCommunicator lossy(inner, bursts_with_repetitions("ring"));
    std::vector<float> data(500, 1);
    std::vector<float> control(4, 1);
    std::vector<float> message(300, 1);
    Work timed = start(lossy, data, ReduceOp::kSum, {kTimedClass, "timed", 0});
    Work reliable = start(lossy, control, ReduceOp::kSum, {sim::TrafficClass::kControl, "control"});
    Work sent =
        lossy.rank() == 0 ? lossy.start_send(std::span<const float>(message), 1, {kTimedClass, "sent", 0}) : Work();
    Work received = lossy.rank() == 1 ? lossy.start_recv(std::span(message), 0, {kTimedClass, "sent", 0}) : Work();
    received.wait();
    EXPECT_FALSE(timed.done());
    reliable.wait();
    EXPECT_TRUE(timed.done());
    EXPECT_EQ(control, std::vector<float>(4, 2));
    sent.wait();
    lossy.verify_fates();
  });
}

// An error that its program does not wait for is that of the group's next call, through other layers too.
TEST(TimedCalls, AnErrorOfADroppedWorkIsThrownByTheNextCall) {
  class Failing final : public ObservedCommunicator {
   public:
    using ObservedCommunicator::ObservedCommunicator;
    std::unique_ptr<WorkInFlight> begin(const CallArguments& /*arguments*/) override {
      class Fails final : public WorkInFlight {
        void finish() override { throw ConfigError("a wait that fails"); }
        bool finished() override { return false; }
      };
      return std::make_unique<Fails>();
    }
  };
  run_ranks(1, kTimeout, [](Communicator& local) {
    Failing inner(local, [](const Message& /*message*/, std::size_t /*bytes*/) {});
    LossyCommunicator lossy(inner, bursts_with_repetitions("ring"));
    std::vector<float> data(5, 1);
    MeteredCommunicator metered(lossy);
    for (Communicator* const group : {static_cast<Communicator*>(&lossy), static_cast<Communicator*>(&metered)}) {
      {
        const Work dropped = group->start_all_reduce(std::span<const float>(data), std::span(data), ReduceOp::kSum,
                                                     {kTimedClass, "dropped", 0});
      }
      try {
        group->all_reduce(std::span(data), ReduceOp::kSum, {kTimedClass, "next", 0});
        ADD_FAILURE() << "no error";
      } catch (const ConfigError& error) {
        EXPECT_THAT(error.what(), HasSubstr("a wait that fails"));
      }
    }
    lossy.all_reduce(std::span(data), ReduceOp::kSum, {kTimedClass, "next", 0});
  });
}

}  // namespace
}  // namespace droptest::comm::timed_calls_test
