// SPDX-License-Identifier: Apache-2.0
// Collectives with the caller's own reduction: values, in place and not, and failures of a reduction.
#include "comm/part_reduction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "tests/comm/fake_clock.h"

namespace droptest::comm::part_reduction_test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

const Message kMessage{.traffic_class = sim::TrafficClass::kTpBackward, .name = "grad.wte", .layer = 3};

// A communicator that runs calls with a reduction as other calls.
class Plain final : public Communicator {
 public:
  explicit Plain(Communicator& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  int world_rank(int rank) const override { return inner_.world_rank(rank); }
  std::string_view backend() const override { return "plain"; }
  void run(const CallArguments& call) override {
    const bool has_reduction =
        call.operation == Operation::kAllReduceWith || call.operation == Operation::kReduceScatterWith;
    has_reduction ? run_as_other_calls(call) : inner_.run(call);
  }
  std::unique_ptr<Communicator> split(int color, int key) override { return inner_.split(color, key); }
  void abort(std::string_view reason) noexcept override { inner_.abort(reason); }

 private:
  Communicator& inner_;
};

// Rank `owner` computes owner + sum over ranks of (rank + 2) * x: it tells contributions and owners apart.
class WeightedSum final : public PartReduction {
 public:
  WeightedSum(int owner, std::uint64_t count_elems) : owner_(owner), count_elems_(count_elems) {}
  std::function<void()> before = [] {};
  int calls = 0;
  std::vector<int> seen;  ///< owners of all ranks' reductions, if they share memory

  static double weight(std::size_t rank) { return static_cast<double>(rank + 2); }

  void reduce(std::span<const std::byte* const> contributions, std::span<std::byte* const> results,
              std::span<const PartReduction* const> reductions) override {
    ++calls;
    seen.clear();
    for (const PartReduction* reduction : reductions) {
      seen.push_back(dynamic_cast<const WeightedSum&>(*reduction).owner_);
    }
    before();
    for (std::uint64_t i = 0; i < count_elems_; ++i) {
      double sum = owner_;
      for (std::size_t r = 0; r < contributions.size(); ++r) {
        sum += weight(r) * reinterpret_cast<const double*>(contributions[r])[i];
      }
      for (std::byte* result : results) reinterpret_cast<double*>(result)[i] = sum;
    }
  }

 private:
  int owner_;
  std::uint64_t count_elems_;
};

double input_value(int rank, std::uint64_t i) { return static_cast<double>((i * 7 + 3) % 101) + 1000.0 * rank; }

std::vector<double> input_of(int rank, std::uint64_t count) {
  std::vector<double> input(count);
  for (std::uint64_t i = 0; i < count; ++i) input[i] = input_value(rank, i);
  return input;
}

double wanted(int world_size, int owner, std::uint64_t i) {
  double sum = owner;
  for (int r = 0; r < world_size; ++r) sum += WeightedSum::weight(static_cast<std::size_t>(r)) * input_value(r, i);
  return sum;
}

std::vector<double> wanted_of_all(int world_size, std::span<const std::uint64_t> counts) {
  std::vector<double> want;
  for (int owner = 0; owner < world_size; ++owner) {
    for (std::uint64_t left = counts[static_cast<std::size_t>(owner)]; left > 0; --left) {
      want.push_back(wanted(world_size, owner, want.size()));
    }
  }
  return want;
}

enum class Kind { kOverridden, kDefault };
class PartReductions : public ::testing::TestWithParam<Kind> {
 protected:
  static void run(int world_size, const std::function<void(Communicator&)>& body) {
    run_ranks(world_size, 60s, [&](Communicator& inner) {
      if (GetParam() == Kind::kOverridden) return body(inner);
      Plain plain(inner);
      body(plain);
    });
  }

