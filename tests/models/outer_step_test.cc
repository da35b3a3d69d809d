// SPDX-License-Identifier: Apache-2.0
// Outer steps of workers: their arithmetic, fragments and delays, and elements that were not averaged.
#include "models/outer_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"

namespace droptest::models::outer_step_test {
namespace {

constexpr std::chrono::milliseconds kTimeout{20000};
constexpr auto kClass = sim::TrafficClass::kOuter;

/// Three tensors of a worker.
struct Weights {
  std::array<std::vector<float>, 3> values = {std::vector<float>(300), std::vector<float>(50), std::vector<float>(250)};
  std::vector<Parameter<float>> parameters;

  Weights() {
    for (std::size_t t = 0; t < values.size(); ++t) {
      for (std::size_t i = 0; i < values[t].size(); ++i) values[t][i] = 0.01F * static_cast<float>(i + 7 * t);
      parameters.push_back({"t" + std::to_string(t),
                            "matrix",
                            {values[t].size()},
                            Placement::kReplicated,
                            Decay::kKeeps,
                            values[t],
                            {}});
    }
  }
  /// A local step of a worker.
  void learn(int rank, std::uint64_t step) {
    for (auto& tensor : values) {
      for (std::size_t i = 0; i < tensor.size(); ++i) {
        tensor[i] -= 0.001F * static_cast<float>((i * static_cast<std::size_t>(rank + 1) + step) % 11);
      }
    }
  }
  std::vector<float> all() const {
    std::vector<float> result;
    for (const auto& tensor : values) result.insert(result.end(), tensor.begin(), tensor.end());
    return result;
  }
};

comm::LossyOptions lossy(double reduce_loss, double gather_loss, comm::Consistency consistency) {
  comm::LossyOptions options;
  options.network.seed = 5;
  comm::ClassNetwork& network = options.network.of(kClass).emplace();
  network.path = "contribution";
  network.payload_bytes = 64;
  network.consistency = consistency;
  network.reduce.fill = comm::Fill::kCountRescale;
  network.gather.fill = comm::Fill::kOwn;
  if (reduce_loss > 0) network.reduce.loss = std::make_shared<sim::Bernoulli>(reduce_loss);
  if (gather_loss > 0) network.gather.loss = std::make_shared<sim::Bernoulli>(gather_loss);
  return options;
}

/// Weights of all workers after so many steps.
using PerRank = std::vector<std::vector<float>>;
PerRank trained(int ranks, const OuterOptions& options, std::uint64_t steps, const comm::LossyOptions& network) {
  PerRank result(static_cast<std::size_t>(ranks));
  comm::run_ranks(ranks, kTimeout, [&](comm::Communicator& inner) {
    comm::LossyCommunicator workers(inner, network);
    Weights weights;
    OuterStep outer(options, workers, weights.parameters);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      weights.learn(inner.rank(), step);
      EXPECT_TRUE(outer.is_due(step) || !outer.take(step, weights.parameters));
      if (outer.is_due(step)) outer.take(step, weights.parameters);
    }
    outer.settle();
    result[static_cast<std::size_t>(inner.rank())] = weights.all();
  });
  return result;
}

PerRank alone(int ranks, std::uint64_t steps) {
  PerRank result;
  for (int rank = 0; rank < ranks; ++rank) {
    Weights weights;
    for (std::uint64_t step = 1; step <= steps; ++step) weights.learn(rank, step);
    result.push_back(weights.all());
  }
  return result;
}

/// Bytes of a state, to and from objects.
class Saver final : public sim::StateVisitor {
 public:
  Turn turn() const override { return Turn::kSave; }
  void bytes(std::span<std::byte> value) override { state.insert(state.end(), value.begin(), value.end()); }
  std::vector<std::byte> state;
};
class Restorer final : public sim::StateVisitor {
 public:
  explicit Restorer(std::span<const std::byte> state) : left_(state) {}
  Turn turn() const override { return Turn::kRestore; }
  void bytes(std::span<std::byte> value) override {
    ASSERT_LE(value.size(), left_.size());
    std::ranges::copy(left_.first(value.size()), value.begin());
    left_ = left_.subspan(value.size());
  }

