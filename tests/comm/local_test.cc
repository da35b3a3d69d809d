// SPDX-License-Identifier: Apache-2.0
#include "comm/local/local_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "comm/run_ranks.h"
#include "sim/error.h"
#include "tests/comm/conformance.h"
#include "tests/comm/fake_clock.h"

namespace droptest::comm::local_test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const Message kMessage{.traffic_class = sim::TrafficClass::kTpBackward, .name = "grad.wte", .layer = 3};

// Runs `body` on every rank and returns the text of each rank's CommError; "" if it threw none. `failed` counts the
// ranks that have thrown.
std::vector<std::string> errors_of(int world_size, std::chrono::milliseconds timeout,
                                   const std::function<void(Communicator&)>& body, const Clock& clock = steady_clock(),
                                   std::atomic<int>* failed = nullptr) {
  std::vector<std::string> errors(static_cast<std::size_t>(world_size));
  const auto noting_errors = [&](Communicator& communicator) {
    try {
      body(communicator);
    } catch (const CommError& error) {
      errors[static_cast<std::size_t>(communicator.rank())] = error.what();
      if (failed != nullptr) failed->fetch_add(1), failed->notify_all();
      throw;
    }
  };
  try {
    run_ranks(world_size, timeout, noting_errors, clock);
  } catch (const std::exception&) {
  }
  return errors;
}

TEST(Local, EveryOperationEqualsItsRankOrderReference) {
  for (const int world_size : {1, 2, 3, 5, 7, 8}) {
    SCOPED_TRACE(world_size);
    EXPECT_NO_THROW(run_ranks(world_size, 60s, [](Communicator& communicator) { check_conformance(communicator); }));
  }
}

TEST(Local, PartsOfASplitConformToo) {
  for (const int world_size : {2, 3, 5, 7}) {
    SCOPED_TRACE(world_size);
    EXPECT_NO_THROW(run_ranks(world_size, 60s, [](Communicator& communicator) {
      if (communicator.world_size() > 1) check_conformance_of_splits(communicator);
    }));
  }
}

TEST(Local, ChannelsConformAtTheSameTime) {
  for (const int world_size : {1, 2, 5}) {
    EXPECT_NO_THROW(
        run_ranks(world_size, 60s, [](Communicator& communicator) { check_conformance_of_channels(communicator); }));
  }
}

TEST(Local, ARankThatStopsInAChannelIsNamedToTheOthers) {
  std::string error;
  EXPECT_THROW(run_ranks(3, 100ms,
                         [&](Communicator& communicator) {
                           const auto channel = communicator.channel(1);
                           if (communicator.rank() == 2) return;
                           float value = 1;
                           try {
                             channel->all_reduce(Tensor(std::span(&value, 1)), ReduceOp::kSum,
                                                 {.name = "of a channel"});
                           } catch (const CommError& thrown) {
                             if (communicator.rank() == 0) error = thrown.what();
                             throw;
                           }
                         }),
               CommError);
  EXPECT_THAT(error, AllOf(HasSubstr("rank 2"), HasSubstr("of a channel")));
}

// Rank 1 waits in another channel; in this channel it is in no call.
TEST(Local, TheChannelsOfARankWaitEachForItself) {
  FakeClock clock;
  std::atomic<int> failed = 0;
  std::atomic<int> moved = 0;
  std::jthread mover([&] {
    clock.await_waiters(2);
    clock.advance(100ms);
    ++moved;
    moved.notify_all();
  });
  const auto errors = errors_of(
      2, 100ms,
      [&moved](Communicator& communicator) {
        const std::array channels{communicator.channel(0), communicator.channel(1)};
        float value = 1;
        const auto rank = static_cast<std::size_t>(communicator.rank());
        try {
          channels[rank]->all_reduce(Tensor(std::span(&value, 1)), ReduceOp::kSum, {.name = "of a channel"});
        } catch (...) {
          await(moved, 1);  // the clock still wakes the others, in the memory of the group
          throw;
        }
      },
      clock, &failed);
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("alive?"), Not(HasSubstr("is in")), Not(HasSubstr("wait for each other"))));
  }
}

TEST(Local, LargeExchangesConform) {
  EXPECT_NO_THROW(run_ranks(3, 60s, [](Communicator& communicator) { check_large_exchanges(communicator); }));
}

