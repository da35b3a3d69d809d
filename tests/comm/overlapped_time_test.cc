// SPDX-License-Identifier: Apache-2.0
// The two timelines of the virtual clock: computation while calls are under way, and ports that process one message at
// a time.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/schedule.h"
#include "tests/comm/exposed_time.h"
#include "tests/comm/timed_network.h"

namespace droptest::comm::overlapped_time_test {
namespace {

constexpr std::chrono::milliseconds kTimeout{20000};
const Message kFirst{kClass, "first", 0};
const Message kSecond{kClass, "second", 0};
constexpr double kExact = 1e-15;

using Program = std::function<void(LossyCommunicator&, Tensor first, Tensor second)>;

VirtualTime time_of(int ranks, const LossyOptions& options, const Program& program) {
  VirtualTime time;
  run_ranks(ranks, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    std::vector<float> first(kElements, 1);
    std::vector<float> second(kElements, 2);
    lossy.begin_step(0);
    program(lossy, std::span(first), std::span(second));
    lossy.verify_fates();
    const auto collected = lossy.collect_time();
    if (inner.rank() == 0) time = *collected;
  });
  return time;
}

Work start(LossyCommunicator& lossy, Tensor data, const Message& message) {
  return lossy.start_all_reduce(data, data, ReduceOp::kSum, message);
}

VirtualTime time_of_one(int ranks, const LossyOptions& options) {
  return time_of(ranks, options,
                 [](LossyCommunicator& lossy, Tensor data, Tensor) { lossy.all_reduce(data, ReduceOp::kSum, kFirst); });
}

double seconds_of_one(int ranks, const LossyOptions& options) { return time_of_one(ranks, options).seconds; }

double transfer_seconds(const LossyOptions& options) {
  return (32768 + 128.0 * static_cast<double>(options.time->header_bytes)) / 1e9;
}

TEST(OverlappedTime, WhatIsComputedMeanwhileHidesACollective) {
  for (const PathEntry& path : paths()) {
    SCOPED_TRACE(path.name);
    LossyOptions options = options_of(path.name, 0.1, computing_model());
    if (path.has_groups) options.network.of(kClass)->group_ranks = 2;
    const VirtualTime blocking = time_of_one(4, options);
    const double alone = blocking.seconds;
    ASSERT_GT(alone, 0);
    for (const double share : {0.25, 4.0}) {
      const double computed = share * alone;
      const VirtualTime time = time_of(4, options, [&](LossyCommunicator& lossy, Tensor data, Tensor) {
        Work work = start(lossy, data, kFirst);
        lossy.pass_compute_share(computed);
        work.wait();
      });
      EXPECT_NEAR(time.seconds, std::max(alone, computed), kExact);
      EXPECT_NEAR(time.compute_seconds, computed, kExact);
      EXPECT_NEAR(time.network_seconds, blocking.network_seconds, kExact);
      EXPECT_NEAR(exposed_seconds(time), std::max(0.0, exposed_seconds(blocking) - computed), kExact);
    }
  }
}

// The part of a wait until the last rank is ready is idle time; the rest is exposed time in the class of the call.
TEST(OverlappedTime, WaitsForOtherRanksAreIdleTime) {
  const LossyOptions options = options_of("direct", 0, computing_model());
  const double alone = seconds_of_one(4, options);
  constexpr double kLate = 1e-3;
  const auto late_rank = [&](const Program& then) {
    return time_of(4, options, [&](LossyCommunicator& lossy, Tensor first, Tensor second) {
      if (lossy.rank() == 3) lossy.pass_compute_share(kLate);
      then(lossy, first, second);
    });
  };
  const VirtualTime reduced =
      late_rank([](LossyCommunicator& lossy, Tensor data, Tensor) { lossy.all_reduce(data, ReduceOp::kSum, kFirst); });
  EXPECT_NEAR(reduced.idle_seconds, 3 * kLate / 4, kExact) << "mean of the ranks";
  EXPECT_NEAR(reduced.exposed_in(kClass), alone, kExact);
  EXPECT_NEAR(exposed_seconds(reduced), alone, kExact);
  EXPECT_NEAR(reduced.seconds, kLate + alone, kExact);
  EXPECT_NEAR(reduced.compute_seconds, kLate / 4, kExact);

  // Rank 2 waits for a message of the late one; the sender waits for its own port.
  const VirtualTime sent = late_rank([](LossyCommunicator& lossy, Tensor data, Tensor) {
    if (lossy.rank() == 3) lossy.send(data, 2, kFirst);
    if (lossy.rank() == 2) lossy.recv(data, 3, kFirst);
  });
  EXPECT_NEAR(sent.idle_seconds, kLate / 4, kExact);
  EXPECT_NEAR(sent.seconds, kLate + sent.exposed_in(kClass) * 4 - transfer_seconds(options), kExact);
}

TEST(OverlappedTime, BlockingCallsAreExposedWhole) {
  const LossyOptions options = options_of("direct", 0, model_of(1e-3));
  const VirtualTime time = time_of(4, options, [](LossyCommunicator& lossy, Tensor first, Tensor second) {
    lossy.all_reduce(first, ReduceOp::kSum, kFirst);
    lossy.all_reduce(second, ReduceOp::kSum, kSecond);
  });
  EXPECT_NEAR(time.network_seconds, exposed_seconds(time), kExact);
  EXPECT_NEAR(time.compute_seconds, 1e-3, kExact);
}

TEST(OverlappedTime, CollectivesOfARankFollowOnEachOtherInAnyOrderOfTheWaits) {
  const LossyOptions options = options_of("ring", 0.1, model_of());
  const double alone = seconds_of_one(4, options);
  for (const bool reversed : {false, true}) {
    const VirtualTime time = time_of(4, options, [&](LossyCommunicator& lossy, Tensor first, Tensor second) {
      Work one = start(lossy, first, kFirst);
      Work two = start(lossy, second, kSecond);
      if (reversed != (lossy.rank() % 2 == 0)) std::swap(one, two);
      one.wait();
      two.wait();
    });
    EXPECT_NEAR(time.seconds, 2 * alone, kExact);
  }
}

TEST(OverlappedTime, ABlockingCallWaitsForThePortsOfWhatWasStarted) {
  const LossyOptions options = options_of("direct", 0, computing_model());
  const double alone = seconds_of_one(2, options);
  const VirtualTime time = time_of(2, options, [&](LossyCommunicator& lossy, Tensor first, Tensor second) {
    Work work = start(lossy, first, kFirst);
    lossy.all_reduce(second, ReduceOp::kSum, kSecond);
    lossy.pass_compute_share(5 * alone);
    work.wait();
  });
  EXPECT_NEAR(time.seconds, 7 * alone, kExact);
}

TEST(OverlappedTime, GroupsOfARankShareItsPorts) {
  const LossyOptions options = options_of("direct", 0, model_of());
  const double alone = seconds_of_one(2, options);
  const VirtualTime time = time_of(2, options, [&](LossyCommunicator& lossy, Tensor first, Tensor second) {
    const auto other = lossy.split(0, 0);
    Work one = start(lossy, first, kFirst);
    Work two = other->start_all_reduce(second, second, ReduceOp::kSum, kFirst);
    two.wait();
    one.wait();
  });
  EXPECT_NEAR(time.seconds, 2 * alone, kExact);
}

// The latency of the links. Messages have 32768 bytes in packets of 256 bytes, at 1 GB/s.
constexpr double kLatency = 5e-6;
TEST(OverlappedTime, MessagesWaitForThePortOfTheirSender) {
  const LossyOptions options = options_of("direct", 0, model_of());
  const VirtualTime time = time_of(3, options, [](LossyCommunicator& lossy, Tensor first, Tensor second) {
    if (lossy.rank() == 0) {
      Work one = lossy.start_send(first, 1, kFirst);
      Work two = lossy.start_send(second, 2, kFirst);
      two.wait();
      one.wait();
    } else {
      lossy.recv(first, 0, kFirst);
    }
  });
  EXPECT_NEAR(time.seconds, kLatency + 2 * transfer_seconds(options), kExact);
}

TEST(OverlappedTime, MessagesWaitForThePortOfTheirReceiver) {
  const LossyOptions options = options_of("direct", 0, model_of());
  const VirtualTime time = time_of(3, options, [](LossyCommunicator& lossy, Tensor first, Tensor second) {
    if (lossy.rank() != 0) return lossy.send(first, 0, kFirst);
    Work one = lossy.start_recv(first, 1, kFirst);
    Work two = lossy.start_recv(second, 2, kFirst);
    one.wait();
    two.wait();
  });
  EXPECT_NEAR(time.seconds, kLatency + 2 * transfer_seconds(options), kExact);
  EXPECT_NEAR(time.network_seconds, 4 * transfer_seconds(options) / 3, kExact) << "mean of the ranks";
}

TEST(OverlappedTime, MessagesThatAreWaitedForInReversedOrderHaveTheirOwnTimes) {
  const auto seconds = [](bool reversed) {
    return time_of(2, options_of("direct", 0, computing_model()),
                   [&](LossyCommunicator& lossy, Tensor first, Tensor second) {
                     const Tensor part(second.type, second.bytes.first(4096), nullptr);
                     if (lossy.rank() == 1) {
                       lossy.send(first, 0, kFirst);
                       lossy.pass_compute_share(1e-3);
                       return lossy.send(part, 0, kSecond);
                     }
                     Work one = lossy.start_recv(first, 1, kFirst);
                     Work two = lossy.start_recv(part, 1, kSecond);
                     if (reversed) std::swap(one, two);
                     one.wait();
                     two.wait();
                   })
        .seconds;
  };
  EXPECT_EQ(seconds(true), seconds(false));
}

// begin_step() was only called on the world.
TEST(OverlappedTime, ASplitGroupsClockIsInTheRanksStep) {
  LossyOptions options = options_of("direct", 0.3, model_of());
  apply_recovery(*options.network.of(kClass), protocol("selective_repeat"));
  options.network.of(kClass)->recovery.protect.steps = Protection::Steps{1, 2};
  run_ranks(2, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    const auto part = lossy.split(0, 0);
    std::vector<float> data(kElements, 1);
    for (std::uint64_t step = 0; step < 3; ++step) {
      lossy.begin_step(step);
      part->all_reduce(std::span(data), ReduceOp::kSum, kFirst);
    }
    const auto time = lossy.collect_time();
    const auto statistics = lossy.collect_statistics(LinkDetail::kOmit);
    EXPECT_EQ(time->repeated, statistics.at(0).total().resent_packets);
    EXPECT_GT(time->repeated, 0U);
  });
}

