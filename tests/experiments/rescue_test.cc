// SPDX-License-Identifier: Apache-2.0
// The state that ranks leave when another one dies, and the checkpoint of it.
#include "experiments/checkpoint/rescue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <barrier>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "comm/run_ranks.h"
#include "experiments/training/trainer.h"
#include "experiments/training/trainer_parts.h"
#include "tests/comm/observed_communicator.h"
#include "tests/comm/temporary_folder.h"
#include "tests/experiments/tiny_run.h"

namespace droptest::experiments::rescue_test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using Layout = comm::ParallelLayout;

const std::string kRun(16, 'a');

/// A state of a rank that has one small tensor.
void leave(const CheckpointFolder& folder, const Layout& layout, int rank, std::uint64_t step,
           const std::string& run_id = kRun) {
  Manifest manifest;
  manifest.step = step;
  manifest.name = "tiny";
  manifest.run_id = run_id;
  manifest.spec_sha256 = std::string(64, '0');
  manifest.membership = 2;
  manifest.parallel = layout;
  RankSnapshot snapshot;
  snapshot.file.rank = rank;
  snapshot.file.file = rank_file_name(rank);
  snapshot.tensors.emplace("own", models::StoredTensor{"U8", {1}, {static_cast<std::byte>(rank)}});
  leave_rescue(folder, manifest, std::move(snapshot));
}

/// For each rank of the checkpoint, the old rank with its state.
std::vector<int> ranks_in(const CheckpointFolder& folder, std::uint64_t step) {
  std::vector<int> ranks;
  for (const RankFile& file : folder.manifest(step).ranks) {
    EXPECT_EQ(file.rank, static_cast<int>(ranks.size()));
    ranks.push_back(static_cast<int>(read_rank_file(folder.of_step(step), file).at("own").bytes.at(0)));
  }
  return ranks;
}

TEST(Rescue, HasTheReplicasThatAreWhole) {
  const TemporaryFolder path;
  const CheckpointFolder folder(path.path());
  EXPECT_EQ(complete_rescue(folder, kRun, 2), std::nullopt) << "nobody left anything";
  // Tensor 2 x data 3: rank = tensor + 2 data. Rank 3 is dead, so rank 2 is of no use.
  const Layout layout({.data = 3, .sequence = 1, .pipeline = 1, .tensor = 2});
  for (const int rank : {0, 1, 2, 4, 5}) leave(folder, layout, rank, 7);
  EXPECT_EQ(complete_rescue(folder, kRun, 2), 7U);
  const Manifest manifest = folder.manifest(7);
  EXPECT_EQ(manifest.parallel.text(), "tensor 2 x data 2");
  EXPECT_TRUE(manifest.is_rescue);
  EXPECT_FALSE(continues(manifest, manifest.parallel)) << "its links are those of a new epoch";
  EXPECT_EQ(manifest.membership, 2);
  EXPECT_THAT(ranks_in(folder, 7), ElementsAre(0, 1, 4, 5));
  EXPECT_FALSE(fs::exists(folder.rescue()));
}

TEST(Rescue, NumbersRanksByTheOrderOfTheLayout) {
  const TemporaryFolder path;
  const CheckpointFolder folder(path.path());
  // Data first: rank = data + 3 tensor. Replica 0 is not whole.
  Layout layout({.data = 3, .sequence = 1, .pipeline = 1, .tensor = 2});
  layout.order = {comm::ParallelDimension::kData, comm::ParallelDimension::kTensor, comm::ParallelDimension::kSequence,
                  comm::ParallelDimension::kPipeline};
  for (const int rank : {1, 2, 3, 4, 5}) leave(folder, layout, rank, 7);
  EXPECT_EQ(complete_rescue(folder, kRun, 2), 7U);
  EXPECT_THAT(ranks_in(folder, 7), ElementsAre(1, 2, 4, 5));
}