  // The ranks whose reductions each rank sees.
  static std::vector<int> ranks_in_sight(int world_size) {
    std::vector<int> ranks(GetParam() == Kind::kOverridden ? static_cast<std::size_t>(world_size) : 0);
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
};

TEST_P(PartReductions, AllReduceGivesEveryRankWhatTheOwnersMake) {
  for (const int world_size : {1, 2, 3, 4, 5}) {
    for (const std::uint64_t count : {0, 1, 2, 5, 1003, 40001}) {  // the last ones are worth waking others for
      SCOPED_TRACE(std::to_string(world_size) + " ranks, " + std::to_string(count) + " elements");
      const auto counts = even_counts(count, world_size);
      const std::vector<double> want = wanted_of_all(world_size, counts);
      run(world_size, [&](Communicator& communicator) {
        const int rank = communicator.rank();
        const std::vector<double> input = input_of(rank, count);
        std::vector<double> output(count, -1);
        WeightedSum apart(rank, counts[static_cast<std::size_t>(rank)]);
        communicator.all_reduce_with(std::span<const double>(input), std::span(output), apart, kMessage);
        EXPECT_EQ(output, want);
        EXPECT_EQ(input, input_of(rank, count));
        EXPECT_EQ(apart.calls, 1);  // called for an empty part, too
        EXPECT_EQ(apart.seen, ranks_in_sight(world_size));

        std::vector<double> data = input;
        WeightedSum in_place(rank, counts[static_cast<std::size_t>(rank)]);
        communicator.all_reduce_with(std::span<const double>(data), std::span(data), in_place, kMessage);
        EXPECT_EQ(data, want);
      });
    }
  }
}

TEST_P(PartReductions, ReduceScatterTakesUnevenParts) {
  for (const int world_size : {1, 2, 3, 4, 5}) {
    SCOPED_TRACE(world_size);
    std::vector<std::uint64_t> counts;
    for (int r = 0; r < world_size; ++r) counts.push_back(r % 3 == 1 ? 0 : static_cast<std::uint64_t>(17 * r + 1));
    counts.back() += 5000;
    const std::uint64_t total = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
    const std::vector<double> all = wanted_of_all(world_size, counts);
    run(world_size, [&](Communicator& communicator) {
      const int rank = communicator.rank();
      const auto own = counts.begin() + rank;
      const std::uint64_t begin = std::accumulate(counts.begin(), own, std::uint64_t{0});
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin);
      const std::vector<double> want(first, first + static_cast<std::ptrdiff_t>(*own));
      std::vector<double> input = input_of(rank, total);
      std::vector<double> output(*own, -1);
      WeightedSum apart(rank, *own);
      communicator.reduce_scatter_with(std::span<const double>(input), std::span(output), counts, apart, kMessage);
      EXPECT_EQ(output, want);
      EXPECT_EQ(input, input_of(rank, total));
      EXPECT_EQ(apart.seen, ranks_in_sight(world_size));

      const std::span<double> part = std::span(input).subspan(begin, *own);
      WeightedSum in_place(rank, *own);
      communicator.reduce_scatter_with(std::span<const double>(input), part, counts, in_place, kMessage);
      EXPECT_EQ(std::vector<double>(part.begin(), part.end()), want);
    });
  }
}

TEST_P(PartReductions, ManyInTurnsWithOtherCollectivesKeepTheirOrder) {
  run(4, [](Communicator& communicator) {
    const int rank = communicator.rank();
    for (int i = 0; i < 500; ++i) {
      std::vector<double> data = input_of(rank, 6);
      const auto counts = even_counts(6, 4);
      WeightedSum reduction(rank, counts[static_cast<std::size_t>(rank)]);
      if (i % 50 == rank) std::this_thread::yield();
      communicator.all_reduce_with(std::span<const double>(data), std::span(data), reduction, kMessage);
      ASSERT_EQ(data, wanted_of_all(4, counts));
      double sum = i + rank;
      communicator.all_reduce(std::span(&sum, 1), ReduceOp::kSum, kMessage);
      ASSERT_EQ(sum, 4 * i + 6);
    }
  });
}

// A default part reduction runs between two collectives, so that a stall counts as a stall.
TEST(LocalPartReduction, TakesLongerThanTheTimeoutAndIsWaitedFor) {
  FakeClock clock;
  const auto body = [&clock](Communicator& communicator) {
    std::vector<double> data = input_of(communicator.rank(), 3);
    WeightedSum reduction(communicator.rank(), 1);
    if (communicator.rank() == 1) reduction.before = [&clock] { clock.advance(250ms); };
    communicator.all_reduce_with(std::span<const double>(data), std::span(data), reduction, kMessage);
    EXPECT_EQ(data, wanted_of_all(3, even_counts(3, 3)));
  };
  run_ranks(3, 100ms, body, clock);
}

struct Outcome {
  std::string own;   ///< text of the rank's own exception
  std::string peer;  ///< text of its CommError
};

// The buffers end with the body, so that a rank that is left in the collective would use freed memory.
std::vector<Outcome> outcomes(int world_size, std::uint64_t count, const std::function<void(int rank)>& in_reduction) {
  std::vector<Outcome> result(static_cast<std::size_t>(world_size));
  try {
    run_ranks(world_size, 20s, [&](Communicator& inner) {
      std::unique_ptr<Plain> plain;
      if (PartReductions::GetParam() == Kind::kDefault) plain = std::make_unique<Plain>(inner);
      Communicator& communicator = plain ? static_cast<Communicator&>(*plain) : inner;
      const int rank = communicator.rank();
      Outcome& outcome = result[static_cast<std::size_t>(rank)];
      try {
        const auto data = std::make_unique<std::vector<double>>(input_of(rank, count));
        WeightedSum reduction(rank, even_counts(count, world_size)[static_cast<std::size_t>(rank)]);
        reduction.before = [&] { in_reduction(rank); };
        communicator.all_reduce_with(std::span<const double>(*data), std::span(*data), reduction, kMessage);
        ADD_FAILURE() << "rank " << rank << " got a result";
      } catch (const CommError& error) {
        outcome.peer = error.what();
        throw;
      } catch (const std::exception& error) {
        outcome.own = error.what();
        throw;
      } catch (const int& number) {
        outcome.own = std::to_string(number);
        throw;
      }
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::exception&) {
  } catch (const int&) {
  }
  return result;
}

TEST_P(PartReductions, OneThatThrowsIsNamedOnEveryRankOfThisVeryCall) {
  for (const int world_size : {2, 3, 4, 5}) {
    for (const std::uint64_t count : {0, 1, 20000}) {
      for (int thrower = 0; thrower < world_size; ++thrower) {
        SCOPED_TRACE(std::to_string(thrower) + " of " + std::to_string(world_size));
        const auto start = std::chrono::steady_clock::now();
        const auto result = outcomes(world_size, count, [&](int rank) {
          if (rank == thrower) throw ConfigError("no such fill");
        });
        EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
        for (int rank = 0; rank < world_size; ++rank) {
          const Outcome& outcome = result[static_cast<std::size_t>(rank)];
          if (rank == thrower) {
            EXPECT_EQ(outcome.own, "no such fill");
            EXPECT_EQ(outcome.peer, "");
          } else {
            EXPECT_EQ(outcome.own, "");
            EXPECT_THAT(outcome.peer, HasSubstr("rank " + std::to_string(thrower) + " failed: no such fill"));
          }
        }
      }
    }
  }
}

TEST_P(PartReductions, EachRankThatThrowsGetsItsOwnException) {
  const auto result = outcomes(4, 4, [](int rank) {
    if (rank != 2) throw ConfigError("reason of " + std::to_string(rank));
  });
  for (const std::size_t rank : {0U, 1U, 3U}) EXPECT_EQ(result[rank].own, "reason of " + std::to_string(rank));
  EXPECT_THAT(result[2].peer, HasSubstr(" failed: reason of "));
}

TEST_P(PartReductions, WhatIsNoStandardExceptionReachesItsRankToo) {
  const auto result = outcomes(3, 10, [](int rank) {
    if (rank == 1) throw 42;
  });
  EXPECT_EQ(result[1].own, "42");
  for (const std::size_t rank : {0U, 2U}) EXPECT_THAT(result[rank].peer, HasSubstr("rank 1 failed: an exception that"));
}

INSTANTIATE_TEST_SUITE_P(Local, PartReductions, ::testing::Values(Kind::kOverridden, Kind::kDefault),
                         [](const auto& param_info) {
                           return param_info.param == Kind::kOverridden ? "InPlace" : "ByDefault";
                         });

// Rank 1 of three ranks calls `odd`, while the others reduce ten doubles. Returns the text of each rank's CommError.
// `failed` counts the ranks with an error.
std::vector<std::string> errors_beside(const std::function<void(Communicator&)>& odd, FakeClock& clock,
                                       std::atomic<int>& failed) {
  std::vector<std::string> errors(3);
  try {
    const auto body = [&](Communicator& communicator) {
      try {
        if (communicator.rank() == 1) return odd(communicator);
        std::vector<double> data(10);
        WeightedSum reduction(communicator.rank(), 3);
        communicator.all_reduce_with(std::span<const double>(data), std::span(data), reduction, kMessage);
      } catch (const CommError& error) {
        errors[static_cast<std::size_t>(communicator.rank())] = error.what();
        ++failed;
        failed.notify_all();
        throw;
      }
    };
    run_ranks(3, 300ms, body, clock);
  } catch (const std::exception&) {
  }
  return errors;
}

TEST(PartReductionFailure, RanksThatDoNotTakePartAreNamed) {
  FakeClock clock;
  std::atomic<int> failed = 0;
  const auto errors_with = [&](const std::function<void(Communicator&)>& odd) {
    failed = 0;
    return errors_beside(odd, clock, failed);
  };
  const auto thrown = errors_with([](Communicator&) { throw ConfigError("token file ends"); });
  const auto ended = errors_with([](Communicator&) {});
  const auto stalled = errors_with([&](Communicator&) {
    clock.await_waiters(2);
    clock.advance(300ms);
    await(failed, 2);
  });
  const auto another = errors_with([](Communicator& communicator) {
    std::vector<double> data(10);
    communicator.all_reduce(std::span(data), ReduceOp::kSum, kMessage);
  });
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_THAT(thrown[rank], AllOf(HasSubstr("all_reduce_with: rank "), HasSubstr("rank 1 failed: token file ends")));
    EXPECT_THAT(ended[rank], HasSubstr("rank 1 has ended without taking part"));
    EXPECT_THAT(stalled[rank], HasSubstr("no data from rank 1 for 300 ms"));
    EXPECT_THAT(another[rank],
                AllOf(HasSubstr("the ranks call different things"), HasSubstr("rank 1: all_reduce(sum of 10 float64"),
                      HasSubstr("ranks 0, 2: all_reduce_with(")));
  }
}

TEST(PartReductionArguments, WrongOnOneRankAloneIsAConfigErrorThere) {
  run_ranks(1, 60s, [](Communicator& communicator) {
    std::vector<double> data(10);
    const std::span<double> all(data);
    WeightedSum reduction(0, 4);
    EXPECT_THROW(communicator.all_reduce_with(all.first(4), all.subspan(2, 4), reduction, kMessage), ConfigError);
    EXPECT_THROW(communicator.all_reduce_with(all.first(4), all.subspan(4, 5), reduction, kMessage), ConfigError);
    EXPECT_THROW(communicator.reduce_scatter_with(all, all, std::vector<std::uint64_t>{5, 5}, reduction, kMessage),
                 ConfigError);
    EXPECT_EQ(reduction.calls, 0);
  });
}

// Fails on rank 2, while that rank draws the fates of its incoming packets: its peers have begun the collective.
class FailingLoss final : public sim::LossProcess {
 public:
  void draw(std::uint64_t seed, const sim::Link& link, std::uint64_t first_packet,
            sim::PacketMask& lost) const override {
    if (link.half == sim::Half::kReduce && link.destination == 2) throw ConfigError("trace file ends");
    inner_.draw(seed, link, first_packet, lost);
  }
  double loss_rate() const override { return inner_.loss_rate(); }
  double mean_burst_packets() const override { return inner_.mean_burst_packets(); }
  double mean_gap_packets() const override { return inner_.mean_gap_packets(); }
  double burst_at_least(std::uint64_t packets) const override { return inner_.burst_at_least(packets); }
  double lost_count_variance(std::uint64_t n) const override { return inner_.lost_count_variance(n); }
  std::string describe() const override { return "failing"; }

 private:
  sim::Bernoulli inner_{0.4};
};

TEST(PartReductionFailure, ALossProcessThatFailsOnOneRankIsNamedOnAll) {
  std::vector<std::string> errors(4);
  try {
    run_ranks(4, 20s, [&](Communicator& inner) {
      LossyOptions options;
      ClassNetwork& network = options.network.of(kMessage.traffic_class).emplace();
      network.reduce.loss = std::make_shared<sim::Bernoulli>(0.4);
      if (inner.rank() == 2) network.reduce.loss = std::make_shared<FailingLoss>();
      network.payload_bytes = 32;
      LossyCommunicator lossy(inner, options);
      std::vector<float> data(1000);
      try {
        lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
      } catch (const CommError& error) {
        errors[static_cast<std::size_t>(inner.rank())] = error.what();
        throw;
      }
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "trace file ends");
  }
  EXPECT_EQ(errors[2], "");
  for (const std::size_t rank : {0U, 1U, 3U}) EXPECT_THAT(errors[rank], HasSubstr("rank 2 failed: trace file ends"));
}

}  // namespace
}  // namespace droptest::comm::part_reduction_test