// The time of a work begins at its start, and the computation of the next step hides it, whether or not fates need
// times.
TEST(OverlappedTime, AWorkMayCrossTheBeginningOfAStep) {
  const double alone = seconds_of_one(2, options_of("direct", 0, model_of()));
  for (const double share : {0.25, 4.0}) {
    for (const std::optional<double> deadline : {std::optional<double>(), std::optional<double>(1)}) {
      SCOPED_TRACE(share);
      const double computed = share * alone;
      LossyOptions options = options_of("direct", 0.1, model_of(computed));
      options.time->deadline_seconds = deadline;
      const VirtualTime time = time_of(2, options, [](LossyCommunicator& lossy, Tensor data, Tensor) {
        Work work = start(lossy, data, kFirst);
        lossy.begin_step(1);
        work.wait();
      });
      EXPECT_NEAR(time.seconds, computed + std::max(computed, alone), kExact);
      EXPECT_NEAR(time.compute_seconds, 2 * computed, kExact);
      EXPECT_NEAR(time.network_seconds, alone, kExact);
    }
  }
}

// A small collective is waited for at once, a large one that was started with it only after 10 ms of computation, which
// hide it: also if each call has a deadline that nothing misses.
TEST(OverlappedTime, AWaitLeavesWhatWasStartedLaterUnderWay) {
  for (const std::optional<double> deadline : {std::optional<double>(), std::optional<double>(1)}) {
    LossyOptions options = options_of("direct", 0.1, computing_model());
    options.time->links.within = options.time->links.between = {5e-6, 4e6};
    options.time->deadline_seconds = deadline;
    const VirtualTime time = time_of(2, options, [](LossyCommunicator& lossy, Tensor large, Tensor second) {
      const Tensor small(second.type, second.bytes.first(64 * sizeof(float)));
      Work first = start(lossy, small, kFirst);
      Work later = start(lossy, large, kSecond);
      first.wait();
      lossy.pass_compute_share(10e-3);
      later.wait();
    });
    const double alone = 2 * (5e-6 + kElements / 2 * sizeof(float) / 4e6);
    const double small = 2 * (5e-6 + 32 * sizeof(float) / 4e6);
    EXPECT_NEAR(time.seconds, std::max(10e-3 + small, alone + small), 1e-12);
  }
}

