// SPDX-License-Identifier: Apache-2.0
// The counts of the loss layer, and that both ends of a link agree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/lossy/flows/fate_verification.h"
#include "comm/lossy/flows/flow_ledger.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/gilbert_elliott.h"
#include "sim/loss/packet_mask.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm::lossy_statistics_test {
namespace {

using Detail = LossyCommunicator::LinkDetail;

constexpr auto kClass = sim::TrafficClass::kTpForward;
constexpr std::chrono::milliseconds kTimeout{20000};
const Message kMessage{kClass, "activation", 0};

LossyOptions options_of(std::string_view path, const std::shared_ptr<const sim::LossProcess>& loss,
                        Consistency consistency, BurstScope scope) {
  LossyOptions options;
  options.network.seed = 4242;
  ClassNetwork network;
  network.path = path;
  network.reduce.loss = loss;
  network.gather.loss = loss;
  network.consistency = consistency;
  network.burst_scope = scope;
  network.payload_bytes = 16;  // four floats
  options.network.of(kClass) = network;
  return options;
}

// The statistics of rank 0 after `body`; expects the same ones on all ranks.
template <class Body>
std::vector<ClassStatistics> statistics_of(int ranks, const LossyOptions& options, const Body& body) {
  std::vector<ClassStatistics> result;
  std::mutex mutex;
  std::vector<std::uint64_t> digests;
  run_ranks(ranks, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    body(lossy);
    lossy.verify_fates();
    const auto statistics = lossy.collect_statistics(Detail::kInclude);
    const std::scoped_lock lock(mutex);
    for (const ClassStatistics& s : statistics) digests.push_back(s.digest ^ s.collectives);
    if (inner.rank() == 0) result = statistics;
  });
  for (const std::uint64_t digest : digests) EXPECT_EQ(digest, digests[0]);
  return result;
}

void reduce_calls(LossyCommunicator& lossy, int calls, std::uint64_t count) {
  for (int call = 0; call < calls; ++call) {
    std::vector<float> data(count, 1.0F);
    lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
  }
}

// The counts of a link's fates, drawn again in one piece.
LossCounts redrawn(const sim::LossProcess& process, const sim::Link& link, std::uint64_t packets) {
  sim::PacketMask lost(packets);
  process.draw(4242, link, 0, lost);
  LossCounts counts;
  std::uint64_t run = 0;
  for (std::uint64_t i = 0; i <= packets; ++i) {
    if (i < packets && lost.lost(i)) {
      ++run;
      ++counts.lost_packets;
    } else if (run > 0) {
      ++counts.bursts[run];
      run = 0;
    }
  }
  return counts;
}

TEST(LossyStatistics, EachLinkIsCountedOnceAndExactly) {
  const auto loss = std::make_shared<sim::GilbertElliott>(sim::rates_of_burst(0.2, 3));
  constexpr std::uint64_t kCalls = 20;
  for (const std::string_view path : {"direct", "contribution"}) {
    for (const Consistency consistency : {Consistency::kPerReceiver, Consistency::kShared}) {
      const auto statistics = statistics_of(3, options_of(path, loss, consistency, BurstScope::kLink),
                                            [&](LossyCommunicator& lossy) { reduce_calls(lossy, kCalls, 3 * 26); });
      ASSERT_EQ(statistics.size(), 1U);
      const ClassStatistics& s = statistics[0];
      const bool direct = path == "direct";
      const bool shared = consistency == Consistency::kShared;
      const std::size_t reduce_links = direct ? 6 : 3;
      const std::size_t gather_links = direct ? (shared ? 3 : 6) : (shared ? 1 : 3);
      ASSERT_EQ(s.links.size(), reduce_links + gather_links);
      // 26 floats are six full packets and one of two floats; 78 are 19 and one of two.
      const std::uint64_t packets_of_call = direct ? 7 : 20;
      const std::uint64_t bytes_of_call = direct ? 26 * 4 : 78 * 4;
      LossCounts sum;
      for (const LinkStatistics& of_link : s.links) {
        EXPECT_EQ(of_link.counts.packets, kCalls * packets_of_call);
        EXPECT_EQ(of_link.counts.bytes, kCalls * bytes_of_call);
        EXPECT_EQ(of_link.counts.messages, kCalls);
        const LossCounts again = redrawn(*loss, of_link.link, of_link.counts.packets);
        EXPECT_EQ(of_link.counts.lost_packets, again.lost_packets);
        EXPECT_EQ(of_link.counts.bursts, again.bursts);  // bursts span messages
        EXPECT_DOUBLE_EQ(of_link.counts.expected_lost, 0.2 * static_cast<double>(of_link.counts.packets));
        EXPECT_DOUBLE_EQ(of_link.counts.expected_lost_variance, loss->lost_count_variance(of_link.counts.packets));
        EXPECT_LT(of_link.counts.lost_bytes, of_link.counts.lost_packets * 16);
        EXPECT_NE(of_link.digest, 0U);
        sum.add(of_link.counts);
      }
      EXPECT_EQ(s.total().lost_packets, sum.lost_packets);
      EXPECT_EQ(s.halves[0].packets, reduce_links * kCalls * packets_of_call);
      EXPECT_EQ(s.halves[1].packets, gather_links * kCalls * packets_of_call);
      EXPECT_EQ(s.collectives, kCalls);
    }
  }
}

