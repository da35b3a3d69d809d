// SPDX-License-Identifier: Apache-2.0
// Started collectives and messages on the local backend, and on the loss layer over it.
#include "comm/started/work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "tests/comm/fake_clock.h"
#include "tests/comm/lossy_recovery.h"
#include "tests/comm/observed_communicator.h"
#include "tests/comm/started_programs.h"
#include "tests/comm/timed_network.h"

namespace droptest::comm::started_work_test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kClass = sim::TrafficClass::kDpGradient;
const Message kFirst{kClass, "first", 0};
const Message kSecond{kClass, "second", 0};

TEST(StartedWork, AThousandRandomProgramsGiveTheResultsOfBlockingCalls) {
  std::uint64_t first = 0;
  for (const int ranks : {1, 2, 3, 5}) {
    run_ranks(ranks, 60s,
              [&](Communicator& communicator) { check_started_programs(communicator, first, first + 250, 1); });
    first += 250;
  }
}

TEST(StartedWork, AWaitNeedsOnlyThatThePeersHaveStarted) {
  std::atomic<int> waits = 0;
  run_ranks(2, 5s, [&](Communicator& communicator) { check_waits_need_starts_alone(communicator, waits); });
}

TEST(StartedWork, RanksMayStartTheWorksOfTwoGroupsInDifferentOrders) {
  run_ranks(2, 5s, [](Communicator& world) {
    const auto part = world.split(0, 0);
    float of_world = 1;
    float of_part = 2;
    const auto start = [](Communicator& group, float& value) {
      const Tensor data{std::span(&value, 1)};
      return group.start_all_reduce(data, data, ReduceOp::kSum, kFirst);
    };
    const bool world_first = world.rank() == 0;
    Work first = world_first ? start(world, of_world) : start(*part, of_part);
    Work second = world_first ? start(*part, of_part) : start(world, of_world);
    first.wait();
    second.wait();
    EXPECT_EQ(of_world, 2);
    EXPECT_EQ(of_part, 4);
  });
}

TEST(StartedWork, ReceivesThatAreWaitedForInReversedOrderGetTheirOwnMessages) {
  run_ranks(2, 5s, [](Communicator& communicator) {
    std::array<float, 2> values{1, 2};
    const auto at = [&](std::size_t i) { return Tensor(std::span(&values[i], 1)); };
    if (communicator.rank() == 0) {
      communicator.send(at(0), 1, kFirst);
      communicator.send(at(1), 1, kSecond);
      return;
    }
    values = {0, 0};
    Work first = communicator.start_recv(at(0), 0, kFirst);
    Work second = communicator.start_recv(at(1), 0, kSecond);
    second.wait();
    EXPECT_EQ(values[1], 2);
    first.wait();
    EXPECT_EQ(values[0], 1);
  });
}

// The clock stands still, so rank 0 sleeps until it is woken.
TEST(StartedWork, TheLastStartWakesARankThatWaits) {
  const FakeClock clock;
  std::atomic<bool> rank_0_is_done = false;
  const auto body = [&](Communicator& communicator) {
    float value = 1;
    const Tensor data{std::span(&value, 1)};
    if (communicator.rank() == 1) clock.await_waiters(1);
    Work work = communicator.start_all_reduce(data, data, ReduceOp::kSum, kFirst);
    if (communicator.rank() == 1) rank_0_is_done.wait(false);
    work.wait();
    EXPECT_EQ(value, 2);
    rank_0_is_done = true;
    rank_0_is_done.notify_all();
  };
  run_ranks(2, 1ms, body, clock);
}

TEST(StartedWork, CountsAndNameMayChangeAfterTheStart) {
  run_ranks(2, 5s, [](Communicator& communicator) {
    const std::vector<float> input{1, 2, 3};
    std::vector<float> output(communicator.rank() == 0 ? 2 : 1);
    std::vector<std::uint64_t> counts{2, 1};
    std::string name = "a name that is too long for a string without memory of its own";
    Work work = communicator.start_reduce_scatter(std::span(input), std::span(output), counts, ReduceOp::kSum,
                                                  {kClass, name, 0});
    counts = {0, 3};
    name.assign(name.size(), '?');
    work.wait();
    EXPECT_EQ(output, communicator.rank() == 0 ? std::vector<float>({2, 4}) : std::vector<float>({6}));
  });
}

