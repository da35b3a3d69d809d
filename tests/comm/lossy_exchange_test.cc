// SPDX-License-Identifier: Apache-2.0
// The loss layer keeps the communicator's contract if nothing is lost, and an exchange under loss is the sends and
// receives that it stands for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "tests/comm/conformance.h"

namespace droptest::comm::lossy_exchange_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kTimeout{60000};
constexpr auto kActivation = sim::TrafficClass::kPpActivation;
constexpr auto kGradient = sim::TrafficClass::kPpGradient;

ClassNetwork network_of(const PathEntry& path, double p) {
  ClassNetwork network;
  network.path = path.name;
  network.payload_bytes = 32;
  network.reduce.loss = network.gather.loss = std::make_shared<sim::Bernoulli>(p);
  if (path.has_groups) network.group_ranks = 2;
  return network;
}

// Every class except `control` loses packets.
LossyOptions options_of(const ClassNetwork& network) {
  LossyOptions options;
  options.network.seed = 17;
  for (const sim::TrafficClass c : sim::kAllTrafficClasses) {
    if (c != sim::TrafficClass::kControl) options.network.of(c) = network;
  }
  return options;
}

TEST(LossyConformance, EveryPathConformsWhereNothingIsLost) {
  for (const PathEntry& path : paths()) {
    for (const int ranks : {2, 3, 5}) {
      SCOPED_TRACE(std::string(path.name) + ", " + std::to_string(ranks) + " ranks");
      EXPECT_NO_THROW(run_ranks(ranks, kTimeout, [&](Communicator& inner) {
        LossyCommunicator lossy(inner, options_of(network_of(path, 0)));
        check_conformance_of_any_order(lossy);
        lossy.verify_fates();
      }));
    }
  }
}

TEST(LossyConformance, GroupsSplitFromIt) {
  for (const PathEntry& path : paths()) {
    SCOPED_TRACE(path.name);
    EXPECT_NO_THROW(run_ranks(5, kTimeout, [&](Communicator& inner) {
      LossyCommunicator lossy(inner, options_of(network_of(path, 0)));
      check_conformance_of_splits_of_any_order(lossy);
      lossy.verify_fates();
    }));
  }
}

TEST(LossyConformance, LargeExchanges) {
  ClassNetwork network = network_of(path_entry("direct"), 0);
  network.payload_bytes = 1408;
  EXPECT_NO_THROW(run_ranks(2, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options_of(network));
    check_large_exchanges(lossy);
    lossy.verify_fates();
  }));
}

// The results and statistics of a rank after the program below.
struct Outcome {
  std::vector<float> values;
  std::vector<std::uint64_t> digests;
  std::vector<std::uint64_t> packets;
  std::vector<std::uint64_t> untouched;
  std::vector<double> nmse;
  double seconds = 0;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

enum class Way { kExchange, kSendAndReceive };

// Each rank sends the next one activations twice, and the previous one a gradient; over some steps.
Outcome neighbours(Communicator& inner, const LossyOptions& options, Way way) {
  LossyCommunicator lossy(inner, options);
  const int next = (inner.rank() + 1) % inner.world_size();
  const int previous = (inner.rank() + inner.world_size() - 1) % inner.world_size();
  const Message first{kActivation, "first", 0};
  const Message second{kActivation, "second", 1};
  const Message grad{kGradient, "grad", 1};
  Outcome outcome;
  for (std::uint64_t step = 0; step < 20; ++step) {
    lossy.begin_step(step);
    std::vector<float> sent(300);
    for (std::size_t i = 0; i < sent.size(); ++i) {
      sent[i] = static_cast<float>(1 + inner.rank() + 5 * step) + static_cast<float>(i) * 0.001F;
    }
    std::vector<float> received(300, -1.0F - static_cast<float>(step));
    const std::span<const float> out(sent);
    const std::span<float> in(received);
    const std::vector<Send> sends = {
        {out.first(100), next, first}, {out.subspan(100, 120), next, second}, {out.subspan(220), previous, grad}};
    const std::vector<Receive> receives = {
        {in.subspan(220), next, grad}, {in.first(100), previous, first}, {in.subspan(100, 120), previous, second}};
    if (way == Way::kExchange) {
      lossy.exchange(sends, receives);
    } else {
      for (const Send& send : sends) lossy.send(send.data, send.destination, send.message);
      for (const Receive& receive : receives) lossy.recv(receive.data, receive.source, receive.message);
    }
    outcome.values.insert(outcome.values.end(), received.begin(), received.end());
  }
  lossy.verify_fates();
  for (const ClassStatistics& statistics : lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit)) {
    outcome.digests.push_back(statistics.digest);
    outcome.packets.push_back(statistics.total().packets);
    outcome.packets.push_back(statistics.total().lost_packets);
    outcome.untouched.push_back(statistics.untouched);
    outcome.nmse.push_back(statistics.nmse());
  }
  if (options.time) outcome.seconds = lossy.collect_time()->seconds;
  return outcome;
}