TEST(LossyStatistics, RealisedRateIsWithinItsStandardDeviation) {
  double squares = 0;
  int number = 0;
  for (const bool bursty : {false, true}) {
    for (const BurstScope scope : {BurstScope::kLink, BurstScope::kMessage}) {
      std::shared_ptr<const sim::LossProcess> loss = std::make_shared<sim::Bernoulli>(0.05);
      if (bursty) loss = std::make_shared<sim::GilbertElliott>(sim::rates_of_burst(0.05, 8));
      const auto statistics = statistics_of(4, options_of("direct", loss, Consistency::kPerReceiver, scope),
                                            [](LossyCommunicator& lossy) { reduce_calls(lossy, 50, 4 * 1000); });
      const LossCounts total = statistics.at(0).total();
      EXPECT_NEAR(total.configured_rate(), 0.05, 1e-12);
      EXPECT_LT(std::abs(total.z()), 4);
      // Burst lengths are geometric with mean B: standard deviation sqrt(B (B - 1)); messages cut a few of them.
      if (scope == BurstScope::kLink) {
        const double mean = loss->mean_burst_packets();
        double bursts = 0;
        for (const auto& [length, count] : total.bursts) bursts += static_cast<double>(count);
        EXPECT_NEAR(total.mean_burst_packets(), mean, 4 * std::sqrt(mean * (mean - 1) / bursts) + 1e-3 * mean);
      }
      for (const LinkStatistics& of_link : statistics[0].links) {
        squares += of_link.counts.z() * of_link.counts.z();
        ++number;
      }
    }
  }
  // z has variance 1 over links; the sum of squares of n of them spreads by sqrt(2 n), more with skewed counts.
  EXPECT_NEAR(squares / number, 1, 5 * std::sqrt(2.0 / number));
}

TEST(LossyStatistics, CertainFatesHaveNoSpread) {
  LossCounts counts;
  EXPECT_TRUE(std::isnan(counts.z())) << "no packets";
  counts.packets = 10;
  EXPECT_EQ(counts.z(), 0);
  counts.lost_packets = 10;
  counts.expected_lost = 10;
  EXPECT_EQ(counts.z(), 0);
  counts.lost_packets = 9;
  EXPECT_EQ(counts.z(), -std::numeric_limits<double>::infinity());
}