TEST(StartedWork, DoneDoesTheWorkThatNobodyWaitsFor) {
  std::atomic<int> started = 0;
  run_ranks(2, 5s, [&](Communicator& communicator) {
    float value = 1;
    const Tensor data{std::span(&value, 1)};
    Work work = communicator.start_all_reduce(data, data, ReduceOp::kSum, kFirst);
    if (++started == 2) started.notify_all();
    while (started < 2) started.wait(1);
    while (!work.done()) {
    }
    work.wait();
    EXPECT_TRUE(work.done());
    EXPECT_EQ(value, 2);
  });
}

TEST(StartedWork, AWorkThatIsDroppedWaits) {
  run_ranks(2, 5s, [](Communicator& communicator) {
    std::vector<float> data(100, static_cast<float>(communicator.rank() + 1));
    if (communicator.rank() == 0) {
      { const Work dropped = communicator.start_all_reduce(std::span(data), std::span(data), ReduceOp::kSum, kFirst); }
    } else {
      communicator.all_reduce(std::span(data), ReduceOp::kSum, kFirst);
    }
    EXPECT_EQ(data, std::vector<float>(100, 3));
  });
}

// Rank 1 starts a collective that rank 0 never starts, and fails; rank 0 waits for rank 1 elsewhere.
TEST(StartedWork, AWorkThatIsDroppedByAnErrorAbortsTheGroup) {
  std::string thrown;
  std::string seen_by_rank_0;
  try {
    run_ranks(2, 5s, [&](Communicator& world) {
      const auto part = world.split(0, 0);
      float value = 1;
      const Tensor data{std::span(&value, 1)};
      if (world.rank() == 1) {
        const Work dropped = part->start_all_reduce(data, data, ReduceOp::kSum, kFirst);
        throw ConfigError("the token file ends");
      }
      try {
        world.barrier(kSecond);
      } catch (const CommError& error) {
        seen_by_rank_0 = error.what();
        throw;
      }
    });
  } catch (const ConfigError& error) {
    thrown = error.what();
  }
  EXPECT_EQ(thrown, "the token file ends");
  EXPECT_THAT(seen_by_rank_0, HasSubstr("rank 1 failed: an error unwound its program while a started call"));
}

TEST(StartedWork, ASecondWaitReturnsOrThrowsTheSame) {
  run_ranks(2, 5s, [](Communicator& communicator) {
    float value = 1;
    const Tensor data{std::span(&value, 1)};
    Work work = communicator.start_all_reduce(data, data, ReduceOp::kSum, kFirst);
    work.wait();
    work.wait();
    EXPECT_EQ(value, 2);
  });
  std::array<std::string, 2> errors;
  try {
    run_ranks(2, 1s, [&](Communicator& communicator) {
      if (communicator.rank() == 1) return;
      float value = 1;
      const Tensor data{std::span(&value, 1)};
      Work work = communicator.start_all_reduce(data, data, ReduceOp::kSum, kFirst);
      for (std::string& error : errors) {
        try {
          work.wait();
        } catch (const CommError& thrown) {
          error = thrown.what();
        }
      }
    });
  } catch (const CommError&) {
  }
  EXPECT_THAT(errors[0], HasSubstr("rank 1 has ended without taking part"));
  EXPECT_EQ(errors[1], errors[0]);
}

TEST(StartedWork, OneNameHasOneWorkUnderWay) {
  run_ranks(2, 5s, [](Communicator& communicator) {
    std::array<float, 3> values{1, 1, 1};
    const auto start = [&](std::size_t i, const Message& message) {
      const Tensor data{std::span(&values[i], 1)};
      return communicator.start_all_reduce(data, data, ReduceOp::kSum, message);
    };
    Work first = start(0, kFirst);
    try {
      Work again = start(1, kFirst);
      ADD_FAILURE() << "two works of one name";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("start of all_reduce"), HasSubstr("rank "), HasSubstr("\"first\""),
                                      HasSubstr("dp_gradient, layer 0"), HasSubstr("before the first one was waited")));
    }
    Work of_another_layer = start(1, {kClass, "first", 1});
    Work of_another_class = start(2, {sim::TrafficClass::kControl, "first", 0});
    first.wait();
    Work next = start(0, kFirst);
    next.wait();
    EXPECT_EQ(values[0], 4);
    const int other = 1 - communicator.rank();
    float sent = 7;
    float received = 0;
    Work receive = communicator.start_recv(std::span(&received, 1), other, kFirst);
    Work send = communicator.start_send(std::span<const float>(&sent, 1), other, kFirst);
    receive.wait();
    EXPECT_EQ(received, 7);
  });
}

