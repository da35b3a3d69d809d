// SPDX-License-Identifier: Apache-2.0
// The wait for a quorum of messages, and the times of compressed messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "sim/time/timing_theory.h"
#include "tests/comm/timed_network.h"

namespace droptest::comm::quorum_test {
namespace {

constexpr std::chrono::milliseconds kTimeout{20000};
const Message kMessage{kClass, "weights", 0};
constexpr double kMessageSeconds = kLink.latency_seconds + kElements * sizeof(float) / kLink.bytes_per_second;

/// One mean of four ranks, of which rank r is ready after r x 10 ms; each rank gives r + 1.
struct Mean {
  std::array<double, 4> seconds{};
  std::array<float, 4> first{};         // first element of each rank's result
  std::array<std::uint64_t, 4> lost{};  // elements, as Message::lost says
  std::uint64_t late_packets = 0;
};

enum class Starts : std::uint8_t { kBlocking, kAhead };

Mean mean_of_four(const LossyOptions& options, Starts starts = Starts::kBlocking) {
  Mean mean;
  run_ranks(4, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    const auto rank = static_cast<std::size_t>(inner.rank());
    lossy.begin_step(1);
    lossy.pass_compute_share(0.01 * static_cast<double>(rank));
    const std::vector<float> sent(kElements, static_cast<float>(rank) + 1);
    std::vector<float> got(kElements);
    std::vector<sim::ElementRange> lost;
    Message message = kMessage;
    message.lost = &lost;
    if (starts == Starts::kBlocking) {
      lossy.all_reduce(ConstTensor(std::span(sent)), Tensor(std::span(got)), ReduceOp::kMean, message);
    } else {
      Work work =
          lossy.start_all_reduce(ConstTensor(std::span(sent)), Tensor(std::span(got)), ReduceOp::kMean, message);
      lossy.pass_compute_share(0.0002);
      work.wait();
    }
    lossy.verify_fates();
    mean.first[rank] = got[0];
    for (const sim::ElementRange& range : lost) mean.lost[rank] += range.size();
    const auto time = lossy.collect_time();
    if (inner.rank() == 0) mean.late_packets = time->late;
    const auto alone = lossy.split(inner.rank(), 0);  // the latest clock of this group is the rank's own
    mean.seconds[rank] = dynamic_cast<LossyCommunicator&>(*alone).collect_time()->seconds;
  });
  return mean;
}

LossyOptions with_quorum(int ranks, double grace_seconds, double loss = 0) {
  LossyOptions options = options_of("contribution", loss, computing_model());
  ClassNetwork& network = *options.network.of(kClass);
  network.reduce.fill = Fill::kCountRescale;
  network.quorum = {ranks, grace_seconds};
  return options;
}

TEST(Quorum, AllRanksGoOnAfterTheGraceWithoutTheLateOnes) {
  constexpr double kGrace = 0.004;
  for (const Starts starts : {Starts::kBlocking, Starts::kAhead}) {
    const Mean mean = mean_of_four(with_quorum(2, kGrace), starts);
    EXPECT_EQ(mean.late_packets, 2 * kElements * sizeof(float) / 256) << "of both late messages";
    const double ends = 0.01 + kMessageSeconds + kGrace + kLink.latency_seconds;
    for (const std::size_t rank : {0U, 1U}) {
      EXPECT_NEAR(mean.seconds[rank], ends, 1e-12);
      EXPECT_EQ(mean.first[rank], 1.5F) << "the mean of the first two";
      EXPECT_EQ(mean.lost[rank], 0U);
    }
    for (const std::size_t rank : {2U, 3U}) {
      const double busy = starts == Starts::kAhead ? 0.0002 : 0;
      EXPECT_NEAR(mean.seconds[rank], 0.01 * static_cast<double>(rank) + busy, 1e-12) << "a late rank waits for nobody";
      EXPECT_EQ(mean.lost[rank], kElements) << "and learns that it had no part";
    }
  }
}

TEST(Quorum, AMessageAtTheEndOfTheGraceCountsWhole) {
  // The third message is complete 10 ms after the second one.
  const Mean in_time = mean_of_four(with_quorum(2, 0.0100001));
  EXPECT_EQ(in_time.late_packets, kElements * sizeof(float) / 256);
  EXPECT_EQ(in_time.first[0], 2.0F);
  EXPECT_NEAR(in_time.seconds[0], 0.01 + kMessageSeconds + 0.0100001 + kLink.latency_seconds, 1e-12)
      << "the fourth is waited for to the end of the grace";
  // Most of the third message has arrived when the grace period ends, but the whole message counts as late.
  const Mean cut = mean_of_four(with_quorum(2, 0.01 - 1e-6));
  EXPECT_EQ(cut.late_packets, 2 * kElements * sizeof(float) / 256);
  EXPECT_EQ(cut.first[0], 1.5F);
  // No rank waits longer than for the last message.
  const Mean all = mean_of_four(with_quorum(2, 1));
  EXPECT_EQ(all.late_packets, 0U);
  EXPECT_NEAR(all.seconds[0], 0.03 + kMessageSeconds + kLink.latency_seconds, 1e-12);
  EXPECT_EQ(all.first[3], 2.5F);
}

TEST(Quorum, AQuorumOfAllRanksHasNoEffect) {
  LossyOptions without = with_quorum(4, 0, 0.1);
  without.network.of(kClass)->quorum.reset();
  const Mean want = mean_of_four(without);
  const Mean got = mean_of_four(with_quorum(4, 0, 0.1));
  EXPECT_EQ(got.seconds, want.seconds);
  EXPECT_EQ(got.first, want.first);
  EXPECT_EQ(got.lost, want.lost);
  EXPECT_EQ(got.late_packets, 0U);
}

TEST(Quorum, WaitsForMessagesThatArriveForCertain) {
  run_ranks(3, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, with_quorum(1, 0));
    lossy.begin_step(1);
    lossy.pass_compute_share(0.01 * inner.rank());
    std::vector<float> data(kElements, static_cast<float>(inner.rank()));
    {
      const LossyCommunicator::ProtectedScope scope(lossy);
      lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kMean, kMessage);
    }
    EXPECT_EQ(data[0], 1.0F);
    EXPECT_NEAR(lossy.collect_time()->seconds, 0.02 + kMessageSeconds + kLink.latency_seconds, 1e-12);
  });
}