// A collective is untouched when no rank lost anything; no rank sees all of the twelve links.
TEST(LossyStatistics, UntouchedCollectivesAreThoseWithoutALossOnAnyLink) {
  const auto loss = std::make_shared<sim::Bernoulli>(0.03);
  constexpr std::uint64_t kCalls = 600;
  const auto statistics = statistics_of(
      3, options_of("direct", loss, Consistency::kPerReceiver, BurstScope::kLink), [](LossyCommunicator& lossy) {
        reduce_calls(lossy, kCalls / 2, 12);
        lossy.collect_statistics(Detail::kOmit);  // collecting on the way changes nothing
        reduce_calls(lossy, kCalls / 2, 12);
      });
  // Each call sends one packet over each link.
  std::vector<bool> touched(kCalls);
  for (const LinkStatistics& of_link : statistics.at(0).links) {
    sim::PacketMask lost(kCalls);
    loss->draw(4242, of_link.link, 0, lost);
    for (std::uint64_t call = 0; call < kCalls; ++call) touched[call] = touched[call] || lost.lost(call);
  }
  EXPECT_EQ(statistics[0].links.size(), 12U);
  EXPECT_EQ(statistics[0].collectives, kCalls);
  EXPECT_EQ(statistics[0].untouched, static_cast<std::uint64_t>(std::ranges::count(touched, false)));
  const double untouched = std::pow(0.97, 12);
  EXPECT_NEAR(statistics[0].untouched_share(), untouched, 4 * std::sqrt(untouched * (1 - untouched) / kCalls));
}

TEST(LossyStatistics, SplitGroupsAndMessagesAreCountedOnce) {
  const auto loss = std::make_shared<sim::Bernoulli>(0);
  const auto statistics = statistics_of(4, options_of("direct", loss, Consistency::kPerReceiver, BurstScope::kLink),
                                        [](LossyCommunicator& lossy) {
                                          const int r = lossy.rank();
                                          const auto group = lossy.split(r / 2, r);
                                          std::vector<float> data(8, 1.0F);
                                          group->all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
                                          group->all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
                                          lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
                                          if (r == 3)
                                            lossy.send(ConstTensor(std::span<const float>(data)), 0, kMessage);
                                          if (r == 0) lossy.recv(Tensor(std::span(data)), 3, kMessage);
                                        });
  // Two groups x two calls, one of all, one message.
  EXPECT_EQ(statistics.at(0).collectives, 6U);
  EXPECT_EQ(statistics[0].untouched, 6U);
  EXPECT_EQ(statistics[0].total().lost_packets, 0U);
  // Reduce half: 2 groups x 2 calls x 2 links x 1 packet + 12 links x 1; gather half: the same + 2 packets of the
  // message.
  EXPECT_EQ(statistics[0].halves[0].packets, 20U);
  EXPECT_EQ(statistics[0].halves[1].packets, 22U);
}

TEST(LossyStatistics, SamplesMeasureErrorAndDivergence) {
  const auto loss = std::make_shared<sim::Bernoulli>(0.5);
  LossyOptions options = options_of("direct", loss, Consistency::kPerReceiver, BurstScope::kLink);
  options.network.of(kClass)->reduce.loss = nullptr;
  options.sample_every_steps = 2;
  run_ranks(2, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    double errors = 0;
    for (std::uint64_t step = 0; step < 4; ++step) {
      lossy.begin_step(step);
      std::vector<double> data(64, 1.0);
      lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
      std::vector<double> missing(1);
      for (const double x : data) missing[0] += x == 0 ? 1 : 0;
      inner.all_reduce(Tensor(std::span(missing)), ReduceOp::kSum, {});
      if (step % 2 == 0) errors += missing[0];
      const auto samples = lossy.take_samples();
      if (step % 2 != 0) {
        EXPECT_TRUE(samples.empty());
        continue;
      }
      ASSERT_EQ(samples.size(), 1U);
      EXPECT_EQ(samples[0].calls, 1U);
      // Exact: 128 twos over both ranks; a missing one is an error of 2^2, and differs from the other rank's 2.
      EXPECT_DOUBLE_EQ(samples[0].nmse, missing[0] / 128);
      EXPECT_DOUBLE_EQ(samples[0].cosine, std::sqrt(1 - missing[0] / 128));
      EXPECT_DOUBLE_EQ(samples[0].divergence_max, 2);
      // An element that one rank misses has values 0 and 2: both deviate by 1 from their mean.
      EXPECT_DOUBLE_EQ(samples[0].divergence_rms, std::sqrt(2 * missing[0] / 128));
    }
    const auto statistics = lossy.collect_statistics(Detail::kOmit);
    EXPECT_EQ(statistics.at(0).sampled_calls, 2U);
    EXPECT_DOUBLE_EQ(statistics[0].nmse(), errors / 256);
    EXPECT_EQ(statistics[0].collectives, 4U);  // the exact twins are not counted
  });
}

