// SPDX-License-Identifier: Apache-2.0
// A new loss layer in the middle of a run, from the state of the previous one.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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

namespace droptest::comm::loss_state_test {
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
  const std::vector<std::byte>& all() const { return bytes_; }

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
  void visit_state(sim::StateVisitor& visitor) { world.visit_state(visitor); }
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

// Runs the steps; if `made_anew`, a new layer continues from the middle on.
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
      layer->world.begin_step(step);  // the step has already begun
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

std::vector<std::byte> state_of(LossyCommunicator& lossy) {
  Saved state;
  lossy.visit_state(state);
  return state.all();
}

// New memory has different content each time.
TEST(LossState, EqualStatesHaveEqualBytes) {
  ClassNetwork network = bursty_network("direct");
  apply_recovery(network, protocol("selective_repeat", 1));
  network.reduce.fill = network.gather.fill = Fill::kStale;
  LossyOptions options = sampled(network);
  options.time = model_of(1e-4);
  std::array<std::vector<std::byte>, 2> states;
  for (std::size_t run = 0; run < states.size(); ++run) {
    mallopt(M_PERTURB, run == 0 ? 0x5a : 0xa5);
    run_ranks(2, kRecoveryTimeout, [&](Communicator& inner) {
      LossyCommunicator lossy(inner, options);
      for (std::uint64_t step = 0; step < 5; ++step) {
        lossy.begin_step(step);
        std::vector<float> data = recovery_values(static_cast<int>(step), inner.rank(), 700);
        lossy.all_reduce(std::span(data), ReduceOp::kSum, {kRecoveryClass, "sum", 0});
        const Message message{kRecoveryClass, "activation", 1};
        if (inner.rank() == 0) lossy.send(std::span<const float>(data), 1, message);
        if (inner.rank() == 1) lossy.recv(std::span(data), 0, message);
      }
      const std::vector<std::byte> state = state_of(lossy);
      if (inner.rank() == 1) states[run] = state;
      LossyCommunicator restored(inner, options);
      Saved again;
      lossy.visit_state(again);
      again.restore();
      restored.visit_state(again);
      EXPECT_EQ(state_of(restored), state);
    });
  }
  mallopt(M_PERTURB, 0);
  EXPECT_GT(states[0].size(), 3000U);
  EXPECT_EQ(states[0], states[1]);
}

TEST(LossState, MessagesWithOrdinalsGoOn) {
  constexpr std::array<std::uint64_t, 6> kOrder{5, 0, 17, 3, 32, 1};
  constexpr std::size_t kBefore = 3;
  for (const BurstScope scope : {BurstScope::kLink, BurstScope::kMessage}) {
    ClassNetwork network = bursty_network("direct");
    network.burst_scope = scope;
    network.gather.fill = Fill::kStale;
    const auto run_messages = [&](bool made_anew) {
      Outcome outcome;
      run_ranks(2, kRecoveryTimeout, [&](Communicator& inner) {
        auto lossy = std::make_unique<LossyCommunicator>(inner, sampled(network));
        lossy->begin_step(0);
        std::vector<std::vector<float>> results;
        const auto send = [&](std::size_t floats, std::optional<std::uint64_t> ordinal) {
          std::vector<float> data = recovery_values(static_cast<int>(ordinal.value_or(0)), 0, floats);
          const Message message{kRecoveryClass, "activation", 0, ordinal};
          if (inner.rank() == 0) return lossy->send(std::span<const float>(data), 1, message);
          lossy->recv(std::span(data), 0, message);
          results.push_back(data);
        };
        for (std::size_t i = 0; i < kOrder.size(); ++i) {
          if (made_anew && i == kBefore) {
            Saved state;
            lossy->visit_state(state);
            lossy = std::make_unique<LossyCommunicator>(inner, sampled(network));
            state.restore();
            lossy->visit_state(state);
            EXPECT_THROW(send(300, std::nullopt), ConfigError) << "those before have ordinals";
            EXPECT_THROW(send(3000, 40), ConfigError) << "those before are shorter";
          }
          send(300, kOrder[i]);
        }
        lossy->verify_fates();
        const auto statistics = lossy->collect_statistics(LinkDetail::kInclude);
        if (inner.rank() == 1) outcome = {results, statistics, 0, 0};
      });
      return outcome;
    };
    const Outcome whole = run_messages(false);
    const Outcome anew = run_messages(true);
    EXPECT_EQ(anew.results, whole.results);
    EXPECT_EQ(anew.statistics.at(0).digest, whole.statistics.at(0).digest);
    EXPECT_EQ(anew.statistics.at(0).collectives, kOrder.size());
    expect_same_counts(anew.statistics.at(0).total(), whole.statistics.at(0).total());
  }
}

constexpr auto kMessageClass = sim::TrafficClass::kPpActivation;
using Start = std::function<Work(LossyCommunicator&, std::vector<float>&)>;

void expect_refused_start_changes_nothing(const ClassNetwork& network, const Start& refused) {
  const auto run_program = [&](bool is_refused, bool has_clock) {
    std::vector<std::vector<float>> results(2);
    LossyOptions options = sampled(network);
    options.network.of(kMessageClass) = network;
    if (has_clock) options.time = model_of(1e-4);
    run_ranks(2, kRecoveryTimeout, [&](Communicator& inner) {
      LossyCommunicator lossy(inner, options);
      lossy.begin_step(0);
      const auto call = [&](int number) {
        std::vector<float> data = recovery_values(number, inner.rank(), 700);
        lossy.all_reduce(std::span(data), ReduceOp::kSum, {kRecoveryClass, "sum", 0});
        const Message message{kMessageClass, "activation", 0, static_cast<std::uint64_t>(number)};
        if (inner.rank() == 0) lossy.send(std::span<const float>(data), 1, message);
        if (inner.rank() == 1) lossy.recv(std::span(data), 0, message);
        return data;
      };
      call(0);
      if (is_refused) {
        const std::vector<std::byte> before = state_of(lossy);
        std::vector<float> data(7000, 1);
        EXPECT_THROW((void)refused(lossy, data), ConfigError);
        EXPECT_EQ(state_of(lossy), before);
      }
      results[static_cast<std::size_t>(inner.rank())] = call(1);
      lossy.verify_fates();
      for (const ClassStatistics& of_class : lossy.collect_statistics(LinkDetail::kOmit)) {
        EXPECT_EQ(of_class.collectives, 2U);
        EXPECT_EQ(of_class.sampled_calls, 2U);
      }
    });
    return results;
  };
  for (const bool has_clock : {false, true}) EXPECT_EQ(run_program(true, has_clock), run_program(false, has_clock));
}

// A message that is shorter than the first loses the first packets of a whole one at its place.
TEST(LossState, ShorterMessagesWithOrdinalsHaveTheFirstPacketsOfTheirPlaces) {
  for (const BurstScope scope : {BurstScope::kLink, BurstScope::kMessage}) {
    ClassNetwork network = bursty_network("direct");
    network.burst_scope = scope;
    const auto last = [&](std::size_t floats) {
      std::vector<float> received;
      run_ranks(2, kRecoveryTimeout, [&](Communicator& inner) {
        LossyCommunicator lossy(inner, recovery_options(network));
        for (const auto& [size, ordinal] : {std::pair<std::size_t, std::uint64_t>{300, 2}, {floats, 7}}) {
          std::vector<float> data(size, 1);
          const Message message{kRecoveryClass, "activation", 0, ordinal};
          if (inner.rank() == 0) {
            lossy.send(std::span<const float>(data), 1, message);
          } else {
            lossy.recv(std::span(data), 0, message);
            received = data;
          }
        }
      });
      return received;
    };
    const std::vector<float> whole = last(300);
    const std::vector<float> part = last(60);  // whole packets
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin()));
    EXPECT_NE(std::count(whole.begin(), whole.end(), 0.0F), 0);
  }
}