TEST(StartedWork, WrongArgumentsAreRefusedAtTheStart) {
  run_ranks(2, 5s, [](Communicator& communicator) {
    std::vector<float> input(4, 1);
    std::vector<float> output(3);
    EXPECT_THROW(
        (void)communicator.start_all_reduce(std::span<const float>(input), std::span(output), ReduceOp::kSum, kFirst),
        ConfigError);
    EXPECT_THROW((void)communicator.start_send(std::span<const float>(input), 2, kFirst), ConfigError);
    Work work = communicator.start_all_reduce(std::span<const float>(input), std::span(input), ReduceOp::kSum, kFirst);
    work.wait();
    EXPECT_EQ(input, std::vector<float>(4, 2));
  });
}

// The statistics of a class that no rank, mode or order can change.
void expect_same(const ClassStatistics& got, const ClassStatistics& want) {
  EXPECT_EQ(got.digest, want.digest);
  EXPECT_EQ(got.total().messages, want.total().messages);
  EXPECT_EQ(got.total().packets, want.total().packets);
  EXPECT_EQ(got.total().lost_packets, want.total().lost_packets);
  EXPECT_EQ(got.total().residual_packets, want.total().residual_packets);
  EXPECT_EQ(got.total().bursts, want.total().bursts);
  EXPECT_EQ(got.total().gaps, want.total().gaps);
  EXPECT_EQ(got.collectives, want.collectives);
  EXPECT_EQ(got.untouched, want.untouched);
  EXPECT_EQ(got.sampled_calls, want.sampled_calls);
  EXPECT_EQ(got.error_energy, want.error_energy);
  EXPECT_EQ(got.divergence_max, want.divergence_max);
}

struct Outcome {
  std::vector<std::byte> bytes;
  ClassStatistics statistics;
  double seconds = 0;
};

Outcome run_lossy_programs(Communicator& inner, const LossyOptions& options, Calls calls) {
  LossyCommunicator lossy(inner, options);
  const ProgramGroups groups(lossy);
  Outcome outcome;
  for (std::uint64_t step = 0; step < 12; ++step) {
    lossy.begin_step(step);
    const auto bytes = run_started_program(groups, step + 5000, kRecoveryClass, calls);
    outcome.bytes.insert(outcome.bytes.end(), bytes.begin(), bytes.end());
  }
  lossy.verify_fates();
  outcome.statistics = lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit).at(0);
  if (options.time) outcome.seconds = lossy.collect_time()->seconds;
  return outcome;
}

TEST(StartedWork, FatesResultsAndStatisticsOfALossLayerAreThoseOfBlockingCalls) {
  for (const PathEntry& path : paths()) {
    for (const Fill fill : {Fill::kZero, Fill::kStale}) {
      SCOPED_TRACE(std::string(path.name) + (fill == Fill::kStale ? ", stale" : ""));
      ClassNetwork network = recovery_network(path.name, 0.1, 0.1);
      network.reduce.fill = network.gather.fill = fill;
      if (path.has_groups) network.group_ranks = 2;
      LossyOptions options = recovery_options(network);
      options.sample_every_steps = 3;
      run_ranks(3, 60s, [&](Communicator& inner) {
        const Outcome blocking = run_lossy_programs(inner, options, Calls::kBlocking);
        const Outcome started = run_lossy_programs(inner, options, Calls::kStarted);
        EXPECT_EQ(started.bytes, blocking.bytes);
        EXPECT_GT(blocking.statistics.total().lost_packets, 0U);
        expect_same(started.statistics, blocking.statistics);
      });
    }
  }
}

LossyOptions lossless_options(const PathEntry& path, sim::TrafficClass traffic_class) {
  ClassNetwork network = recovery_network(path.name, 0, 0);
  if (path.has_groups) network.group_ranks = 2;
  LossyOptions options;
  options.network.of(traffic_class) = network;
  return options;
}

TEST(StartedWork, AWaitOnALossLayerNeedsOnlyThatThePeersHaveStarted) {
  for (const PathEntry& path : paths()) {
    SCOPED_TRACE(path.name);
    std::atomic<int> waits = 0;
    run_ranks(2, 30s, [&](Communicator& inner) {
      LossyCommunicator lossy(inner, lossless_options(path, kClass));
      check_waits_need_starts_alone(lossy, waits);
    });
  }
}