// If fates depend on time, collectives run at the wait, but their virtual time begins at their start.
TEST(OverlappedTime, FatesThatDependOnTimeHideBehindComputationToo) {
  LossyOptions options = options_of("direct", 0.1, computing_model());
  options.time->deadline_seconds = 1;
  const VirtualTime blocking = time_of(4, options, [](LossyCommunicator& lossy, Tensor first, Tensor second) {
    lossy.all_reduce(first, ReduceOp::kSum, kFirst);
    lossy.all_reduce(second, ReduceOp::kSum, kSecond);
  });
  for (const double share : {0.25, 4.0}) {
    const double computed = share * blocking.seconds;
    const VirtualTime time = time_of(4, options, [&](LossyCommunicator& lossy, Tensor first, Tensor second) {
      Work one = start(lossy, first, kFirst);
      lossy.pass_compute_share(computed / 2);
      Work two = start(lossy, second, kSecond);
      lossy.pass_compute_share(computed / 2);
      one.wait();
      two.wait();
    });
    EXPECT_NEAR(time.seconds, std::max(blocking.seconds, computed), kExact) << share;
    EXPECT_NEAR(exposed_seconds(time), std::max(0.0, blocking.seconds - computed), kExact) << share;
    EXPECT_NEAR(time.idle_seconds, 0, kExact);
  }
}