TEST(LossState, ARefusedStartLeavesItAsItWas) {
  const auto all_reduce = [](ReduceOp op) {
    return [op](LossyCommunicator& lossy, std::vector<float>& data) {
      return lossy.start_all_reduce(std::span(data), std::span(data), op, {kRecoveryClass, "refused", 0});
    };
  };
  const auto message = [](std::size_t floats, std::optional<std::uint64_t> ordinal) {
    return [=](LossyCommunicator& lossy, std::vector<float>& data) {
      const Message refused{kMessageClass, "refused", 0, ordinal};
      const auto part = std::span(data).first(floats);
      return lossy.rank() == 0 ? lossy.start_send(part, 1, refused) : lossy.start_recv(part, 0, refused);
    };
  };
  for (const std::string_view path : {"direct", "contribution"}) {
    SCOPED_TRACE(path);
    ClassNetwork feedback = bursty_network(path);
    feedback.recovery.error_feedback = ClassRecovery::ErrorFeedback::kOn;
    expect_refused_start_changes_nothing(feedback, all_reduce(ReduceOp::kMax));
  }
  ClassNetwork transformed = bursty_network("ring");
  transformed.recovery.hadamard_block_elems = 64;
  expect_refused_start_changes_nothing(transformed, all_reduce(ReduceOp::kMax));
  const ClassNetwork network = bursty_network("direct");
  expect_refused_start_changes_nothing(network, message(700, std::nullopt));
  expect_refused_start_changes_nothing(network, message(7000, 1));
  expect_refused_start_changes_nothing(network, message(700, std::uint64_t{1} << 47U));
}

// The stale values of a message are replaced by those of another message with its name and another size.
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
}  // namespace droptest::comm::loss_state_test