TEST(StartedWork, GroupsOfALossLayerMayBeStartedInDifferentOrders) {
  run_ranks(2, 5s, [](Communicator& inner) {
    LossyCommunicator world(inner, lossless_options(paths()[1], kClass));
    const auto part = world.split(0, 0);
    float of_world = 1;
    float of_part = 2;
    const auto start = [](Communicator& group, float& value) {
      const Tensor data{std::span(&value, 1)};
      return group.start_all_reduce(data, data, ReduceOp::kSum, kFirst);
    };
    Work first = world.rank() == 0 ? start(world, of_world) : start(*part, of_part);
    Work second = world.rank() == 0 ? start(*part, of_part) : start(world, of_world);
    first.wait();
    second.wait();
    EXPECT_EQ(of_world, 2);
    EXPECT_EQ(of_part, 4);
  });
}

TEST(StartedWork, AReceiveOfALossLayerMayBeStartedBeforeABlockingSend) {
  run_ranks(2, 5s, [](Communicator& inner) {
    LossyCommunicator lossy(inner, lossless_options(paths()[1], kClass));
    const int other = 1 - lossy.rank();
    std::vector<float> sent(100000, 7);
    std::vector<float> received(sent.size());
    Work receive = lossy.start_recv(std::span(received), other, kFirst);
    lossy.send(std::span<const float>(sent), other, kFirst);
    receive.wait();
    EXPECT_EQ(received, sent);
  });
}

// Packets have the order of the starts, and each call has its own stale values.
TEST(StartedWork, FatesAreDrawnAtTheStart) {
  const auto results = [](bool blocking) {
    std::vector<std::vector<float>> of_calls(3);
    run_ranks(2, 5s, [&](Communicator& inner) {
      ClassNetwork network = recovery_network("contribution", 0.3, 0);
      network.reduce.fill = Fill::kStale;
      LossyCommunicator lossy(inner, recovery_options(network));
      std::vector<std::vector<float>> data(3, std::vector<float>(4000, static_cast<float>(inner.rank() + 1)));
      const std::array<std::string, 3> names{"a", "b", "c"};
      std::vector<Work> works;
      for (std::size_t i = 0; i < data.size(); ++i) {
        const Tensor all{std::span(data[i])};
        works.push_back(lossy.start_all_reduce(all, all, ReduceOp::kSum, {kRecoveryClass, names[i], 0}));
        if (blocking) works.back().wait();
      }
      for (std::size_t i = data.size(); i-- > 0;) works[i].wait();
      if (inner.rank() == 0) of_calls = data;
    });
    return of_calls;
  };
  const auto started = results(false);
  EXPECT_EQ(started, results(true));
  EXPECT_NE(started[0], started[1]);
}

// The first call may be under way when the second one begins, which needs the stale values of the first.
TEST(StartedWork, ABlockingCallOfTheSameNameComesAfterTheStartedOne) {
  const auto result = [](bool started) {
    std::vector<float> last;
    run_ranks(3, 30s, [&](Communicator& inner) {
      ClassNetwork network = recovery_network("ring", 0.3, 0.3);
      network.reduce.fill = network.gather.fill = Fill::kStale;
      LossyCommunicator lossy(inner, recovery_options(network));
      std::vector<float> first = recovery_values(1, inner.rank(), 200000);
      std::vector<float> second = recovery_values(2, inner.rank(), first.size());
      const Message message{kRecoveryClass, "a", 0};
      Work work = lossy.start_all_reduce(std::span(first), std::span(first), ReduceOp::kSum, message);
      if (!started) work.wait();
      lossy.all_reduce(std::span(second), ReduceOp::kSum, message);
      work.wait();
      if (inner.rank() == 0) last = second;
    });
    return last;
  };
  EXPECT_EQ(result(true), result(false));
}

// A message does not wait for the collectives that its rank has started.
TEST(StartedWork, ABlockingMessageDoesNotWaitForStartedCollectives) {
  run_ranks(2, 5s, [](Communicator& inner) {
    LossyCommunicator lossy(inner, lossless_options(paths()[1], kClass));
    std::vector<float> data(100, 1);
    float value = 3;
    const auto start = [&] {
      return lossy.start_all_reduce(std::span(data), std::span(data), ReduceOp::kSum, kSecond);
    };
    if (lossy.rank() == 0) {
      Work work = start();
      lossy.send(std::span<const float>(&value, 1), 1, kFirst);
      work.wait();
    } else {
      value = 0;
      lossy.recv(std::span(&value, 1), 0, kFirst);
      EXPECT_EQ(value, 3);
      start().wait();
    }
    EXPECT_EQ(data, std::vector<float>(100, 2));
  });
}