TEST(Rescue, IsOfTheLatestStepWithAWholeReplica) {
  const TemporaryFolder path;
  const CheckpointFolder folder(path.path());
  const Layout layout({.data = 3, .sequence = 1, .pipeline = 1, .tensor = 2});
  leave(folder, layout, 0, 8);  // got its part of the last sums, and its neighbour did not
  leave(folder, layout, 1, 7);
  leave(folder, layout, 2, 7);
  leave(folder, layout, 3, 7);
  EXPECT_EQ(complete_rescue(folder, kRun, 2), 7U);
  EXPECT_THAT(ranks_in(folder, 7), ElementsAre(2, 3));
}

TEST(Rescue, LeavesTheLastCheckpointWhereItIsNoBetter) {
  const Layout layout({.data = 2, .sequence = 1, .pipeline = 1, .tensor = 1});
  const auto completed = [&layout](const std::function<void(const CheckpointFolder&)>& before) {
    const TemporaryFolder path;
    const CheckpointFolder folder(path.path());
    leave(folder, layout, 1, 7);
    before(folder);
    const auto step = complete_rescue(folder, kRun, 2);
    EXPECT_FALSE(fs::exists(folder.rescue()));
    return step;
  };
  EXPECT_EQ(completed([](const CheckpointFolder&) {}), 7U);
  EXPECT_EQ(completed([&](const CheckpointFolder& folder) { leave(folder, layout, 0, 7); }), std::nullopt)
      << "all were told to end";
  EXPECT_EQ(completed([&](const CheckpointFolder& folder) {
              fs::resize_file(folder.rescue() + "/rank-00001.safetensors", 5);
            }),
            std::nullopt)
      << "damaged";
  EXPECT_EQ(completed([&](const CheckpointFolder& folder) { leave(folder, layout, 1, 7, std::string(16, 'b')); }),
            std::nullopt)
      << "another run's";
  EXPECT_EQ(completed([&](const CheckpointFolder& folder) {
              leave(folder, layout, 1, 9);
              ASSERT_EQ(complete_rescue(folder, kRun, 2), 9U);
              leave(folder, layout, 1, 7);
            }),
            std::nullopt)
      << "a complete one is later";
}

TEST(Rescue, StaysWhereItIsUntilTheCheckpointIsComplete) {
  const TemporaryFolder path;
  const CheckpointFolder folder(path.path());
  leave(folder, Layout({.data = 2, .sequence = 1, .pipeline = 1, .tensor = 1}), 1, 7);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  EXPECT_THROW((void)complete_rescue(folder, kRun, 2), ConfigError);  // its manifest cannot be written
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(complete_rescue(folder, kRun, 2), 7U);
  EXPECT_THAT(ranks_in(folder, 7), ElementsAre(1));
}

/// Replicas of one rank each, which may lose some of them.
RunConfig elastic(int data) {
  RunConfig config = tiny_config();
  config.parallel.tensor = 1;
  config.parallel.data = data;
  config.training.accumulation = 2;
  config.record.every_steps = 1;
  config.checkpoint.emplace().every_steps = 0;
  config.elastic = ElasticConfig{.min_data = 1, .max_data = 3};
  config.full_data = 3;
  return config;
}

struct Lines {
  std::map<std::uint64_t, std::string> text;  ///< text of each step, without the measured members
  TrainingOutcome outcome;
};

using Wrap = std::function<std::unique_ptr<comm::Communicator>(comm::Communicator& group)>;

