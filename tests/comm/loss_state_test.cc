// SPDX-License-Identifier: Apache-2.0
// A loss layer that is made anew in the middle of a run, from the state of the one before.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/loss/gilbert_elliott.h"
#include "sim/recovery/parity.h"
#include "sim/state_visitor.h"
#include "tests/comm/lossy_recovery.h"
#include "tests/comm/started_programs.h"
#include "tests/comm/timed_network.h"

namespace droptest::comm {
namespace {

class Saved final : public sim::StateVisitor {
 public:
  Turn turn() const override { return turn_; }
  void bytes(std::span<std::byte> value) override {
    if (turn_ == Turn::kSave) {
      bytes_.insert(bytes_.end(), value.begin(), value.end());
      return;
    }
    ASSERT_LE(next_ + value.size(), bytes_.size());
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(next_), value.size(), value.begin());
    next_ += value.size();
  }
  void restore() { turn_ = Turn::kRestore; }
  bool is_used_up() const { return next_ == bytes_.size(); }

 private:
  Turn turn_ = Turn::kSave;
  std::vector<std::byte> bytes_;
  std::size_t next_ = 0;
};

// A loss layer with a group that is split from it.
struct Layer {
  Layer(Communicator& inner, const LossyOptions& options) : world(inner, options) {
    part = world.split(inner.rank() % 2, inner.rank());
  }
  void visit_state(sim::StateVisitor& visitor) {
    world.visit_state(visitor);
    dynamic_cast<LossyCommunicator&>(*part).visit_state(visitor);
  }
  LossyCommunicator world;
  std::unique_ptr<Communicator> part;
};

struct Outcome {
  std::vector<std::vector<float>> results;
  std::vector<ClassStatistics> statistics;
  double seconds = 0;
  double network_seconds = 0;
};

constexpr std::uint64_t kSteps = 40;  // more than the 16 messages between two that both ends draw

// Where `made_anew`, by another layer from the middle on.
Outcome run(const LossyOptions& options, bool made_anew) {
  Outcome outcome;
  run_ranks(4, kRecoveryTimeout, [&](Communicator& inner) {
    auto layer = std::make_unique<Layer>(inner, options);
    std::vector<std::vector<float>> results;
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      layer->world.begin_step(step);
      if (made_anew && step == kSteps / 2 + 1) {
        Saved state;
        layer->visit_state(state);
        layer = std::make_unique<Layer>(inner, options);
        state.restore();
        layer->visit_state(state);
        EXPECT_TRUE(state.is_used_up());
      }
      layer->world.begin_step(step);  // which has begun
      for (Communicator* group : {static_cast<Communicator*>(&layer->world), layer->part.get()}) {
        std::vector<float> data = recovery_values(static_cast<int>(step), inner.rank(), 700);
        group->all_reduce(std::span(data), ReduceOp::kSum, {kRecoveryClass, "sum", 0});
        results.push_back(data);
        const int other = group->rank() ^ 1;
        std::vector<float> received(300, 5);
        const Send send{std::span<const float>(data).first(300), other, {kRecoveryClass, "activation", 1}};
        const Receive receive{std::span(received), other, {kRecoveryClass, "activation", 1}};
        group->exchange(std::span(&send, 1), std::span(&receive, 1));
        results.push_back(received);
      }
    }
    layer->world.verify_fates();
    const auto statistics = layer->world.collect_statistics(LinkDetail::kInclude);
    const auto time = layer->world.collect_time();
    if (inner.rank() != 0) return;
    outcome = {results, statistics, time ? time->seconds : 0, time ? time->network_seconds : 0};
  });
  return outcome;
}

void expect_same_counts(const LossCounts& got, const LossCounts& want) {
  EXPECT_EQ(got.messages, want.messages);
  EXPECT_EQ(got.packets, want.packets);
  EXPECT_EQ(got.bytes, want.bytes);
  EXPECT_EQ(got.lost_packets, want.lost_packets);
  EXPECT_EQ(got.residual_bytes, want.residual_bytes);
  EXPECT_EQ(got.resent_packets, want.resent_packets);
  EXPECT_EQ(got.expected_lost, want.expected_lost);
  EXPECT_EQ(got.expected_lost_variance, want.expected_lost_variance);
  EXPECT_EQ(got.bursts, want.bursts);
  EXPECT_EQ(got.gaps, want.gaps);
  EXPECT_EQ(got.stretches, want.stretches);
}