// The channel is for the thread that runs collectives.
TEST(StartedWork, OnlyStartedCollectivesTakeAChannel) {
  class WithChannels final : public ObservedCommunicator {
   public:
    explicit WithChannels(Communicator& inner) : ObservedCommunicator(inner, [](const auto&...) {}), inner_(inner) {}
    std::unique_ptr<Communicator> channel(int number) override {
      ++channels;
      return inner_.channel(number);
    }
    int channels = 0;

   private:
    Communicator& inner_;
  };
  run_ranks(2, 5s, [](Communicator& backend) {
    WithChannels inner(backend);
    LossyCommunicator lossy(inner, lossless_options(paths()[1], kClass));
    std::vector<float> data(100, 1);
    std::vector<float> received(100);
    const int other = 1 - lossy.rank();
    Work send = lossy.start_send(std::span<const float>(data), other, kFirst);
    Work receive = lossy.start_recv(std::span(received), other, kFirst);
    receive.wait();
    send.wait();
    EXPECT_EQ(received, data);
    EXPECT_EQ(inner.channels, 0);
    for (int call = 0; call < 2; ++call) {
      lossy.start_all_reduce(std::span(data), std::span(data), ReduceOp::kSum, kFirst).wait();
      EXPECT_EQ(inner.channels, 1);
    }
    EXPECT_EQ(data, std::vector<float>(100, 4));
  });
}

TEST(StartedWork, AReceiveOfANameThatIsUnderWayIsRefused) {
  run_ranks(2, 5s, [](Communicator& inner) {
    LossyCommunicator lossy(inner, lossless_options(paths()[1], kClass));
    std::vector<float> data(100, 1);
    if (lossy.rank() == 0) return lossy.send(std::span<const float>(data), 1, kFirst);
    std::vector<float> received(100);
    Work work = lossy.start_recv(std::span(received), 0, kFirst);
    const Receive again{std::span(data), 0, kFirst};
    for (const bool exchanges : {false, true}) {
      try {
        exchanges ? lossy.exchange({}, std::span(&again, 1)) : lossy.recv(std::span(data), 0, kFirst);
        ADD_FAILURE() << "not refused";
      } catch (const ConfigError& error) {
        EXPECT_THAT(error.what(), AllOf(HasSubstr("got a second \"first\""), HasSubstr("from rank 0")));
      }
    }
    work.wait();
    EXPECT_EQ(received, data);
  });
}

TEST(StartedWork, SumsOfSamplesDoNotDependOnTheOrderOfTheWaits) {
  const auto energy = [](bool reversed) {
    double sum = 0;
    run_ranks(2, 5s, [&](Communicator& inner) {
      LossyOptions options = recovery_options(recovery_network("contribution", 0.2, 0));
      options.sample_every_steps = 1;
      LossyCommunicator lossy(inner, options);
      lossy.begin_step(0);
      const std::array<std::string, 3> names{"a", "b", "c"};
      std::vector<std::vector<float>> data;
      std::vector<Work> works;
      for (std::size_t i = 0; i < names.size(); ++i) {
        data.push_back(recovery_values(static_cast<int>(i), inner.rank(), 5000));
        for (float& x : data[i]) x *= std::array{1.0F, 1e-3F, 0.37F}[i];
      }
      for (std::size_t i = 0; i < names.size(); ++i) {
        const Tensor all{std::span(data[i])};
        works.push_back(lossy.start_all_reduce(all, all, ReduceOp::kSum, {kRecoveryClass, names[i], 0}));
      }
      if (reversed) std::ranges::reverse(works);
      for (Work& work : works) work.wait();
      const auto statistics = lossy.collect_statistics(LinkDetail::kOmit);
      if (inner.rank() == 0) sum = statistics.at(0).exact_energy + statistics.at(0).error_energy;
    });
    return sum;
  };
  EXPECT_EQ(energy(true), energy(false));
}

struct ScopeOutcome {
  std::vector<std::vector<float>> results;
  std::uint64_t digest = 0;
  std::uint64_t collectives = 0;
  double seconds = 0;
  friend bool operator==(const ScopeOutcome&, const ScopeOutcome&) = default;
};