/// A rank dies before rank 0 has written the line of that step: rank 0 at the line, unless one dies in a wrapped group.
Lines train_until_death(const RunConfig& config, const std::string& folder, std::uint64_t dies_at,
                        const Wrap& wrap = {}) {
  Lines lines;
  TrainingHooks hooks;
  hooks.on_line = [&](const MetricsLine& line) {
    if (line.step == dies_at) throw ConfigError("no space is left for a line");
    nlohmann::json text = to_json_line(line);
    for (const char* measured : {"seconds", "ranks", "replicas"}) text.erase(measured);
    EXPECT_TRUE(lines.text.insert({line.step, text.dump()}).second) << "line " << line.step << " is there twice";
  };
  hooks.checkpoints = CheckpointPlace{folder, "tiny", kRun, std::string(64, '0')};
  const auto run = [&] {
    comm::run_ranks(config.parallel.world_size(), std::chrono::seconds(30), [&](comm::Communicator& group) {
      const std::unique_ptr<comm::Communicator> wrapped = wrap ? wrap(group) : nullptr;
      TrainingOutcome outcome = train(config, tiny_corpus(), wrapped ? *wrapped : group, hooks);
      if (group.rank() == 0) lines.outcome = std::move(outcome);
    });
  };
  if (dies_at <= config.training.steps) {
    EXPECT_THROW(run(), ConfigError);
  } else {
    run();
  }
  return lines;
}

/// The two replicas go on after step 5 as if the third one had left by the spec.
void expect_steps_of_the_others(const Lines& first, const std::string& folder, RunConfig spec) {
  ASSERT_EQ(complete_rescue(CheckpointFolder(folder), kRun, 2), 5U);
  RunConfig two = spec;
  two.parallel.data = 2;
  Lines rest = train_until_death(two, folder, 100);
  EXPECT_THAT(rest.outcome.resumed_at, ElementsAre(5U));

  spec.elastic.reset();
  spec.checkpoint.reset();
  spec.failures.emplace().replicas = {{2, 6, {}, {}}};
  const TinyResult expected = train_locally(spec, tiny_corpus());
  Lines all = first;
  all.text.merge(rest.text);
  EXPECT_TRUE(rest.text.empty()) << "a line that the dead rank had written is there again";
  ASSERT_EQ(all.text.size(), expected.lines.size());
  for (const MetricsLine& line : expected.lines) {
    nlohmann::json text = to_json_line(line);
    for (const char* measured : {"seconds", "ranks", "replicas"}) text.erase(measured);
    EXPECT_EQ(all.text.at(line.step), text.dump()) << line.step;
  }
  EXPECT_EQ(rest.outcome.tokens, expected.outcome.tokens);
  EXPECT_EQ(rest.outcome.train_final_loss, expected.outcome.train_final_loss);
  EXPECT_EQ(rest.outcome.validation_best_loss, expected.outcome.validation_best_loss);
}

TEST(Rescue, TheOthersTakeTheStepsThatThereAre) {
  const TemporaryFolder folder;
  const Lines first = train_until_death(elastic(3), folder.path(), 5);
  expect_steps_of_the_others(first, folder.path(), elastic(3));
  EXPECT_EQ(CheckpointFolder(folder.path()).manifest(5).parallel.text(), "data 2");
}

/// Shows the messages of groups that are split off, too.
class Watched final : public comm::ObservedCommunicator {
 public:
  Watched(comm::Communicator& inner, const Observe& observe)
      : ObservedCommunicator(inner, observe), inner_(inner), observe_(observe) {}
  std::unique_ptr<comm::Communicator> split(int color, int key) override {
    std::unique_ptr<comm::Communicator> part = inner_.split(color, key);
    if (part == nullptr) return nullptr;
    auto watched = std::make_unique<Watched>(*part, observe_);
    watched->part_ = std::move(part);
    return watched;
  }

 private:
  comm::Communicator& inner_;
  Observe observe_;
  std::unique_ptr<comm::Communicator> part_;  ///< null: the whole group is another's
};