TEST(Local, SumsGoInRankOrder) {
  // (1e8 + 1) - 1e8 is 0 in float, 1e8 - 1e8 + 1 is 1.
  const std::vector<float> inputs = {1e8F, 1.0F, -1e8F};
  run_ranks(3, 60s, [&](Communicator& communicator) {
    float value = inputs[static_cast<std::size_t>(communicator.rank())];
    communicator.all_reduce(std::span(&value, 1), ReduceOp::kSum, kMessage);
    EXPECT_EQ(value, 0.0F);
  });
}

TEST(Local, ANanIsTheMaximum) {
  for (int nan_rank = 0; nan_rank < 3; ++nan_rank) {
    run_ranks(3, 60s, [&](Communicator& communicator) {
      double value = communicator.rank() == nan_rank ? std::nan("") : 1e300;
      communicator.all_reduce(std::span(&value, 1), ReduceOp::kMax, kMessage);
      EXPECT_TRUE(std::isnan(value));
    });
  }
}

TEST(Local, ARankMaySendToItself) {
  run_ranks(1, 60s, [](Communicator& communicator) {
    const std::vector<float> sent = {1.0F, 2.0F};
    std::vector<float> got(2);
    communicator.send(std::span<const float>(sent), 0, kMessage);
    communicator.recv(std::span(got), 0, kMessage);
    EXPECT_EQ(got, sent);
  });
}

TEST(Local, ManySmallCollectivesKeepTheirOrder) {
  run_ranks(5, 60s, [](Communicator& communicator) {
    for (std::uint64_t i = 0; i < 2000; ++i) {
      std::uint64_t value = i + static_cast<std::uint64_t>(communicator.rank());
      communicator.all_reduce(std::span(&value, 1), ReduceOp::kSum, kMessage);
      ASSERT_EQ(value, 5 * i + 10);
    }
  });
}

TEST(Local, BarrierHoldsBackEveryRank) {
  // The last rank calls when the others wait.
  FakeClock clock;
  std::atomic<int> entered = 0;
  const auto body = [&](Communicator& communicator) {
    if (communicator.rank() == 3) clock.await_waiters(3);
    ++entered;
    communicator.barrier(kMessage);
    EXPECT_EQ(entered.load(), 4);
  };
  run_ranks(4, 60s, body, clock);
}

TEST(LocalFailure, AStalledRankIsNamedWithTheOperationOnEveryRank) {
  FakeClock clock;
  std::atomic<int> failed = 0;
  const auto body = [&](Communicator& communicator) {
    communicator.begin_step(117);
    std::vector<float> data(1000);
    if (communicator.rank() == 2) {
      clock.await_waiters(3);
      clock.advance(299ms);
      clock.await_waiters(3);
      EXPECT_EQ(failed, 0);
      clock.advance(1ms);
      await(failed, 3);
    }
    communicator.all_reduce(std::span(data), ReduceOp::kSum, kMessage);
  };
  const auto errors = errors_of(4, 300ms, body, clock, &failed);
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("all_reduce: rank "), HasSubstr("of 4"), HasSubstr("no data from rank 2 "),
                             HasSubstr("for 300 ms"), HasSubstr("(step 117, grad.wte of layer 3, 4000 bytes)")));
  }
}

TEST(LocalFailure, AStalledRankIsNamedByRanksThatDoNotWaitForIt) {
  // 0 waits for 1, 1 for 2, 2 for 3, which stalls. Rank 0 starts to wait first and so is the first to time out.
  FakeClock clock;
  std::atomic<int> failed = 0;
  const auto body = [&](Communicator& communicator) {
    float value = 0;
    clock.await_waiters(static_cast<std::size_t>(communicator.rank()));
    if (communicator.rank() == 3) {
      clock.advance(397ms);
      clock.await_waiters(3);
      EXPECT_EQ(failed, 0);
      clock.advance(1ms);
      await(failed, 3);
      communicator.barrier(kMessage);
    } else {
      clock.advance(1ms);  // the next rank times out later than this one
      communicator.recv(std::span(&value, 1), communicator.rank() + 1, kMessage);
    }
  };
  const auto errors = errors_of(4, 400ms, body, clock, &failed);
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("no data from rank 3 for 400 ms"));
  EXPECT_THAT(errors[0], HasSubstr("recv: rank 0 of 4"));
  EXPECT_THAT(errors[0], HasSubstr("rank 1 is in recv(1 float32, \"grad.wte\", layer 3, tp_backward)"));
}

