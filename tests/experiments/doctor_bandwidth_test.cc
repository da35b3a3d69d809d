// SPDX-License-Identifier: Apache-2.0
#include "experiments/doctor/bandwidth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/run_ranks.h"

namespace droptest::experiments::doctor_bandwidth_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Bandwidth, IsThatOfNcclTests) {
  // 8 ranks: each link carries 2 x 7 / 8 of a message.
  EXPECT_DOUBLE_EQ(algorithm_bandwidth(1000000, 0.001), 1e9);
  EXPECT_DOUBLE_EQ(bus_bandwidth(1000000, 0.001, 8), 1.75e9);
  EXPECT_DOUBLE_EQ(bus_bandwidth(1000000, 0.001, 2), 1e9);
  EXPECT_DOUBLE_EQ(bus_bandwidth(1000000, 0.001, 1), 0);
}

TEST(Bandwidth, MedianOfOddAndEvenNumbersOfValues) {
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(median({9, 1, 2}), 2);
  EXPECT_EQ(median({9, 1, 2, 4}), 3);
}

TEST(Bandwidth, SizesAreFourTimesTheOneBeforeAndWholeFloats) {
  EXPECT_THAT(message_sizes({.from_bytes = 1024, .to_bytes = 70000}), ElementsAre(1024, 4096, 16384, 65536));
  EXPECT_THAT(message_sizes({.from_bytes = 1024, .to_bytes = 1024}), ElementsAre(1024));
  EXPECT_THAT(message_sizes({.from_bytes = 5, .to_bytes = 20}), ElementsAre(8, 20));
  EXPECT_THAT(message_sizes({.from_bytes = 8, .to_bytes = 4}), IsEmpty());
  EXPECT_THAT(message_sizes({.from_bytes = std::uint64_t{1} << 62, .to_bytes = ~std::uint64_t{0}}),
              ElementsAre(std::uint64_t{1} << 62));
}

/// Forwards to a group of one and spoils one element of every sum of floats.
class SpoilingCommunicator final : public comm::Communicator {
 public:
  explicit SpoilingCommunicator(comm::Communicator& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  int world_rank(int rank) const override { return inner_.world_rank(rank); }
  std::string_view backend() const override { return inner_.backend(); }
  void run(const comm::CallArguments& call) override {
    inner_.run(call);
    const bool spoils =
        call.operation == comm::Operation::kAllReduce && call.output.type == comm::ElementType::kFloat32;
    if (spoils) call.output.as<float>().back() += 1;
  }
  std::unique_ptr<comm::Communicator> split(int color, int key) override { return inner_.split(color, key); }
  void abort(std::string_view reason) noexcept override { inner_.abort(reason); }

 private:
  comm::Communicator& inner_;
};

constexpr std::chrono::milliseconds kTimeout{20000};

TEST(Bandwidth, EverySizeIsMeasuredAndItsSumsAreRight) {
  comm::run_ranks(3, kTimeout, [](comm::Communicator& group) {
    const BandwidthPlan plan{.from_bytes = 4, .to_bytes = 4096, .repetitions = 3};
    const std::vector<BandwidthPoint> points = measure_all_reduce(group, message_sizes(plan), plan);
    EXPECT_EQ(points.size(), 6u);
    for (const BandwidthPoint& point : points) {
      EXPECT_EQ(point.wrong_elements, 0u);
      EXPECT_GT(point.median_seconds, 0);
      EXPECT_GE(point.repetitions, 1);
      EXPECT_LE(point.repetitions, 3);
    }
  });
}

TEST(Bandwidth, WrongSumsAreCountedOverAllRanksAndRepetitions) {
  comm::run_ranks(2, kTimeout, [](comm::Communicator& group) {
    SpoilingCommunicator spoiling(group);
    const BandwidthPlan plan{.from_bytes = 64, .to_bytes = 64, .repetitions = 5};
    const std::vector<BandwidthPoint> points = measure_all_reduce(spoiling, message_sizes(plan), plan);
    // One element on each of two ranks, in the first repetition and in the last.
    EXPECT_EQ(points.at(0).wrong_elements, 4u);
  });
}

TEST(Bandwidth, ALongRepetitionIsNotRepeated) {
  comm::run_ranks(2, kTimeout, [](comm::Communicator& group) {
    const BandwidthPlan plan{
        .from_bytes = 64, .to_bytes = 64, .repetitions = 1000000, .longest = std::chrono::milliseconds(0)};
    EXPECT_EQ(measure_all_reduce(group, message_sizes(plan), plan).at(0).repetitions, 1);
  });
}

}  // namespace
}  // namespace droptest::experiments::doctor_bandwidth_test