// A lossy all-reduce that is waited for in a scope, two reliable ones, the second of which is waited for after it, and
// a lossy one.
ScopeOutcome around_a_scope(const LossyOptions& options, bool blocking) {
  ScopeOutcome outcome;
  run_ranks(2, 5s, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    lossy.begin_step(0);
    std::vector<std::vector<float>> data;
    for (int i = 0; i < 4; ++i) data.push_back(recovery_values(i, inner.rank(), 4000));
    const auto start = [&](std::size_t i) {
      const Tensor all{std::span(data[i])};
      Work work = lossy.start_all_reduce(all, all, ReduceOp::kSum, {kRecoveryClass, "sum " + std::to_string(i), 0});
      if (blocking) work.wait();
      return work;
    };
    Work before = start(0);
    Work within;
    {
      const LossyCommunicator::LosslessScope scope(lossy);
      lossy.all_reduce(std::span(data[1]), ReduceOp::kSum, {kRecoveryClass, "sum 1", 0});
      within = start(2);
      before.wait();
    }
    within.wait();
    start(3).wait();
    lossy.verify_fates();
    const ClassStatistics statistics = lossy.collect_statistics(LinkDetail::kOmit).at(0);
    const double seconds = options.time ? lossy.collect_time()->seconds : 0;
    if (inner.rank() == 0) outcome = {data, statistics.digest, statistics.collectives, seconds};
  });
  return outcome;
}

TEST(StartedWork, ALosslessScopeIsForTheCallsThatStartInIt) {
  ClassNetwork network = recovery_network("direct", 0.2, 0.2);
  LossyOptions plain = recovery_options(network);
  LossyOptions timed = plain;
  timed.time = model_of();
  apply_recovery(network, protocol("selective_repeat", 1));
  LossyOptions at_the_wait = recovery_options(network);  // is planned there
  at_the_wait.time = timed.time;
  for (const LossyOptions& options : {plain, timed, at_the_wait}) {
    const ScopeOutcome outcome = around_a_scope(options, false);
    EXPECT_EQ(outcome, around_a_scope(options, true));
    EXPECT_EQ(outcome.collectives, 2U);
    for (std::size_t i = 0; i < outcome.results.size(); ++i) {
      const std::vector<float> mine = recovery_values(static_cast<int>(i), 0, 4000);
      const std::vector<float> other = recovery_values(static_cast<int>(i), 1, 4000);
      std::size_t wrong = 0;
      for (std::size_t e = 0; e < mine.size(); ++e) wrong += outcome.results[i][e] == mine[e] + other[e] ? 0 : 1;
      EXPECT_EQ(wrong == 0, i == 1 || i == 2) << i;
    }
  }
}

TEST(StartedWork, AWorkOfALossLayerThatIsDroppedWaitsAndAnErrorNamesItsRank) {
  run_ranks(2, 5s, [](Communicator& inner) {
    LossyCommunicator lossy(inner, lossless_options(paths()[0], kClass));
    std::vector<float> data(100, 1);
    { const Work dropped = lossy.start_all_reduce(std::span(data), std::span(data), ReduceOp::kSum, kFirst); }
    EXPECT_EQ(data, std::vector<float>(100, 2));
  });
  std::string error;
  EXPECT_THROW(run_ranks(2, 5s,
                         [&](Communicator& inner) {
                           LossyCommunicator lossy(inner, lossless_options(paths()[0], kClass));
                           std::vector<float> data(100, 1);
                           if (inner.rank() == 1) throw std::runtime_error("out of disk");
                           Work work = lossy.start_all_reduce(std::span(data), std::span(data), ReduceOp::kSum, kFirst);
                           try {
                             work.wait();
                           } catch (const CommError& thrown) {
                             error = thrown.what();
                             throw;
                           }
                         }),
               std::runtime_error);
  EXPECT_THAT(error, AllOf(HasSubstr("rank 1 failed: out of disk"), HasSubstr("first")));
}

TEST(StartedWork, ALossLayerMayOwnWhatItDecorates) {
  run_ranks(2, 5s, [](Communicator& world) {
    auto lossy = std::make_unique<LossyCommunicator>(world.split(0, 0), lossless_options(paths()[1], kClass));
    float value = 1;
    lossy->all_reduce(Tensor(std::span(&value, 1)), ReduceOp::kSum, kFirst);
    EXPECT_EQ(value, 2);
  });
}

}  // namespace
}  // namespace droptest::comm::started_work_test