 private:
  std::span<const std::byte> left_;
};

constexpr auto kShared = comm::Consistency::kShared;

TEST(OuterStep, IsNesterovOnTheMeanDifference) {
  constexpr int kRanks = 3;
  for (const OuterOptimizer optimizer : {OuterOptimizer::kNesterov, OuterOptimizer::kSgd}) {
    const OuterOptions options{4, optimizer, 0.7, 0.9};
    const PerRank got = trained(kRanks, options, 12, lossy(0, 0, kShared));
    std::array<Weights, kRanks> workers;
    std::vector<double> reference(600), momentum(600);
    for (std::size_t i = 0; i < 600; ++i) reference[i] = static_cast<double>(workers[0].all()[i]);
    for (std::uint64_t step = 1; step <= 12; ++step) {
      for (int rank = 0; rank < kRanks; ++rank) workers[static_cast<std::size_t>(rank)].learn(rank, step);
      if (step % 4 != 0) continue;
      std::size_t i = 0;
      for (std::size_t tensor = 0; tensor < 3; ++tensor) {
        for (std::size_t j = 0; j < workers[0].values[tensor].size(); ++j, ++i) {
          double mean = 0;
          for (const Weights& worker : workers) mean += (reference[i] - worker.values[tensor][j]) / kRanks;
          momentum[i] = 0.9 * momentum[i] + mean;
          const bool nesterov = optimizer == OuterOptimizer::kNesterov;
          reference[i] -= 0.7 * (nesterov ? 0.9 * momentum[i] + mean : momentum[i]);
          for (Weights& worker : workers) worker.values[tensor][j] = static_cast<float>(reference[i]);
        }
      }
    }
    for (const auto& of_rank : got) {
      for (std::size_t i = 0; i < 600; ++i) ASSERT_NEAR(of_rank[i], reference[i], 2e-6) << i;
    }
  }
}

TEST(OuterStep, WithoutAnyMessageWorkersTrainAlone) {
  for (const OuterOptimizer optimizer : {OuterOptimizer::kNesterov, OuterOptimizer::kAverage}) {
    const OuterOptions options{3, optimizer};
    for (const auto& network :
         {lossy(1, 0, kShared), lossy(0, 1, kShared), lossy(0, 1, comm::Consistency::kPerReceiver)}) {
      EXPECT_EQ(trained(3, options, 10, network), alone(3, 10)) << "bit for bit";
    }
  }
}

// SPARTA: the elements of delivered packets become the mean, as an all-reduce with the fill `own` gives them.
TEST(OuterStep, AveragesOfFewElementsAreGatherLoss) {
  constexpr int kRanks = 3;
  const OuterOptions options{1, OuterOptimizer::kAverage};
  const comm::LossyOptions network = lossy(0, 0.9, kShared);
  const PerRank got = trained(kRanks, options, 6, network);
  PerRank wanted(kRanks);
  comm::run_ranks(kRanks, kTimeout, [&](comm::Communicator& inner) {
    comm::LossyCommunicator workers(inner, network);
    Weights weights;
    for (std::uint64_t step = 1; step <= 6; ++step) {
      weights.learn(inner.rank(), step);
      std::vector<float> all = weights.all();
      workers.all_reduce(comm::Tensor(std::span(all)), comm::ReduceOp::kMean, {kClass, "outer.fragment0"});
      std::size_t i = 0;
      for (auto& tensor : weights.values) {
        for (float& value : tensor) value = all[i++];
      }
    }
    wanted[static_cast<std::size_t>(inner.rank())] = weights.all();
  });
  EXPECT_EQ(got, wanted);
  EXPECT_NE(got[0], got[1]) << "nine of ten elements stay a worker's own";
}

// An element that is lost in one outer step has its whole difference in the next one, and its momentum is unchanged.
TEST(OuterStep, SkippedElementsKeepReferenceAndMomentum) {
  constexpr int kRanks = 2;
  const OuterOptions options{2, OuterOptimizer::kNesterov, 0.5, 0.8};
  comm::run_ranks(kRanks, kTimeout, [&](comm::Communicator& inner) {
    comm::LossyOptions network = lossy(0, 0, kShared);
    network.network.of(kClass)->gather.loss = std::make_shared<sim::Bernoulli>(0.5);
    comm::LossyCommunicator workers(inner, network);
    Weights weights;
    const std::vector<float> start = weights.all();
    OuterStep outer(options, workers, weights.parameters);
    std::vector<std::vector<float>> before, after;
    for (std::uint64_t step = 1; step <= 4; ++step) {
      weights.learn(inner.rank(), step);
      if (!outer.is_due(step)) continue;
      before.push_back(weights.all());
      outer.take(step, weights.parameters);
      after.push_back(weights.all());
    }
    std::vector<std::vector<float>> others = before;
    for (auto& of_step : others) {
      inner.all_reduce(comm::Tensor(std::span(of_step)), comm::ReduceOp::kSum, {sim::TrafficClass::kControl, "sum"});
    }
    std::size_t late = 0;
    for (std::size_t i = 0; i < start.size(); ++i) {
      if (after[0][i] != before[0][i] || after[1][i] == before[1][i]) continue;
      ++late;  // skipped at first, averaged then: one step of momentum, on the difference of four steps
      const double mean = static_cast<double>(start[i]) - static_cast<double>(others[1][i]) / kRanks;
      ASSERT_NEAR(after[1][i], start[i] - 0.5 * (0.8 * mean + mean), 1e-5) << i;
    }
    EXPECT_GT(late, 50U);
  });
}

TEST(OuterStep, FragmentsTakeTurnsAndDelaysMix) {
  const std::vector<std::uint64_t> sizes = {300, 50, 250};
  OuterOptions options{6, OuterOptimizer::kSgd, 1.0, 0.0, 3};
  const auto fragments = outer_fragments(options, sizes);
  ASSERT_EQ(fragments.size(), 3U);
  for (std::size_t f = 0; f < 3; ++f) {
    EXPECT_EQ(fragments[f].first, f);
    EXPECT_EQ(fragments[f].end, f + 1);
    EXPECT_EQ(fragments[f].offset_steps, 2 * f);
  }
  EXPECT_TRUE(fragments[1].starts_at(8, 6));
  for (const OuterFragment& fragment : fragments) {
    std::uint64_t starts = 0;
    for (std::uint64_t step = 0; step < 40; ++step) {
      starts += fragment.starts_at(step, 6) ? 1 : 0;
      EXPECT_EQ(fragment.starts_within(step, 6), starts) << step;
    }
  }
  EXPECT_FALSE(fragments[1].starts_at(2, 6)) << "the first message after as many steps as later ones";
  EXPECT_THROW(outer_fragments({6, OuterOptimizer::kSgd, 1, 0, 4}, sizes), ConfigError);

  // One worker in effect: the mean of two equal workers is the worker's own difference. After a delay of two steps its
  // weights are the mix of its own and of those at the start of the message.
  options.delay_steps = 2;
  options.own_share = 0.25;
  comm::run_ranks(2, kTimeout, [&](comm::Communicator& inner) {
    Weights weights;
    OuterStep outer(options, inner, weights.parameters);
    std::vector<float> at_start;
    for (std::uint64_t step = 1; step <= 8; ++step) {
      weights.learn(0, step);
      if (step == 6) at_start = weights.values[0];
      const std::vector<float> own = weights.values[0];
      EXPECT_EQ(outer.is_due(step), step == 6 || step == 8) << step;
      EXPECT_EQ(outer.take(step, weights.parameters), step == 8) << step;
      if (step < 8) continue;
      for (std::size_t i = 0; i < own.size(); ++i) {
        EXPECT_NEAR(weights.values[0][i], 0.25F * own[i] + 0.75F * at_start[i], 1e-6F) << i;
      }
    }
    outer.settle();
  });
}

// The third worker's messages are complete after those of the quorum, each time.
TEST(OuterStep, ALateWorkerGoesOnFromItsOwnWeights) {
  const OuterOptions options{3, OuterOptimizer::kNesterov};
  comm::LossyOptions network = lossy(0, 0, kShared);
  network.network.of(kClass)->quorum = {2, 0.25};
  comm::TimeModel& time = network.time.emplace();
  time.links.within = time.links.between = {1e-6, 1e9};
  time.compute_seconds = time.later_share = 1;
  PerRank got(3);
  comm::run_ranks(3, kTimeout, [&](comm::Communicator& inner) {
    comm::LossyCommunicator workers(inner, network);
    Weights weights;
    OuterStep outer(options, workers, weights.parameters);
    for (std::uint64_t step = 1; step <= 10; ++step) {
      workers.begin_step(step);
      if (inner.rank() == 2) workers.pass_compute_share(1);
      weights.learn(inner.rank(), step);
      outer.take(step, weights.parameters);
    }
    got[static_cast<std::size_t>(inner.rank())] = weights.all();
  });
  EXPECT_EQ(got[2], alone(3, 10)[2]) << "bit for bit";
  const PerRank of_two = trained(2, options, 10, lossy(0, 0, kShared));
  for (const std::size_t rank : {0U, 1U}) {
    for (std::size_t i = 0; i < 600; ++i) ASSERT_NEAR(got[rank][i], of_two[rank][i], 1e-6) << i;
  }
}

TEST(OuterStep, GoesOnFromItsState) {
  constexpr int kRanks = 2;
  const OuterOptions options{4, OuterOptimizer::kNesterov, 0.7, 0.9, 2, 3, 0.1};
  const PerRank wanted = trained(kRanks, options, 15, lossy(0.2, 0.2, kShared));
  for (const std::uint64_t cut : {4U, 5U, 6U, 8U, 9U}) {
    comm::run_ranks(kRanks, kTimeout, [&](comm::Communicator& inner) {
      const comm::LossyOptions network = lossy(0.2, 0.2, kShared);
      Weights weights;
      std::vector<std::byte> state;
      const auto train = [&](std::uint64_t from, std::uint64_t to) {
        comm::LossyCommunicator workers(inner, network);
        OuterStep outer(options, workers, weights.parameters);
        const auto visit = [&](sim::StateVisitor& visitor) {
          workers.visit_state(visitor);
          outer.visit_state(visitor);
        };
        Restorer restorer(state);
        if (from > 1) visit(restorer);
        for (std::uint64_t step = from; step <= to; ++step) {
          weights.learn(inner.rank(), step);
          outer.take(step, weights.parameters);
        }
        outer.settle();
        Saver saver;
        visit(saver);
        state = std::move(saver.state);
      };
      train(1, cut);
      train(cut + 1, 15);
      EXPECT_EQ(weights.all(), wanted[static_cast<std::size_t>(inner.rank())]) << "cut after step " << cut;
    });
  }
}

}  // namespace
}  // namespace droptest::models::outer_step_test