TEST(LossyStatistics, ResultsOfWhichEachRankHasItsOwnHaveNoDivergence) {
  LossyOptions options =
      options_of("direct", std::make_shared<sim::Bernoulli>(0.5), Consistency::kPerReceiver, BurstScope::kLink);
  options.sample_every_steps = 1;
  run_ranks(2, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    lossy.begin_step(1);
    const std::vector<double> data(64, 1.0);
    std::vector<double> part(32);
    const std::vector<std::uint64_t> counts = {32, 32};
    lossy.reduce_scatter(ConstTensor(std::span(data)), Tensor(std::span(part)), counts, ReduceOp::kSum, kMessage);
    const ClassStatistics statistics = lossy.collect_statistics(Detail::kOmit).at(0);
    EXPECT_GT(statistics.nmse(), 0);
    EXPECT_TRUE(std::isnan(statistics.divergence_max));
    EXPECT_TRUE(std::isnan(statistics.divergence_rms));
    EXPECT_TRUE(std::isnan(statistics.halves[1].realised_rate())) << "nothing is gathered";
  });
}

TEST(LossyStatistics, AResultThatIsNotFiniteHasNoCosine) {
  ClassStatistics statistics;
  statistics.sampled_calls = 1;
  statistics.exact_energy = 4;
  statistics.result_energy = statistics.inner_product = std::nan("");
  EXPECT_TRUE(std::isnan(statistics.cosine()));
}

TEST(LossyStatistics, AnIntervalAfterOneWithoutNumbersHasNumbersAgain) {
  LossyOptions options =
      options_of("direct", std::make_shared<sim::Bernoulli>(0.3), Consistency::kPerReceiver, BurstScope::kLink);
  options.sample_every_steps = 1;
  run_ranks(2, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    for (std::uint64_t step = 0; step < 2; ++step) {
      lossy.begin_step(step);
      std::vector<double> data(64, step == 0 ? std::nan("") : 1.0);
      lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
      const auto samples = lossy.take_samples();
      ASSERT_EQ(samples.size(), 1U);
      EXPECT_EQ(std::isnan(samples[0].nmse), step == 0);
    }
  });
}

TEST(LossyStatistics, SamplesOfEqualRanksDoNotDivergeAndDoNotChangeResults) {
  const auto loss = std::make_shared<sim::Bernoulli>(0.3);
  LossyOptions options = options_of("contribution", loss, Consistency::kShared, BurstScope::kLink);
  LossyOptions unsampled = options;
  options.sample_every_steps = 1;
  run_ranks(3, kTimeout, [&](Communicator& inner) {
    LossyCommunicator sampled(inner, options);
    LossyCommunicator plain(inner, unsampled);
    sampled.begin_step(5);
    plain.begin_step(5);
    const std::vector<std::uint64_t> counts = {30, 1, 9};
    for (int call = 0; call < 3; ++call) {
      std::vector<std::vector<double>> results;
      for (LossyCommunicator* lossy : {&sampled, &plain}) {
        std::vector<double> data(40, 0.1 * (inner.rank() + 1));
        lossy->all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
        std::vector<double> part(counts[inner.rank()]);
        lossy->reduce_scatter(ConstTensor(std::span<const double>(data)), Tensor(std::span(part)), counts,
                              ReduceOp::kSum, kMessage);
        lossy->all_gather(ConstTensor(std::span<const double>(part)), Tensor(std::span(data)), counts, kMessage);
        lossy->broadcast(Tensor(std::span(data)), 2, kMessage);
        if (inner.rank() == 0) lossy->send(ConstTensor(std::span<const double>(data)), 1, kMessage);
        if (inner.rank() == 1) lossy->recv(Tensor(std::span(data)), 0, kMessage);
        results.push_back(data);
      }
      EXPECT_EQ(results[0], results[1]);
    }
    const auto samples = sampled.take_samples();
    ASSERT_EQ(samples.size(), 1U);
    EXPECT_EQ(samples[0].calls, 15U);
    EXPECT_EQ(samples[0].divergence_max, 0);
    EXPECT_EQ(samples[0].divergence_rms, 0);
    EXPECT_GT(samples[0].nmse, 0);
    EXPECT_TRUE(plain.take_samples().empty());
  });
}

