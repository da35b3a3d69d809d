// SPDX-License-Identifier: Apache-2.0
// Expected losses, their variance, bursts and gaps of links on which not all packets are adjacent.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/lossy/flows/flow_ledger.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/run_ranks.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/four_state.h"
#include "sim/loss/gilbert_elliott.h"
#include "sim/loss/pattern.h"
#include "sim/loss/schedule.h"
#include "sim/loss/timed_gilbert_elliott.h"
#include "sim/loss/trace.h"
#include "sim/loss/trace_format.h"
#include "tests/sim/z_values.h"

namespace droptest::comm::link_counts_test {
namespace {

using Process = std::shared_ptr<const sim::LossProcess>;
using Counts = std::map<std::uint64_t, std::uint64_t>;

constexpr sim::Link kLink{sim::TrafficClass::kPpActivation, sim::Half::kGather, 0, 1};
constexpr std::uint64_t kPackets = 4;  // packets of a message

Process bursts(double loss_rate = 0.05, double mean_burst = 50) {
  return std::make_shared<sim::GilbertElliott>(sim::rates_of_burst(loss_rate, mean_burst));
}

/// Saves state, or restores it.
class Saved final : public sim::StateVisitor {
 public:
  Turn turn() const override { return turn_; }
  void bytes(std::span<std::byte> value) override {
    if (turn_ == Turn::kSave) return void(bytes_.insert(bytes_.end(), value.begin(), value.end()));
    ASSERT_LE(next_ + value.size(), bytes_.size());
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(next_), value.size(), value.begin());
    next_ += value.size();
  }
  void restore() { turn_ = Turn::kRestore; }

 private:
  Turn turn_ = Turn::kSave;
  std::vector<std::byte> bytes_;
  std::size_t next_ = 0;
};

/// One link, message by message.
class OneLink {
 public:
  OneLink(const Process& loss, std::uint64_t seed) : ledger_(network_of(loss, seed)) {}

  void send(std::optional<std::uint64_t> ordinal, std::uint64_t step = 0, Delivery delivery = Delivery::kByNetwork) {
    CallFates call;
    call.ordinal = ordinal;
    call.step = step;
    call.delivery = delivery;
    sim::PacketMask missing;
    ledger_.draw_message(call, kLink, sim::Packetizer(16 * kPackets, 4, 64), Tally::kCounted, missing);
  }
  void visit_state(sim::StateVisitor& visitor) { ledger_.visit_state(visitor); }
  LossCounts counts() const { return ledger_.flows().at({kLink, 0}).loss_counts(); }
  std::uint64_t digest() const { return ledger_.flows().at({kLink, 0}).tally->digest(); }