TEST(LocalFailure, ADeadlockNamesTheCircle) {
  const auto errors = errors_of(2, 100ms, [](Communicator& communicator) {
    float value = 0;
    communicator.recv(std::span(&value, 1), 1 - communicator.rank(), kMessage);
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("the ranks wait for each other"));
}

TEST(LocalFailure, AThrowingRankIsNamedWithItsReason) {
  const auto errors = errors_of(3, 60s, [](Communicator& communicator) {
    std::vector<double> data(10);
    if (communicator.rank() == 1) throw ConfigError("token file ends");
    communicator.broadcast(std::span(data), 0, kMessage);
  });
  EXPECT_EQ(errors[1], "");
  for (const int rank : {0, 2}) {
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)],
                AllOf(HasSubstr("broadcast: rank " + std::to_string(rank) + " of 3"),
                      HasSubstr("rank 1 failed: token file ends"), HasSubstr("grad.wte")));
  }
}

TEST(LocalFailure, FailuresReachRanksThatAreInOtherGroups) {
  const auto errors = errors_of(5, 60s, [](Communicator& communicator) {
    const auto part = communicator.split(communicator.rank() / 2, 0);  // {0, 1}, {2, 3}, {4}
    if (communicator.rank() == 4) throw ConfigError("rank 4 gives up");
    for (;;) part->barrier(kMessage);
  });
  for (std::size_t r = 0; r < 4; ++r) EXPECT_THAT(errors[r], HasSubstr("rank 4 failed: rank 4 gives up"));
}

TEST(LocalFailure, ARankThatReturnsEarlyIsNamedAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  const auto errors = errors_of(3, 60s, [](Communicator& communicator) {
    if (communicator.rank() != 1) communicator.barrier(kMessage);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
  EXPECT_THAT(errors[0], HasSubstr("rank 1 has ended without taking part"));
  EXPECT_THAT(errors[2], HasSubstr("rank 1 has ended without taking part"));
}

struct Mismatch {
  const char* name;
  std::function<void(Communicator&)> odd;  ///< the calls of rank 1; the others all_reduce 10 floats
  const char* text;
};

TEST(LocalFailure, RanksThatCallDifferentThingsAllSayWhoCalledWhat) {
  const std::vector<Mismatch> mismatches = {
      {"operation", [](Communicator& c) { c.barrier(kMessage); }, "rank 1: barrier(\"grad.wte\", layer 3"},
      {"count",
       [](Communicator& c) {
         std::vector<float> data(11);
         c.all_reduce(std::span(data), ReduceOp::kSum, kMessage);
       },
       "rank 1: all_reduce(sum of 11 float32"},
      {"type",
       [](Communicator& c) {
         std::vector<double> data(10);
         c.all_reduce(std::span(data), ReduceOp::kSum, kMessage);
       },
       "rank 1: all_reduce(sum of 10 float64"},
      {"reduction",
       [](Communicator& c) {
         std::vector<float> data(10);
         c.all_reduce(std::span(data), ReduceOp::kMax, kMessage);
       },
       "rank 1: all_reduce(max of 10 float32"},
      {"name",
       [](Communicator& c) {
         std::vector<float> data(10);
         c.all_reduce(std::span(data), ReduceOp::kSum,
                      {.traffic_class = kMessage.traffic_class, .name = "grad.wpe", .layer = 3});
       },
       "\"grad.wpe\""},
      {"class",
       [](Communicator& c) {
         std::vector<float> data(10);
         c.all_reduce(std::span(data), ReduceOp::kSum, {.name = "grad.wte", .layer = 3});
       },
       "control"},
  };
  for (const Mismatch& mismatch : mismatches) {
    SCOPED_TRACE(mismatch.name);
    const auto errors = errors_of(3, 60s, [&](Communicator& communicator) {
      std::vector<float> data(10);
      if (communicator.rank() == 1) return mismatch.odd(communicator);
      communicator.all_reduce(std::span(data), ReduceOp::kSum, kMessage);
    });
    for (const std::string& error : errors) {
      EXPECT_THAT(error, AllOf(HasSubstr("the ranks call different things"), HasSubstr(mismatch.text),
                               HasSubstr("ranks 0, 2: all_reduce(sum of 10 float32, \"grad.wte\", layer 3")));
    }
  }
}

TEST(LocalFailure, CountsThatDoNotMatchInAllToAllNameBothRanks) {
  const auto errors = errors_of(2, 60s, [](Communicator& communicator) {
    const std::vector<std::uint64_t> send = {1, 1};
    const std::vector<std::uint64_t> receive = communicator.rank() == 0 ? std::vector<std::uint64_t>{1, 3} : send;
    std::vector<float> input(2);
    std::vector<float> output(receive[0] + receive[1]);
    communicator.all_to_all(std::span<const float>(input), send, std::span(output), receive, kMessage);
  });
  for (const auto& error : errors) EXPECT_THAT(error, HasSubstr("rank 1 sends 1 elements to rank 0, which expects 3"));
}

TEST(LocalFailure, AnExchangeWithoutItsOtherEndIsAnError) {
  std::vector<float> sent(4);
  const auto exchange = [&](Communicator& communicator, std::uint64_t count) {
    std::vector<float> received(count);
    const int peer = 1 - communicator.rank();
    const Send send{std::span<const float>(sent), peer, kMessage};
    const Receive receive{std::span(received), peer, kMessage};
    communicator.exchange({&send, 1}, {&receive, 1});
  };
  for (const auto& error : errors_of(2, 60s, [&](Communicator& c) {
         exchange(c, c.rank() == 0 ? 4 : 5);
         c.barrier(kMessage);
       })) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 0 calls exchange(4 float32, \"grad.wte\""),
                             HasSubstr("rank 1 calls exchange(5 float32, \"grad.wte\"")));
  }
  const auto received = errors_of(2, 60s, [&](Communicator& c) {
    if (c.rank() == 0) return exchange(c, 4);
    std::vector<float> data(4);
    c.recv(std::span(data), 0, kMessage);
  });
  for (const auto& error : received) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 0 calls exchange(4 float32"), HasSubstr("rank 1 calls recv(4 float32")));
  }
  const auto alone = errors_of(2, 60s, [&](Communicator& c) {
    if (c.rank() == 0) exchange(c, 4);
  });
  EXPECT_THAT(alone[0], AllOf(HasSubstr("exchange: rank 0 of 2"), HasSubstr("rank 1 has ended without taking part")));
}