// Two ranks compare parts: the first half of the elements on rank 0, the second on rank 1. A broadcast of ones is lost
// on its way to rank 1, which has zeros, and one NaN.
TEST(LossyStatistics, ANaNOnOneRankIsNoDivergenceThatCanBeOverlooked) {
  LossyOptions options =
      options_of("direct", std::make_shared<sim::Bernoulli>(1), Consistency::kPerReceiver, BurstScope::kLink);
  options.sample_every_steps = 1;
  for (const std::size_t place : {std::size_t{2}, std::size_t{70}}) {
    run_ranks(2, kTimeout, [&](Communicator& inner) {
      LossyCommunicator lossy(inner, options);
      lossy.begin_step(1);
      std::vector<double> data(100, 1.0);
      lossy.broadcast(Tensor(std::span(data)), 0, kMessage);
      EXPECT_EQ(lossy.collect_statistics(Detail::kOmit).at(0).divergence_max, 1);
      data.assign(100, 1.0);
      data[place] = std::nan("");
      lossy.broadcast(Tensor(std::span(data)), 0, kMessage);
      data.assign(100, 1.0);
      lossy.broadcast(Tensor(std::span(data)), 0, kMessage);  // a later collective does not hide it
      const auto statistics = lossy.collect_statistics(Detail::kOmit);
      EXPECT_TRUE(std::isnan(statistics.at(0).divergence_max)) << place;
      EXPECT_TRUE(std::isnan(statistics.at(0).divergence_rms)) << place;
      EXPECT_TRUE(std::isnan(statistics.at(0).layers.at(0).samples.divergence_max)) << place;
    });
  }
}

// A process with a fault: one more packet of a link is lost, on the ranks that have it.
class FaultyLoss final : public sim::LossProcess {
 public:
  explicit FaultyLoss(const sim::Link& faulty) : faulty_(faulty) {}
  void draw(std::uint64_t seed, const sim::Link& link, std::uint64_t first, sim::PacketMask& lost) const override {
    healthy_.draw(seed, link, first, lost);
    if (link == faulty_ && lost.size() > 0) lost.set_lost(0);
  }
  double loss_rate() const override { return healthy_.loss_rate(); }
  double mean_burst_packets() const override { return healthy_.mean_burst_packets(); }
  double mean_gap_packets() const override { return healthy_.mean_gap_packets(); }
  double burst_at_least(std::uint64_t packets) const override { return healthy_.burst_at_least(packets); }
  double lost_count_variance(std::uint64_t n) const override { return healthy_.lost_count_variance(n); }
  std::string describe() const override { return "faulty"; }

 private:
  sim::Link faulty_;
  sim::Bernoulli healthy_{0.001};
};

void expect_mismatch(const sim::Link& faulty, std::string_view path, const std::vector<std::string>& words) {
  std::mutex mutex;
  int told = 0;
  run_ranks(4, kTimeout, [&](Communicator& inner) {
    std::shared_ptr<const sim::LossProcess> loss = std::make_shared<sim::Bernoulli>(0.001);
    if (inner.rank() == 2) loss = std::make_shared<FaultyLoss>(faulty);
    LossyCommunicator lossy(inner, options_of(path, loss, Consistency::kPerReceiver, BurstScope::kLink));
    reduce_calls(lossy, 3, 64);
    try {
      lossy.verify_fates();
    } catch (const CommError& error) {
      const std::scoped_lock lock(mutex);
      ++told;
      for (const std::string& word : words) EXPECT_THAT(error.what(), testing::HasSubstr(word));
    }
  });
  EXPECT_EQ(told, 4) << "every rank must learn of it";
}