 private:
  static Network network_of(const Process& loss, std::uint64_t seed) {
    Network network;
    network.seed = seed;
    ClassNetwork of_class;
    of_class.path = "direct";
    of_class.payload_bytes = 64;
    of_class.gather.loss = loss;
    network.of(kLink.traffic_class) = of_class;
    return network;
  }
  FlowLedger ledger_;
};

void expect_same(const LossCounts& got, const LossCounts& expected) {
  EXPECT_EQ(got.lost_packets, expected.lost_packets);
  EXPECT_DOUBLE_EQ(got.expected_lost, expected.expected_lost);
  EXPECT_NEAR(got.expected_lost_variance, expected.expected_lost_variance, 1e-9 * expected.expected_lost_variance);
  EXPECT_EQ(got.bursts, expected.bursts);
  EXPECT_EQ(got.gaps, expected.gaps);
  EXPECT_EQ(got.stretches, expected.stretches);
}

TEST(LinkCounts, OrdinalsWithGapsAreCountedWithTheCovarianceOverTheGaps) {
  for (const std::uint64_t stride : {1U, 2U, 4U}) {
    SCOPED_TRACE(stride);
    std::vector<double> z;
    LossCounts all;
    for (std::uint64_t seed = 1; seed <= 200; ++seed) {
      OneLink link(bursts(), seed);
      for (std::uint64_t message = 0; message < 500; ++message) link.send(stride * message);
      z.push_back(link.counts().z());
      all.add(link.counts());
    }
    expect_standard(z);
    // A burst ends if a message and the next one are not adjacent. A stretch of n packets has L n losses, in bursts
    // that begin with its first packet or after a packet that arrived.
    const double n = stride == 1 ? 500.0 * kPackets : kPackets;
    const double of_stretch = 0.05 * (1 + (n - 1) / 50);
    EXPECT_NEAR(all.mean_burst_packets() / (0.05 * n / of_stretch), 1, 0.15);
  }
}

TEST(LinkCounts, DoNotDependOnTheOrderOfTheOrdinals) {
  const std::vector<std::uint64_t> interleaved = {0, 2, 1, 3, 4, 6, 5, 7};
  constexpr std::uint64_t kEvaluation = std::uint64_t{1} << 29U;
  for (const bool is_evaluated : {false, true}) {
    OneLink in_order(bursts(0.3, 5), 7);
    OneLink by_schedule(bursts(0.3, 5), 7);
    for (std::uint64_t step = 0; step < 50; ++step) {
      for (std::uint64_t i = 0; i < 8; ++i) {
        in_order.send(8 * step + i, step);
        by_schedule.send(8 * step + interleaved[i], step);
      }
      if (is_evaluated) by_schedule.send(kEvaluation + step, step);
    }
    for (std::uint64_t step = 0; is_evaluated && step < 50; ++step) in_order.send(kEvaluation + step, 50);
    expect_same(by_schedule.counts(), in_order.counts());
    EXPECT_EQ(by_schedule.digest(), in_order.digest());
    EXPECT_EQ(by_schedule.counts().stretches,
              is_evaluated ? (Counts{{400 * kPackets, 1}, {50 * kPackets, 1}}) : (Counts{{400 * kPackets, 1}}));
  }
}

TEST(LinkCounts, MayBeReadWhileMessagesOfAStepAreMissing) {
  OneLink link(bursts(0.3, 5), 3);
  OneLink in_order(bursts(0.3, 5), 3);
  const auto stretches_with = [&](std::uint64_t ordinal) {
    link.send(ordinal);
    return link.counts().stretches;
  };
  EXPECT_EQ(stretches_with(0), (Counts{{kPackets, 1}}));
  EXPECT_EQ(stretches_with(3), (Counts{{kPackets, 2}}));
  EXPECT_EQ(stretches_with(1), (Counts{{kPackets, 1}, {2 * kPackets, 1}}));
  EXPECT_EQ(stretches_with(2), (Counts{{4 * kPackets, 1}}));
  for (std::uint64_t ordinal = 0; ordinal < 4; ++ordinal) in_order.send(ordinal);
  expect_same(link.counts(), in_order.counts());
}

TEST(LinkCounts, GoOnFromAStateWithinAStep) {
  std::vector<sim::Phase> phases;
  for (std::uint64_t step = 0; step < 4; ++step) {
    phases.push_back({step, std::make_unique<sim::GilbertElliott>(sim::rates_of_burst(step == 1 ? 0.5 : 0.3, 5))});
  }
  const Process schedule = std::make_shared<sim::Schedule>(std::move(phases), "schedule");
  std::vector<std::uint64_t> ordinals(64);
  std::iota(ordinals.begin(), ordinals.end(), 0U);
  std::mt19937 random(9);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same order each time
  std::ranges::shuffle(ordinals, random);
  for (const bool has_ordinals : {false, true}) {
    OneLink whole(schedule, 5);
    auto resumed = std::make_unique<OneLink>(schedule, 5);
    for (std::size_t i = 0; i < ordinals.size(); ++i) {
      const auto ordinal = has_ordinals ? std::optional(ordinals[i]) : std::nullopt;
      whole.send(ordinal, i / 16);
      resumed->send(ordinal, i / 16);
      Saved saved;
      resumed->visit_state(saved);
      saved.restore();
      resumed = std::make_unique<OneLink>(schedule, 5);
      resumed->visit_state(saved);
      ASSERT_EQ(resumed->digest(), whole.digest());
    }
    expect_same(resumed->counts(), whole.counts());
    EXPECT_EQ(resumed->counts().expected_lost_variance, whole.counts().expected_lost_variance);
  }
}

TEST(LinkCounts, FixedFatesAreCountedExactlyAtAnyOrdinal) {
  const sim::PacketMask trace = sim::parse_trace("0001000110000010000000000000000", "t");
  for (const Process& process : {Process(std::make_shared<sim::Pattern>(3, 17, 5)),
                                 Process(std::make_shared<sim::Trace>(trace, sim::TraceStart::kRandom, "t"))}) {
    OneLink link(process, 1);
    for (const std::uint64_t ordinal : {9U, 1U, 4U, 100U, 3U, 6U}) link.send(ordinal);
    EXPECT_EQ(link.counts().expected_lost, static_cast<double>(link.counts().lost_packets));
    EXPECT_EQ(link.counts().expected_lost_variance, 0);
    EXPECT_EQ(link.counts().stretches, (Counts{{kPackets, 4}, {2 * kPackets, 1}}));
  }
}

/// Processes in turns of one step, from step 0 to `steps`. Null: nothing is lost.
Process turns(const std::vector<sim::GilbertElliottRates>& rates, double otherwise, std::uint64_t steps) {
  std::vector<sim::Phase> phases;
  for (std::uint64_t step = 0; step < steps; step += rates.size() + 1) {
    for (std::uint64_t i = 0; i < rates.size(); ++i)
      phases.push_back({step + i, std::make_unique<sim::GilbertElliott>(rates[i])});
    phases.push_back({step + rates.size(), std::make_unique<sim::Bernoulli>(otherwise)});
  }
  return std::make_shared<sim::Schedule>(std::move(phases), "schedule");
}

TEST(LinkCounts, OutagesAndSchedulesWithBurstsAreCountedWithTheCovarianceOfTheirPhases) {
  const sim::GilbertElliottRates few = sim::rates_of_burst(0.05, 50);
  const sim::GilbertElliottRates many = sim::rates_of_burst(0.2, 30);
  for (const Process& process :
       {turns({few}, 0, 400), turns({few}, 1, 400), turns({few, many}, 0, 400), turns({few, many}, 0.1, 400)}) {
    SCOPED_TRACE(process->describe().substr(0, 300));
    std::vector<double> z;
    for (std::uint64_t seed = 1; seed <= 200; ++seed) {
      OneLink link(process, seed);
      for (std::uint64_t step = 0; step < 400; ++step) link.send(std::nullopt, step);
      z.push_back(link.counts().z());
    }
    expect_standard(z);
  }
}

TEST(LinkCounts, MessagesThatArriveForCertainLeaveAGapInTheTheoryToo) {
  std::vector<double> z;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    OneLink link(bursts(), seed);
    for (std::uint64_t message = 0; message < 500; ++message) {
      link.send(std::nullopt, 0, message % 2 == 0 ? Delivery::kByNetwork : Delivery::kCertain);
    }
    z.push_back(link.counts().z());
    EXPECT_EQ(link.counts().stretches, (Counts{{kPackets, 250}}));
  }
  expect_standard(z);
}

