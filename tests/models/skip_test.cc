// SPDX-License-Identifier: Apache-2.0
// The fill `skip`: lost elements of a stage's result are replaced by the stage's input.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/loss/loss_process.h"
#include "tests/models/parallel_training.h"

namespace droptest::models::skip_test {
namespace {

using enum ScheduleKind;

/// Loses the messages in the first half of a link's ordinals: results, not inputs that are sent past a stage.
class LossOfResults final : public sim::LossProcess {
 public:
  explicit LossOfResults(int destination) : destination_(destination) {}
  void draw(std::uint64_t /*seed*/, const sim::Link& link, std::uint64_t first, sim::PacketMask& lost) const override {
    const bool is_result = first < std::uint64_t{1} << 30U;
    const bool loses = is_result && (destination_ < 0 || link.destination == destination_);
    lost.resize(lost.size());
    for (std::uint64_t i = 0; loses && i < lost.size(); ++i) lost.set_lost(i);
  }
  double loss_rate() const override { return 0.5; }
  double mean_burst_packets() const override { return 1; }
  double mean_gap_packets() const override { return 1; }
  double burst_at_least(std::uint64_t /*packets*/) const override { return 0.5; }
  double lost_count_variance(std::uint64_t n) const override { return static_cast<double>(n); }
  std::string describe() const override { return "results"; }

 private:
  int destination_;
};

// If blocks are identities, a stage's input is its output in both directions, so `skip` replaces lost elements exactly.
TEST(Skip, WhereStagesAreIdentitiesNothingIsMissing) {
  const std::vector<Training> runs = {
      {.pipeline = 2, .micro_batches = 4},
      {.pipeline = 4, .kind = kGpipe, .micro_batches = 4},
      {.config = {3, 32, 4, 12, 97}, .pipeline = 3, .micro_batches = 4},
      {.pipeline = 2, .chunks = 2, .kind = kInterleaved, .micro_batches = 4},
      {.pipeline = 2, .kind = kZeroBubble, .micro_batches = 4},
      {.config = {8, 32, 4, 12, 97}, .pipeline = 4, .micro_batches = 8, .file = "zbv_4x8.csv"}};
  for (Training run : runs) {
    for (int block = 0; block < run.config.layers; ++block) run.identities.push_back(block);
    run.steps = 1;
    const TrainingResult want = train<double>(run);
    run.losses.assign(2, std::make_shared<LossOfResults>(-1));
    run.sent_past = {.activations = true, .gradients = true};
    const TrainingResult got = train<double>(run);
    for (const auto& [name, values] : want.of_replica[0]) {
      EXPECT_LE(relative_difference(got.of_replica[0].at(name), values), 1e-13) << name;
    }
    const bool all_travel = run.chunks == 1;  // else some inputs are on their user's rank
    ASSERT_EQ(got.statistics.size(), 2U);
    for (const comm::ClassStatistics& of_class : got.statistics) {
      const std::uint64_t lost = of_class.total().lost_packets;
      EXPECT_GT(lost, 0U);
      EXPECT_LE(of_class.total().packets, 2 * lost);
      EXPECT_EQ(of_class.total().packets == 2 * lost, all_travel);
    }
    run.sent_past = {};
    EXPECT_NE(train<double>(run).steps[0].loss, want.steps[0].loss) << "without skip";
  }
}

// The stage with block 1 is skipped: the others train as they would around a block without effect.
TEST(Skip, AStageIsLeftOutWhereItsResultsAreLost) {
  Training run{.config = {3, 32, 4, 12, 97}, .pipeline = 3, .micro_batches = 2, .steps = 1};
  run.max_norm = 1e9;  // the left-out stage has gradients, too
  run.identities = {1};
  const TrainingResult want = train<double>(run);
  run.identities = {};
  run.sent_past = {.activations = true, .gradients = true};
  run.losses = {std::make_shared<LossOfResults>(2), std::make_shared<LossOfResults>(0)};
  const TrainingResult got = train<double>(run);
  EXPECT_NEAR(got.steps[0].loss, want.steps[0].loss, 1e-12);
  for (const auto& [name, values] : want.of_replica[0]) {
    if (name.find("h.1.") != std::string::npos) continue;
    EXPECT_LE(relative_difference(got.of_replica[0].at(name), values), 1e-12) << name;
  }
}

// Schedules of one placement lose the same packets, of results and of what is sent past stages. So does the fill zero,
// of results.
TEST(Skip, SchedulesOfOnePlacementGiveTheSameBits) {
  Training run{.pipeline = 4, .micro_batches = 6, .loss_rate = 0.2};
  const TrainingResult zero = train<float>(run);
  run.sent_past = {.activations = true, .gradients = true};
  const TrainingResult want = train<float>(run);
  EXPECT_NE(want.steps.back().loss, zero.steps.back().loss);
  for (const ScheduleKind kind : {kGpipe, kZeroBubble}) {
    run.kind = kind;
    const TrainingResult got = train<float>(run);
    expect_equal_bits(got, want);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(got.statistics[i].digest, want.statistics[i].digest);
  }
}

}  // namespace
}  // namespace droptest::models::skip_test