void expect_goes_on(const LossyOptions& options) {
  const Outcome whole = run(options, false);
  const Outcome anew = run(options, true);
  EXPECT_EQ(anew.results, whole.results);
  EXPECT_EQ(anew.seconds, whole.seconds);
  EXPECT_EQ(anew.network_seconds, whole.network_seconds);
  ASSERT_EQ(whole.statistics.size(), 1U);
  ASSERT_EQ(anew.statistics.size(), 1U);
  const ClassStatistics& got = anew.statistics[0];
  const ClassStatistics& want = whole.statistics[0];
  EXPECT_GT(want.total().lost_packets, 0U);
  EXPECT_EQ(got.digest, want.digest);
  for (std::size_t half = 0; half < want.halves.size(); ++half) expect_same_counts(got.halves[half], want.halves[half]);
  ASSERT_EQ(got.links.size(), want.links.size());
  for (std::size_t i = 0; i < want.links.size(); ++i) {
    EXPECT_EQ(got.links[i].digest, want.links[i].digest);
    expect_same_counts(got.links[i].counts, want.links[i].counts);
  }
  EXPECT_EQ(got.collectives, want.collectives);
  EXPECT_EQ(got.untouched, want.untouched);
  EXPECT_EQ(got.sampled_calls, want.sampled_calls);
  EXPECT_EQ(got.error_energy, want.error_energy);
  EXPECT_EQ(got.divergence_max, want.divergence_max);
  ASSERT_EQ(got.layers.size(), want.layers.size());
  for (std::size_t i = 0; i < want.layers.size(); ++i) {
    EXPECT_EQ(got.layers[i].untouched_steps, want.layers[i].untouched_steps);
    EXPECT_EQ(got.layers[i].samples.error_sum, want.layers[i].samples.error_sum);
  }
}

ClassNetwork bursty_network(std::string_view path) {
  ClassNetwork network = recovery_network(path, 0, 0);
  const auto bursts = std::make_shared<sim::GilbertElliott>(sim::GilbertElliottRates{0.05, 0.3, 0, 1});
  apply_loss(network, bursts);
  network.gather.loss = bursts;
  if (path_entry(path).has_groups) network.group_ranks = 2;
  return network;
}

LossyOptions sampled(const ClassNetwork& network) {
  LossyOptions options = recovery_options(network);
  options.sample_every_steps = 3;
  return options;
}

TEST(LossState, EveryPathAndFillGoesOnToTheSameBits) {
  for (const PathEntry& path : paths()) {
    for (const Fill fill : {Fill::kZero, Fill::kStale}) {
      SCOPED_TRACE(std::string(path.name) + (fill == Fill::kStale ? ", stale" : ""));
      ClassNetwork network = bursty_network(path.name);
      network.reduce.fill = network.gather.fill = fill;
      expect_goes_on(sampled(network));
    }
  }
}

TEST(LossState, RecoveriesFeedbackAndMessagesOfTheirOwnGoOn) {
  ClassNetwork feedback = bursty_network("direct");
  feedback.recovery.error_feedback = ClassRecovery::ErrorFeedback::kOn;
  expect_goes_on(sampled(feedback));
  ClassNetwork coded = bursty_network("ring");
  apply_recovery(coded, std::make_shared<sim::Parity>(sim::ParityCode{8, 1, 1}));
  expect_goes_on(sampled(coded));
  ClassNetwork by_message = bursty_network("direct");
  by_message.burst_scope = BurstScope::kMessage;
  expect_goes_on(sampled(by_message));
}

TEST(LossState, ClocksGoOnWithTheirRepetitionsAndDeadlines) {
  for (const bool repeats : {false, true}) {
    ClassNetwork network = bursty_network("direct");
    if (repeats) apply_recovery(network, protocol("selective_repeat", 1));
    LossyOptions options = sampled(network);
    options.time = model_of(1e-4);
    options.time->transfer_p99_over_p50 = 2;
    if (!repeats) options.time->deadline_seconds = 2e-5;
    expect_goes_on(options);
  }
}

// What one message remembers is replaced by another of its name with another size.
TEST(LossState, MessagesOfOneNameAndDifferentSizesMayBeExchangedTogether) {
  ClassNetwork network = recovery_network("direct", 0, 0.3);
  network.gather.fill = Fill::kStale;
  run_ranks(2, kRecoveryTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, recovery_options(network));
    const int other = 1 - inner.rank();
    const Message message{kRecoveryClass, "activation", 0};
    for (int call = 0; call < 3; ++call) {
      const std::vector<float> sent(5000, 1);
      std::vector<float> small(500);
      std::vector<float> large(5000);
      const std::array sends{Send{std::span<const float>(sent).first(500), other, message},
                             Send{std::span<const float>(sent), other, message}};
      const std::array receives{Receive{std::span(small), other, message}, Receive{std::span(large), other, message}};
      lossy.exchange(sends, receives);
      for (const float x : large) ASSERT_TRUE(x == 0 || x == 1);
    }
  });
}

TEST(LossState, WorksUnderWayAreRefused) {
  run_ranks(2, kRecoveryTimeout, [](Communicator& inner) {
    LossyCommunicator lossy(inner, recovery_options(recovery_network("direct", 0.1, 0.1)));
    std::vector<float> data(10);
    Work work = lossy.start_all_reduce(std::span(data), std::span(data), ReduceOp::kSum, {kRecoveryClass, "m", 0});
    Saved state;
    EXPECT_THROW(lossy.visit_state(state), ConfigError);
    work.wait();
    EXPECT_NO_THROW(lossy.visit_state(state));
  });
}

}  // namespace
}  // namespace droptest::comm