TEST(LinkCounts, APauseOfATimedProcessEndsABurst) {
  for (const double pause : {0.0, 3.0}) {
    OneLink link(std::make_shared<sim::TimedGilbertElliott>(sim::TimedRates{100, 10, 1, pause, 1, 1}), 1);
    for (int message = 0; message < 20; ++message) link.send(std::nullopt);
    EXPECT_EQ(link.counts().bursts, pause == 0 ? (Counts{{20 * kPackets, 1}}) : (Counts{{kPackets, 20}}));
    EXPECT_EQ(link.counts().stretches, link.counts().bursts);
  }
}

/// The deviations of losses from their expectation, for all links of random runs.
struct Panel {
  std::vector<double> of_halves;
  std::vector<double> of_links;
  std::vector<double> of_pairs;  ///< products of two links of one half
};

void take(const ClassStatistics& statistics, Panel& panel) {
  for (const LossCounts& half : statistics.halves) {
    if (half.expected_lost_variance > 0) panel.of_halves.push_back(half.z());
  }
  const LinkStatistics* before = nullptr;
  for (const LinkStatistics& of_link : statistics.links) {
    if (of_link.counts.expected_lost_variance == 0) {
      EXPECT_EQ(of_link.counts.z(), 0);
      continue;
    }
    panel.of_links.push_back(of_link.counts.z());
    if (before != nullptr && before->link.half == of_link.link.half) {
      panel.of_pairs.push_back(before->counts.z() * of_link.counts.z());
    }
    before = &of_link;
  }
}