// Everything is lost in step 0, and nothing in step 1.
TEST(OverlappedTime, AWorkThatCrossesStepsHasTheLossOfTheStepOfItsStart) {
  for (const bool at_the_wait : {false, true}) {
    SCOPED_TRACE(at_the_wait);
    LossyOptions options = options_of("contribution", 0, model_of());
    std::vector<sim::Phase> phases(2);
    phases[0].loss = std::make_unique<sim::Bernoulli>(1);
    phases[1] = {1, std::make_unique<sim::Bernoulli>(0)};
    options.network.of(kClass)->reduce.loss = std::make_shared<sim::Schedule>(std::move(phases), "schedule");
    if (at_the_wait) options.time->deadline_seconds = 1;
    run_ranks(2, kTimeout, [&](Communicator& inner) {
      LossyCommunicator lossy(inner, options);
      lossy.begin_step(0);
      std::vector<float> first(kElements, 1);
      std::vector<float> second(kElements, 2);
      Work work = start(lossy, std::span(first), kFirst);
      lossy.begin_step(1);
      lossy.all_reduce(std::span(second), ReduceOp::kSum, kSecond);
      work.wait();
      EXPECT_EQ(first, std::vector<float>(kElements, 0));
      EXPECT_EQ(second, std::vector<float>(kElements, 4));
      const ClassStatistics statistics = lossy.collect_statistics(LinkDetail::kOmit).at(0);
      EXPECT_EQ(statistics.total().lost_packets, 2 * 128U);
      EXPECT_EQ(statistics.layers.at(0).steps, 2U);
      EXPECT_EQ(statistics.layers.at(0).untouched_steps, 1U);
    });
  }
}