// The new values of the tied embedding are sent after the state of a rescue is kept.
TEST(Rescue, ADeathBeforeTheTiedEmbeddingIsSentLosesNoStep) {
  constexpr int kDiesIn = 5;
  RunConfig config = elastic(3);
  config.model.layers = 2;
  config.parallel.pipeline = 2;
  config.network.of(sim::TrafficClass::kEmbeddingGradient).emplace().gather.fill = comm::Fill::kOwn;
  for (const int culprit : {0, 1}) {
    SCOPED_TRACE(culprit == 0 ? "the first stage dies" : "the owner dies");
    std::barrier all_are_there(config.parallel.world_size());
    const Wrap dies = [&](comm::Communicator& group) {
      auto sent = std::make_shared<int>(0);
      const auto observe = [&all_are_there, sent, culprit, rank = group.rank()](const comm::Message& message,
                                                                                std::size_t /*input_bytes*/) {
        // The first ones are the starting weights.
        if (message.name != "wte.values" || (*sent)++ != kDiesIn) return;
        all_are_there.arrive_and_wait();
        if (rank == culprit) throw ConfigError("the test's fault");
      };
      return std::make_unique<Watched>(group, observe);
    };
    const TemporaryFolder folder;
    const Lines first = train_until_death(config, folder.path(), kDiesIn, dies);
    expect_steps_of_the_others(first, folder.path(), config);
    EXPECT_EQ(CheckpointFolder(folder.path()).manifest(kDiesIn).parallel.text(), "data 2 x pipeline 2");
  }
}

TEST(Rescue, LossesThatNobodyCountedAreSaid) {
  const TemporaryFolder folder;
  RunConfig three = elastic(3);
  RunConfig two = elastic(2);
  for (RunConfig* config : {&three, &two}) {
    lose(*config, sim::TrafficClass::kDpGradient, 0.05);
    config->checkpoint->every_steps = 4;
  }
  (void)train_until_death(three, folder.path(), 6);
  ASSERT_EQ(complete_rescue(CheckpointFolder(folder.path()), kRun, 2), 6U);
  const Lines rest = train_until_death(two, folder.path(), 100);
  const auto memberships = nlohmann::json::parse(rest.outcome.earlier_memberships);
  ASSERT_EQ(memberships.size(), 1U);
  EXPECT_EQ(memberships[0]["to_step"], 6);
  EXPECT_EQ(memberships[0]["counted_to_step"], 4);
  three.training.steps = 4;
  three.checkpoint->every_steps = 0;
  const TemporaryFolder other;
  const Lines counted = train_until_death(three, other.path(), 100);
  EXPECT_EQ(memberships[0]["classes"]["dp_gradient"]["packets"].get<std::uint64_t>(),
            counted.outcome.statistics.at(0).total().packets);
}

TEST(Rescue, ARunThatStartsFromItKeepsItsOwnLines) {
  const TemporaryFolder folder;
  (void)train_until_death(elastic(3), folder.path() + "/first", 5);
  ASSERT_EQ(complete_rescue(CheckpointFolder(folder.path() + "/first"), kRun, 2), 5U);
  RunConfig next = elastic(2);
  next.elastic.reset();
  next.sharding.zero = 1;
  next.checkpoint->every_steps = 3;
  next.checkpoint->writing = CheckpointConfig::Writing::kAtOnce;
  next.start = StartConfig{folder.path() + "/first/step-5/manifest.json", 5, 1};
  Lines lines = train_until_death(next, folder.path() + "/next", 8);
  Lines rest = train_until_death(next, folder.path() + "/next", 100);
  EXPECT_THAT(rest.outcome.resumed_at, ElementsAre(6U));
  lines.text.merge(rest.text);
  EXPECT_EQ(lines.text.begin()->first, 5U);
  EXPECT_EQ(lines.text.size(), 8U) << "steps 5 to 12";
}

TEST(Rescue, ShardedStateIsOnlyInCheckpoints) {
  const TemporaryFolder folder;
  RunConfig config = elastic(3);
  config.sharding.zero = 1;
  (void)train_until_death(config, folder.path(), 5);
  EXPECT_FALSE(fs::exists(CheckpointFolder(folder.path()).rescue()));
}

}  // namespace
}  // namespace droptest::experiments::rescue_test