// Collectives on a path, and messages with ordinals between ranks. Each run draws a random network.
TEST(LinkCounts, OfRandomRunsDeviateAsTheirVarianceSaysAndLinkByLink) {
  const sim::PacketMask trace = sim::parse_trace("0001000110000010000000000000000", "t");
  const std::vector<Process> processes = {
      std::make_shared<sim::Bernoulli>(0.1),
      bursts(0.2, 6),
      bursts(0.1, 30),
      std::make_shared<sim::GilbertElliott>(sim::GilbertElliottRates{0.9, 0.8, 0, 1}),
      std::make_shared<sim::FourState>(sim::FourStateRates{0.05, 0.2, 0.2, 0.3, 0.02}),
      std::make_shared<sim::TimedGilbertElliott>(sim::TimedRates{50, 10, 0.5, 7, 0.01, 0.7}),
      std::make_shared<sim::Pattern>(3, 17, 5),
      std::make_shared<sim::Trace>(trace, sim::TraceStart::kRandom, "t"),
      turns({sim::rates_of_burst(0.2, 20)}, 0.1, 40),
      turns({sim::rates_of_burst(0.2, 20), sim::rates_of_burst(0.1, 5)}, 0, 40)};
  const std::vector<std::string_view> paths = {"direct", "contribution", "ring", "tree", "halving_doubling"};
  std::mt19937 random(17);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same runs each time
  std::map<sim::TrafficClass, Panel> panels;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    const int ranks = 2 + static_cast<int>(random() % 3);
    LossyOptions options;
    options.network.seed = seed;
    for (const sim::TrafficClass of : {sim::TrafficClass::kDpGradient, sim::TrafficClass::kPpActivation}) {
      ClassNetwork network;
      network.path = of == sim::TrafficClass::kDpGradient ? paths[random() % paths.size()] : paths[0];
      network.payload_bytes = 16;
      network.reduce.loss = processes[random() % processes.size()];
      network.gather.loss = processes[random() % processes.size()];
      network.burst_scope = random() % 4 == 0 ? BurstScope::kMessage : BurstScope::kLink;
      options.network.of(of) = network;
    }
    const std::uint64_t elements = 4 + random() % 40;
    const std::uint64_t stride = 1 + random() % 3;
    const std::uint64_t turn = random() % 2;
    run_ranks(ranks, std::chrono::seconds(20), [&](Communicator& inner) {
      LossyCommunicator lossy(inner, options);
      std::vector<float> data(elements, 1.0F);
      for (std::uint64_t step = 0; step < 40; ++step) {
        lossy.begin_step(step);
        lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, {sim::TrafficClass::kDpGradient, "sum", 0});
        for (std::uint64_t i = 0; i < 2; ++i) {
          const Message message{sim::TrafficClass::kPpActivation, "part", 0, stride * (2 * step + (i ^ turn))};
          if (inner.rank() > 0) lossy.recv(Tensor(std::span(data)), inner.rank() - 1, message);
          if (inner.rank() + 1 < ranks)
            lossy.send(ConstTensor(std::span<const float>(data)), inner.rank() + 1, message);
        }
      }
      const auto statistics = lossy.collect_statistics(LossyCommunicator::LinkDetail::kInclude);
      if (inner.rank() != 0) return;
      for (const ClassStatistics& of_class : statistics) take(of_class, panels[of_class.traffic_class]);
    });
  }
  ASSERT_EQ(panels.size(), 2U);
  for (const auto& [of, panel] : panels) {
    SCOPED_TRACE(std::string(sim::traffic_class_name(of)));
    expect_standard(panel.of_halves);
    expect_standard(panel.of_links);
    const MeanWithError products(panel.of_pairs);
    EXPECT_LT(std::fabs(products.mean), 4 * products.error) << "correlation of two links: " << products.mean;
  }
}

}  // namespace
}  // namespace droptest::comm::link_counts_test