TEST(Quorum, IsRefusedWhereNoTimesAreKnown) {
  const auto refusal = [](const LossyOptions& options) -> std::string {
    std::string text;
    run_ranks(1, kTimeout, [&](Communicator& inner) {
      try {
        LossyCommunicator lossy(inner, options);
      } catch (const ConfigError& error) {
        text = error.what();
      }
    });
    return text;
  };
  using ::testing::HasSubstr;
  LossyOptions options = with_quorum(2, 0);
  EXPECT_EQ(refusal(options), "");
  options.time.reset();
  EXPECT_THAT(refusal(options), HasSubstr("quorum: got a quorum of 2 messages without a clock, so that no message has "
                                          "a time; want a section time"));
  options = with_quorum(2, 0);
  options.time->compute_seconds.reset();
  EXPECT_THAT(refusal(options), HasSubstr("with measured compute time"));
  options = with_quorum(2, 0);
  options.time->deadline_seconds = 1;
  EXPECT_THAT(refusal(options), HasSubstr("with a deadline"));
  options = with_quorum(2, 0);
  options.network.of(kClass)->path = "direct";
  EXPECT_THAT(refusal(options), HasSubstr("want the path contribution without compression"));
  options = with_quorum(2, 0);
  options.network.of(kClass)->reduce.recovery = protocol("selective_repeat");
  EXPECT_THAT(refusal(options), HasSubstr("which does not know the late messages"));
  options = with_quorum(2, 0);
  options.network.of(kClass)->reduce.fill = Fill::kInverseProbability;
  EXPECT_THAT(refusal(options), HasSubstr("with the fill inverse_probability"));
  options = with_quorum(0, 0);
  EXPECT_THAT(refusal(options), HasSubstr("got a quorum of 0 messages, want at least 1"));
  options = with_quorum(2, -1);
  EXPECT_THAT(refusal(options), HasSubstr("want at least 0 s"));
}

// Messages take the time of their bytes on the wire, not of the values that they decode to.
TEST(CompressedTime, IsThatOfTheBytesOnTheWire) {
  constexpr int kRanks = 4;
  const auto seconds_of = [](const Compression& compression) {
    LossyOptions options =
        options_of(compression.kind == CompressionKind::kPowerSgd ? "contribution" : "direct", 0, model_of());
    options.network.of(kClass)->compression = compression;
    double seconds = 0;
    run_ranks(kRanks, kTimeout, [&](Communicator& inner) {
      LossyCommunicator lossy(inner, options);
      std::vector<float> data(kElements);
      for (std::size_t i = 0; i < data.size(); ++i)
        data[i] = static_cast<float>(i % 97) + static_cast<float>(lossy.rank());
      lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
      const double of_all = lossy.collect_time()->seconds;
      if (inner.rank() == 0) seconds = of_all;
    });
    return seconds;
  };
  constexpr double kBytes = kElements * sizeof(float);
  EXPECT_NEAR(seconds_of({}), sim::direct_all_reduce_seconds(kRanks, kBytes, kLink), 1e-12);
  EXPECT_NEAR(seconds_of({CompressionKind::kBfloat16}), sim::direct_all_reduce_seconds(kRanks, kBytes / 2, kLink),
              1e-12);
  EXPECT_NEAR(seconds_of({CompressionKind::kFloat16}), sim::direct_all_reduce_seconds(kRanks, kBytes / 2, kLink),
              1e-12);
  // A scale of 4 bytes for each block of 64 elements.
  EXPECT_NEAR(seconds_of({CompressionKind::kInt8, 64}),
              sim::direct_all_reduce_seconds(kRanks, kElements * (1 + 4.0 / 64), kLink), 1e-12);
  EXPECT_NEAR(seconds_of({CompressionKind::kInt4, 64}),
              sim::direct_all_reduce_seconds(kRanks, kElements * (0.5 + 4.0 / 64), kLink), 1e-12);
  // Pairs of 8 bytes from each rank to each other one, in one hop.
  EXPECT_NEAR(seconds_of({CompressionKind::kTopK, 1, 0.125}),
              kLink.latency_seconds + (kRanks - 1) * kLink.transfer_seconds(kElements / 8 * 8), 1e-12);
  // Two factors of 91 rows and 2 columns.
  EXPECT_NEAR(seconds_of({CompressionKind::kPowerSgd, 1, 0, 2}), 2 * sim::aggregation_seconds(91 * 2 * 4, kLink),
              1e-12);
}

}  // namespace
}  // namespace droptest::comm::quorum_test