TEST(LocalFailure, ReceivingSomethingElseThanWasSentIsAnError) {
  const auto errors = errors_of(2, 60s, [](Communicator& communicator) {
    std::vector<float> data(4);
    if (communicator.rank() == 0) {
      communicator.send(std::span<const float>(data), 1, kMessage);
      communicator.barrier(kMessage);
    } else {
      communicator.recv(std::span(data).first(3), 0, kMessage);
    }
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 0 calls send(4 float32"));
  EXPECT_THAT(errors[1], HasSubstr("rank 1 calls recv(3 float32"));
}

TEST(LocalArguments, WrongOnOneRankAloneIsAConfigErrorThere) {
  run_ranks(1, 60s, [](Communicator& communicator) {
    std::vector<float> data(10);
    const std::vector<std::uint64_t> counts = {10};
    const std::span<float> all(data);
    EXPECT_THROW(communicator.all_reduce(all.first(4), all.subspan(2, 4), ReduceOp::kSum, kMessage), ConfigError);
    EXPECT_THROW(communicator.all_reduce(all.first(4), all.subspan(4, 5), ReduceOp::kSum, kMessage), ConfigError);
    EXPECT_THROW(communicator.broadcast(all, 1, kMessage), ConfigError);
    EXPECT_THROW(communicator.send(all, -1, kMessage), ConfigError);
    EXPECT_THROW(communicator.all_gather(all, all, std::vector<std::uint64_t>{5, 5}, kMessage), ConfigError);
    EXPECT_THROW(communicator.all_gather(all.first(9), all, counts, kMessage), ConfigError);
    std::vector<double> doubles(10);
    EXPECT_THROW(communicator.all_reduce(all, std::span(doubles), ReduceOp::kSum, kMessage), ConfigError);
  });
}

}  // namespace
}  // namespace droptest::comm::local_test