TEST(LossyStatistics, EndsThatDisagreeOnFatesAreFatalAndNamed) {
  expect_mismatch({kClass, sim::Half::kReduce, 1, 2}, "direct",
                  {"tp_forward", "reduce half", "from rank 1 to rank 2", "rank 1 has digest", "rank 2 has digest"});
  expect_mismatch({kClass, sim::Half::kGather, 2, 0}, "direct",
                  {"gather half", "from rank 2 to rank 0", "rank 0 has digest", "rank 2 has digest"});
  expect_mismatch({kClass, sim::Half::kReduce, 3, sim::Link::kEveryDestination}, "contribution",
                  {"reduce half", "from rank 3 to every rank", "rank 3 has digest", "rank 2 has digest"});
}

TEST(LossyStatistics, RanksThatUsedUpDifferentPacketsAreFatal) {
  int told = 0;
  std::mutex mutex;
  run_ranks(2, kTimeout, [&](Communicator& inner) {
    LossyOptions options =
        options_of("direct", std::make_shared<sim::Bernoulli>(0.1), Consistency::kPerReceiver, BurstScope::kLink);
    if (inner.rank() == 1) options.network.of(kClass)->payload_bytes = 32;
    LossyCommunicator lossy(inner, options);
    reduce_calls(lossy, 1, 64);
    EXPECT_THROW(lossy.verify_fates(), CommError);
    const std::scoped_lock lock(mutex);
    ++told;
  });
  EXPECT_EQ(told, 2);
}

// The first message of a link is one that both ends draw.
TEST(LossyStatistics, MessagesUnderWayAreNoMismatch) {
  for (const int received_first : {0, 1}) {
    run_ranks(2, kTimeout, [&](Communicator& inner) {
      LossyCommunicator lossy(inner, options_of("direct", std::make_shared<sim::Bernoulli>(0.3),
                                                Consistency::kPerReceiver, BurstScope::kLink));
      std::vector<float> data(64, 1.0F);
      const Message message{kClass, "activation", 0};
      const auto receive = [&](int count) {
        for (int i = 0; inner.rank() == 1 && i < count; ++i) lossy.recv(std::span(data), 0, message);
      };
      for (int i = 0; inner.rank() == 0 && i < 2; ++i) lossy.send(std::span<const float>(data), 1, message);
      receive(received_first);
      EXPECT_NO_THROW(lossy.verify_fates());
      receive(2 - received_first);
      EXPECT_NO_THROW(lossy.verify_fates());
    });
  }
}

TEST(LossyStatistics, MessagesUnderWayAreComparedWhenTheyHaveCome) {
  run_ranks(2, kTimeout, [](Communicator& inner) {
    const auto loss = std::make_shared<sim::Bernoulli>(inner.rank() == 0 ? 0.3 : 0.4);
    LossyCommunicator lossy(inner, options_of("direct", loss, Consistency::kPerReceiver, BurstScope::kLink));
    std::vector<float> data(4096, 1.0F);
    if (inner.rank() == 0) lossy.send(std::span<const float>(data), 1, {kClass, "activation", 0});
    EXPECT_NO_THROW(lossy.verify_fates());
    if (inner.rank() == 1) lossy.recv(std::span(data), 0, {kClass, "activation", 0});
    EXPECT_THROW(lossy.verify_fates(), CommError);
  });
}

// One message is under way, and the other end does not know another one.
TEST(LossyStatistics, ACollectiveThatOneEndMissedIsAMismatchBesideAMessageUnderWay) {
  run_ranks(2, kTimeout, [](Communicator& inner) {
    const LossyOptions options =
        options_of("direct", std::make_shared<sim::Bernoulli>(0.3), Consistency::kPerReceiver, BurstScope::kLink);
    FlowLedger ledger(options.network);
    const sim::Link link{kClass, sim::Half::kGather, 0, 1};
    const auto pass = [&](CallFates::Ends ends) {
      CallFates call;
      call.ends = ends;
      ledger.pass_message(call, link, sim::Packetizer(100, 4, 64));
    };
    if (inner.rank() == 0) pass(CallFates::Ends::kApart);
    EXPECT_NO_THROW(verify_fates(inner, ledger, 1));
    if (inner.rank() == 0) pass(CallFates::Ends::kTogether);
    EXPECT_THROW(verify_fates(inner, ledger, 1), CommError);
  });
}

}  // namespace
}  // namespace droptest::comm::lossy_statistics_test