std::vector<Outcome> outcomes(const LossyOptions& options, Way way) {
  std::vector<Outcome> result(3);
  run_ranks(3, kTimeout, [&](Communicator& inner) {
    result[static_cast<std::size_t>(inner.rank())] = neighbours(inner, options, way);
  });
  return result;
}

TEST(LossyExchange, LosesWhatItsSendsAndReceivesWouldLose) {
  for (const PathEntry& path : paths()) {
    for (const Fill fill : {Fill::kZero, Fill::kStale, Fill::kOwn}) {
      for (const bool transformed : {false, true}) {
        SCOPED_TRACE(std::string(path.name) + ", " + std::string(fill_entry(fill).name));
        ClassNetwork network = network_of(path, 0.2);
        network.gather.fill = fill;
        if (transformed) {
          network.recovery.interleave_packets = 3;
          network.recovery.hadamard_block_elems = 32;
        }
        network.recovery.protect.steps = {3, 5};
        LossyOptions options = options_of(network);
        options.sample_every_steps = 2;
        options.time.emplace();
        options.time->links = {{1e-6, 1e9}, {5e-6, 1e8}, 2};
        options.time->compute_seconds = 1e-3;
        const std::vector<Outcome> exchanged = outcomes(options, Way::kExchange);
        EXPECT_EQ(exchanged, outcomes(options, Way::kSendAndReceive));
        EXPECT_EQ(exchanged[0].digests.size(), 2U);
        EXPECT_GT(exchanged[0].packets[1], 0U);
        EXPECT_GT(exchanged[0].nmse[0], 0);
        EXPECT_GT(exchanged[0].seconds, 20e-3);
      }
    }
  }
}

TEST(LossyExchange, WrongArgumentsUseUpNoPackets) {
  run_ranks(2, kTimeout, [](Communicator& inner) {
    LossyCommunicator lossy(inner, options_of(network_of(path_entry("direct"), 0.2)));
    const std::vector<float> sent(40, 1.0F);
    std::vector<float> received(60);
    const int peer = 1 - inner.rank();
    const Message message{kActivation, "activation", 0};
    const Send send{std::span(sent), peer, message};
    const auto error_of = [&](const Send& bad_send, const std::vector<Receive>& receives) {
      try {
        lossy.exchange({&bad_send, 1}, receives);
      } catch (const ConfigError& error) {
        return std::string(error.what());
      }
      return std::string("nothing was thrown");
    };
    const std::span<float> in(received);
    EXPECT_THAT(
        error_of({std::span(sent), 2, message}, {{in.first(40), peer, message}}),
        AllOf(HasSubstr("exchange: rank " + std::to_string(inner.rank())), HasSubstr("destination 2, want 0 to 1")));
    EXPECT_THAT(error_of(send, {{in.first(40), -1, message}}), HasSubstr("source -1, want 0 to 1"));
    EXPECT_THAT(error_of(send, {{in.first(40), peer, message}, {in.subspan(39), peer, message}}),
                HasSubstr("a received range overlaps another range"));
    EXPECT_THAT(error_of({in.first(10), peer, message}, {{in.subspan(9), peer, message}}),
                HasSubstr("a received range overlaps another range"));
    lossy.exchange({&send, 1}, std::vector<Receive>{{in.first(40), peer, message}});
    lossy.verify_fates();
    EXPECT_EQ(lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit).at(0).total().packets, 10U);
  });
}

TEST(LossyExchange, WhatARankSendsToItselfDoesNotTravel) {
  run_ranks(2, kTimeout, [](Communicator& inner) {
    LossyCommunicator lossy(inner, options_of(network_of(path_entry("direct"), 1)));
    const std::vector<float> sent(40, 3.0F);
    std::vector<float> received(40);
    const Message message{kActivation, "activation", 0};
    lossy.send(std::span(sent), inner.rank(), message);
    lossy.recv(std::span(received), inner.rank(), message);
    EXPECT_EQ(received, sent);
    EXPECT_TRUE(lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit).empty());
  });
}

}  // namespace
}  // namespace droptest::comm::lossy_exchange_test