TEST(OverlappedTime, AMessageHidesBehindWhatItsReceiverComputes) {
  const LossyOptions options = options_of("direct", 0, computing_model());
  const VirtualTime time = time_of(2, options, [](LossyCommunicator& lossy, Tensor first, Tensor) {
    if (lossy.rank() == 1) return lossy.send(first, 0, kFirst);
    Work receive = lossy.start_recv(first, 1, kFirst);
    lossy.pass_compute_share(1e-3);
    receive.wait();
  });
  EXPECT_NEAR(time.seconds, 1e-3, kExact);
}

// A rank may start a receive and then wait for a collective, although its peer sends only after the collective.
TEST(OverlappedTime, AReceiveThatComesLaterHoldsUpNoCollective) {
  LossyOptions options = options_of("direct", 0.1, model_of());
  constexpr auto kOther = sim::TrafficClass::kPpActivation;
  options.network.of(kOther) = options.network.of(kClass);
  const Message activation{kOther, "activation", 0};
  const VirtualTime time = time_of(2, options, [&](LossyCommunicator& lossy, Tensor first, Tensor second) {
    if (lossy.rank() == 0) {
      Work receive = lossy.start_recv(first, 1, activation);
      start(lossy, second, kSecond).wait();
      receive.wait();
    } else {
      start(lossy, second, kSecond).wait();
      lossy.start_send(first, 0, activation).wait();
    }
  });
  EXPECT_NEAR(time.seconds, seconds_of_one(2, options) + kLatency + transfer_seconds(options), kExact);
}

TEST(OverlappedTime, PortsAreFreeAgainAfterAStop) {
  const LossyOptions options = options_of("direct", 0, model_of());
  const VirtualTime time = time_of(2, options, [](LossyCommunicator& lossy, Tensor first, Tensor second) {
    {
      const auto stop = lossy.stop_clock();
      lossy.all_reduce(first, ReduceOp::kSum, kFirst);
    }
    lossy.all_reduce(second, ReduceOp::kSum, kSecond);
  });
  EXPECT_NEAR(time.seconds, seconds_of_one(2, options), kExact);
}

// A wait fails at the exchange of clocks, while the group's thread still moves the data.
TEST(OverlappedTime, AWaitThatFailsLeavesNoThreadAtWorkOnItsData) {
  LossyOptions options = options_of("ring", 0.1, model_of());
  for (int repetition = 0; repetition < 5; ++repetition) {
    EXPECT_THROW(run_ranks(2, kTimeout,
                           [&](Communicator& inner) {
                             LossyCommunicator lossy(inner, options);
                             std::vector<float> data(1000000, 1);
                             Work work = start(lossy, std::span(data), kFirst);
                             if (inner.rank() == 1) throw std::runtime_error("out of disk");
                             work.wait();
                           }),
                 std::runtime_error);
  }
}

TEST(OverlappedTime, ANegativeShareOfComputeTimeIsRefused) {
  run_ranks(1, kTimeout, [](Communicator& inner) {
    LossyCommunicator timed(inner, options_of("direct", 0, computing_model()));
    EXPECT_THROW(timed.pass_compute_share(-1), ConfigError);
    LossyOptions without = options_of("direct", 0, computing_model());
    without.time.reset();
    LossyCommunicator untimed(inner, without);
    untimed.pass_compute_share(1);
    EXPECT_FALSE(untimed.collect_time().has_value());
  });
}

}  // namespace
}  // namespace droptest::comm::overlapped_time_test
