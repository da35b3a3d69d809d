// SPDX-License-Identifier: Apache-2.0
// The files of checkpoints: damage, full disks, and other layouts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <boost/random/uniform_int_distribution.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/json/read_file.h"
#include "comm/parallel_layout.h"
#include "comm/run_ranks.h"
#include "experiments/checkpoint/checkpoint_folder.h"
#include "experiments/checkpoint/piece_filler.h"
#include "experiments/checkpoint/restore.h"
#include "experiments/run/attempt_series.h"
#include "experiments/spec/pipeline_plan.h"
#include "experiments/training/trainer.h"
#include "experiments/training/training_model.h"
#include "sim/random/philox.h"
#include "tests/comm/temporary_folder.h"
#include "tests/experiments/tiny_run.h"
#include "tests/sanitizers.h"

namespace droptest::experiments::checkpoint_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

RunConfig checkpointed(std::uint64_t every) {
  RunConfig config = tiny_config();
  config.checkpoint.emplace();
  config.checkpoint->every_steps = every;
  config.checkpoint->keep = 1000;
  config.checkpoint->writing = CheckpointConfig::Writing::kAtOnce;
  return config;
}

struct Trained {
  TrainingOutcome outcome;
  std::vector<double> losses;
  std::optional<std::uint64_t> resumed;
  std::vector<std::string> errors;
};

/// `on_line` is called after the line is recorded.
Trained train_in(
    const RunConfig& config, const std::string& folder,
    const std::function<void(const MetricsLine&)>& on_line = [](const MetricsLine&) {}) {
  Trained trained;
  TrainingHooks hooks;
  hooks.on_start = [&](std::optional<std::uint64_t> step) { trained.resumed = step; };
  hooks.on_line = [&](const MetricsLine& line) {
    trained.losses.push_back(line.train_loss.value_or(-1));
    on_line(line);
  };
  hooks.on_checkpoint_error = [&](std::uint64_t /*step*/, const std::string& error) {
    trained.errors.push_back(error);
  };
  hooks.checkpoints = CheckpointPlace{folder, "tiny", std::string(16, 'a'), std::string(64, '0')};
  comm::run_ranks(config.parallel.world_size(), std::chrono::seconds(30), [&](comm::Communicator& group) {
    TrainingOutcome outcome = train(config, tiny_corpus(), group, hooks);
    if (group.rank() == 0) trained.outcome = std::move(outcome);
  });
  return trained;
}

/// The error that a checkpoint's verification ends with; empty: it is intact.
std::string damage_of(const CheckpointFolder& folder, std::uint64_t step) {
  try {
    for (const RankFile& file : folder.manifest(step).ranks) verify_rank_file(folder.of_step(step), file);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(Checkpoint, AnyFlippedBitAndAnyTruncationIsNoticedAndNamed) {
  const TemporaryFolder folder;
  (void)train_in(checkpointed(12), folder.path());
  const CheckpointFolder checkpoints(folder.path());
  ASSERT_EQ(damage_of(checkpoints, 12), "");
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(checkpoints.of_step(12))) files.push_back(entry.path());
  ASSERT_EQ(files.size(), 3U);
  sim::PhiloxEngine engine(7, sim::Purpose::kStageFailure, 0);
  const auto draw = [&engine](std::uint64_t below) {
    return boost::random::uniform_int_distribution<std::uint64_t>(0, below - 1)(engine);
  };
  for (int i = 0; i < (kSanitized ? 100 : 1000); ++i) {
    const std::string& path = files[draw(files.size())];
    const std::string intact = comm::read_file(path);
    std::string damaged = intact;
    if (i % 4 == 0) {
      damaged.resize(draw(damaged.size()));
    } else {
      damaged[draw(damaged.size())] ^= static_cast<char>(1U << draw(8));
    }
    std::ofstream(path, std::ios::binary) << damaged;
    ASSERT_THAT(damage_of(checkpoints, 12), HasSubstr(path)) << i;
    std::ofstream(path, std::ios::binary) << intact;
  }
  EXPECT_EQ(damage_of(checkpoints, 12), "");
}

TEST(Checkpoint, TheOneBeforeADamagedOneIsUsed) {
  const TemporaryFolder folder;
  const RunConfig config = checkpointed(4);
  const Trained whole = train_in(config, folder.path());
  const CheckpointFolder checkpoints(folder.path());
  ASSERT_EQ(checkpoints.steps(), (std::vector<std::uint64_t>{4, 8, 12}));
  std::ofstream(checkpoints.of_step(12) + "/rank-00001.safetensors", std::ios::app) << "x";
  fs::resize_file(checkpoints.of_step(8) + "/manifest.json", 100);
  const Trained again = train_in(config, folder.path());
  EXPECT_EQ(again.resumed, 4U);
  ASSERT_EQ(again.errors.size(), 2U);
  EXPECT_THAT(again.errors[0], HasSubstr("step-12/rank-00001.safetensors"));
  EXPECT_THAT(again.errors[1], HasSubstr("step-8/manifest.json"));
  EXPECT_EQ(again.outcome.validation_final_loss, whole.outcome.validation_final_loss);
  // Written again, and those that could not be read are there for another try.
  EXPECT_EQ(checkpoints.steps(), (std::vector<std::uint64_t>{4, 8, 12}));
  EXPECT_TRUE(fs::exists(checkpoints.of_step(12) + ".damaged/rank-00001.safetensors"));
  EXPECT_TRUE(fs::exists(checkpoints.of_step(8) + ".damaged/manifest.json"));
  checkpoints.forget_after(0);
  EXPECT_TRUE(fs::is_empty(folder.path()) || fs::exists(folder.path() + "/LATEST"));
  EXPECT_FALSE(fs::exists(checkpoints.of_step(12) + ".damaged"));
}

TEST(Checkpoint, WithoutAnIntactOneTheRunIsRefused) {
  const TemporaryFolder folder;
  const RunConfig config = checkpointed(12);
  (void)train_in(config, folder.path());
  fs::resize_file(folder.path() + "/step-12/rank-00000.safetensors", 100);
  try {
    (void)train_in(config, folder.path());
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no checkpoint is intact"));
    EXPECT_THAT(error.what(), HasSubstr("step-12/rank-00000.safetensors"));
    EXPECT_THAT(error.what(), HasSubstr("--fresh"));
  }
}

TEST(Checkpoint, OneThatIsNotCompleteIsNeverRead) {
  const TemporaryFolder folder;
  const RunConfig config = checkpointed(6);
  (void)train_in(config, folder.path());
  const CheckpointFolder checkpoints(folder.path());
  fs::rename(checkpoints.of_step(12), checkpoints.unfinished(12));
  fs::create_directories(checkpoints.of_step(9));  // a folder without a manifest
  const Trained again = train_in(config, folder.path());
  EXPECT_EQ(again.resumed, 6U);
  EXPECT_THAT(again.errors, ::testing::IsEmpty());
  EXPECT_FALSE(fs::exists(checkpoints.unfinished(12)));
}

TEST(Checkpoint, OldOnesGoOnlyAfterTheNewOneIsComplete) {
  const TemporaryFolder folder;
  RunConfig config = checkpointed(2);
  config.checkpoint->keep = 2;
  (void)train_in(config, folder.path());
  EXPECT_EQ(CheckpointFolder(folder.path()).steps(), (std::vector<std::uint64_t>{10, 12}));
  EXPECT_EQ(comm::read_file(folder.path() + "/LATEST"), "step-12\n");
}

TEST(Checkpoint, AFullDiskLeavesTrainingAndTheOlderOneAsTheyAre) {
  const TemporaryFolder folder;
  const RunConfig config = checkpointed(3);
  const Trained whole = train_in(config, folder.path() + "/whole");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const Trained full = train_in(config, folder.path() + "/full", [&](const MetricsLine& line) {
    rlimit small = before;
    small.rlim_cur = 4096;
    if (line.step != 6) return;  // the limit holds from the checkpoint of step 6 on
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(full.losses, whole.losses);
  EXPECT_EQ(full.outcome.checkpoints.completed, 1U);
  EXPECT_EQ(full.outcome.checkpoints.failed, 3U);
  ASSERT_EQ(full.errors.size(), 3U);
  EXPECT_THAT(full.errors[0], HasSubstr("step-6.part"));
  const CheckpointFolder checkpoints(folder.path() + "/full");
  EXPECT_EQ(checkpoints.steps(), std::vector<std::uint64_t>{3});
  EXPECT_EQ(damage_of(checkpoints, 3), "");
}

TEST(Checkpoint, OneThatCannotBeWrittenEndsTheRunWhereTheSpecSaysSo) {
  const TemporaryFolder folder;
  RunConfig config = checkpointed(3);
  std::ofstream(folder.path() + "/checkpoints") << "a file";
  const Trained goes_on = train_in(config, folder.path() + "/checkpoints");
  EXPECT_EQ(goes_on.outcome.steps, 12U);
  EXPECT_EQ(goes_on.errors.size(), 4U);
  config.checkpoint->on_error = CheckpointConfig::OnError::kStop;
  EXPECT_THROW((void)train_in(config, folder.path() + "/checkpoints"), ConfigError);
}

TEST(Checkpoint, CommandsRunBeforeAndAfterIt) {
  const TemporaryFolder folder;
  RunConfig config = checkpointed(6);
  const std::string log = folder.path() + "/log";
  config.checkpoint->before = {"/bin/sh", "-c", "echo before $DROPTEST_STEP >> " + log};
  config.checkpoint->after = {"/bin/sh", "-c", "echo after $DROPTEST_STEP $(basename $DROPTEST_CHECKPOINT) >> " + log};
  const Trained trained = train_in(config, folder.path() + "/c");
  EXPECT_THAT(trained.errors, ::testing::IsEmpty());
  EXPECT_EQ(comm::read_file(log), "before 6\nafter 6 step-6\nbefore 12\nafter 12 step-12\n");
  config.checkpoint->before = {"/bin/sh", "-c", "exit 3"};
  const Trained failing = train_in(config, folder.path() + "/d");
  ASSERT_EQ(failing.errors.size(), 2U);
  EXPECT_THAT(failing.errors[0], HasSubstr("exit code 3"));
  EXPECT_EQ(failing.outcome.checkpoints.completed, 2U);
  config.checkpoint->before = {"/bin/sh", "-c", "echo said before $DROPTEST_STEP"};
  config.checkpoint->after = {};
  (void)train_in(config, folder.path() + "/e");
  EXPECT_EQ(comm::read_file(folder.path() + "/e/hook.log"), "said before 6\nsaid before 12\n");
}

TEST(Checkpoint, EqualReplicasAreStoredOnceAndOthersEach) {
  const TemporaryFolder folder;
  RunConfig config = checkpointed(12);
  config.parallel.tensor = 1;
  config.parallel.data = 2;
  (void)train_in(config, folder.path() + "/equal");
  const Manifest equal = CheckpointFolder(folder.path() + "/equal").manifest(12);
  EXPECT_EQ(equal.ranks[1].replica_of, 0);
  EXPECT_TRUE(equal.ranks[1].pieces.empty());
  lose(config, sim::TrafficClass::kDpGradient, 0.05);
  (void)train_in(config, folder.path() + "/apart");
  const Manifest apart = CheckpointFolder(folder.path() + "/apart").manifest(12);
  EXPECT_FALSE(apart.ranks[1].replica_of);
  EXPECT_EQ(apart.ranks[1].pieces.size(), apart.ranks[0].pieces.size());
}

TEST(Manifest, GoesThroughItsTextAndRefusesOthers) {
  const TemporaryFolder folder;
  (void)train_in(checkpointed(12), folder.path());
  const std::string text = comm::read_file(folder.path() + "/step-12/manifest.json");
  EXPECT_EQ(manifest_text(parse_manifest(text, "m")), text);
  for (const char* bad : {"", "{}", "[]", "null", "{\"crc32c\": 3}"})
    EXPECT_THROW((void)parse_manifest(bad, "m"), ConfigError);
}

// --- Other layouts

/// One rank's model in a layout, with the parameters and moments of a checkpoint.
class RankModel {
 public:
  RankModel(const RunConfig& config, comm::Communicator& world, std::size_t progress_bytes)
      : progress_(progress_bytes),
        groups_(config.parallel, world),
        alone_(groups_.group(comm::ParallelDimension::kTensor) == nullptr ? world.split(world.rank(), 0) : nullptr),
        tensor_(alone_ == nullptr ? *groups_.group(comm::ParallelDimension::kTensor) : *alone_),
        model_(config, tensor_, ranks_of(config, world)) {}

  TrainingState state() {
    return {model_.ops(), model_.tensors(), [this](models::StateVisitor& visitor) { model_.visit_state(visitor); },
            [](sim::StateVisitor&) {}, [this](sim::StateVisitor& visitor) { visitor.bytes(progress_); }};
  }

 private:
  models::ModelRanks ranks_of(const RunConfig& config, comm::Communicator& world) {
    models::ModelRanks ranks;
    ranks.data = {groups_.group(comm::ParallelDimension::kData), config.sharding};
    ranks.all = &world;
    ranks.data_stride = config.parallel.stride(comm::ParallelDimension::kData);
    ranks.pipeline.group = groups_.group(comm::ParallelDimension::kPipeline);
    ranks.pipeline.stride = config.parallel.stride(comm::ParallelDimension::kPipeline);
    ranks.pipeline.plan = pipeline_plan(config);
    return ranks;
  }

  std::vector<std::byte> progress_;
  comm::ParallelGroups groups_;
  std::unique_ptr<comm::Communicator> alone_;
  comm::Communicator& tensor_;
  TrainingModel model_;
};

struct Layout {
  int data = 1;
  int tensor = 1;
  int pipeline = 1;
  int zero = 0;
};

RunConfig in_layout(const Layout& layout) {
  RunConfig config = checkpointed(4);
  config.model = {.layers = 4, .width = 32, .heads = 4, .context = 16, .vocabulary = 64};
  config.training.steps = 4;
  config.training.batch_sequences = 1;
  config.training.accumulation = 4;
  config.sharding.micro_batches = 4;
  config.parallel = comm::ParallelLayout({layout.data, 1, layout.pipeline, layout.tensor});
  config.sharding.zero = layout.zero;
  config.sharding.bucket_bytes = 8192;
  return config;
}

using Stored = std::map<std::pair<std::string, std::string>, std::vector<std::byte>>;

/// Each tensor of the model, whole, of all fields.
Stored whole_tensors(const std::string& folder, const Manifest& manifest) {
  PieceFiller filler;
  std::map<std::pair<std::string, std::string>, bool> wanted;
  for (const RankFile& file : manifest.ranks) {
    for (const StoredPiece& piece : file.pieces) {
      if (std::exchange(wanted[{piece.field, piece.tensor}], true)) continue;
      const auto whole = models::TensorSlice::whole(piece.slice.full_shape);
      filler.want(WantedPiece(piece.tensor, piece.field, "F32", 4, whole, 0, whole.full_elems()));
    }
  }
  for (const RankFile& file : manifest.ranks) filler.take(folder, file, read_rank_file(folder, file));
  Stored stored;
  for (const auto& [name, pieces] : filler.pieces()) {
    EXPECT_EQ(pieces.front().lacking, 0U) << name.second;
    stored[name] = pieces.front().bytes;
  }
  EXPECT_EQ(filler.difference().tensors, 0U);
  return stored;
}

/// Cuts a checkpoint for another layout and stores it from there.
Manifest recut(const std::string& from, const Manifest& manifest, const Layout& layout, const std::string& to) {
  const RunConfig config = in_layout(layout);
  Manifest result = manifest;
  result.parallel = config.parallel;
  result.ranks.resize(static_cast<std::size_t>(config.parallel.world_size()));
  fs::create_directories(to);
  const std::size_t progress = read_rank_file(from, manifest.ranks.front()).at(kProgressKey).bytes.size();
  comm::run_ranks(config.parallel.world_size(), std::chrono::seconds(30), [&](comm::Communicator& world) {
    RankModel model(config, world, progress);
    const TrainingState state = model.state();
    RestoredState::recut(from, manifest, state).put(state);
    RankSnapshot snapshot = take_snapshot(state, world.rank(), std::nullopt);
    write_rank_file(to, snapshot.tensors, snapshot.file);
    result.ranks[static_cast<std::size_t>(world.rank())] = snapshot.file;
  });
  return result;
}

void expect_round_trip(const std::vector<Layout>& layouts) {
  const TemporaryFolder folder;
  const Trained trained = train_in(in_layout(layouts.front()), folder.path());
  ASSERT_EQ(trained.outcome.checkpoints.completed, 1U);
  std::string at = folder.path() + "/step-4";
  Manifest manifest = CheckpointFolder(folder.path()).manifest(4);
  const Stored first = whole_tensors(at, manifest);
  ASSERT_EQ(first.size(), 3 * (2 + 4 * 12 + 2U));
  for (std::size_t i = 1; i < layouts.size(); ++i) {
    const std::string next = folder.path() + "/cut-" + std::to_string(i);
    manifest = recut(at, manifest, layouts[i], next);
    at = next;
    EXPECT_EQ(whole_tensors(at, manifest), first) << "layout " << i;
    EXPECT_EQ(manifest.ranks.back().numbers.at("steps"), 4U);
  }
}

TEST(Recut, TensorParallelFourToTwoToFour) { expect_round_trip({{.tensor = 4}, {.tensor = 2}, {.tensor = 4}}); }
TEST(Recut, ZeroThreeToOneToThree) {
  expect_round_trip({{.data = 2, .zero = 3}, {.data = 2, .zero = 1}, {.data = 2, .zero = 3}});
}
TEST(Recut, DataParallelFourToThreeToFour) {
  expect_round_trip({{.data = 4, .zero = 1}, {.data = 3, .zero = 2}, {.data = 4, .zero = 1}});
}
TEST(Recut, PipelineFourToTwo) { expect_round_trip({{.pipeline = 4}, {.pipeline = 2}, {.pipeline = 4}}); }
TEST(Recut, AllDimensionsToOneRankAndBack) {
  expect_round_trip({{.data = 2, .tensor = 2, .pipeline = 2, .zero = 1}, {}, {.data = 2, .tensor = 2, .zero = 3}});
}

TEST(Recut, WeightsOfAnyLayoutAreThoseOfTheModel) {
  const TemporaryFolder folder;
  RunConfig config = in_layout({.data = 2, .tensor = 2, .pipeline = 2, .zero = 3});
  config.sharding.zero = 1;
  config.record.weights = RecordConfig::Weights::kFinal;
  const Trained trained = train_in(config, folder.path());
  const models::StoredTensors weights =
      weights_of_checkpoint(folder.path() + "/step-4", CheckpointFolder(folder.path()).manifest(4)).tensors;
  ASSERT_EQ(weights.size(), trained.outcome.weights.size());
  for (const auto& [name, tensor] : trained.outcome.weights) {
    EXPECT_EQ(weights.at(name).bytes, tensor.bytes) << name;
    EXPECT_EQ(weights.at(name).shape, tensor.shape) << name;
  }
}

TEST(Recut, ARunOfAnotherLayoutGoesOnWhereTheFirstOneWas) {
  const TemporaryFolder folder;
  const RunConfig first = in_layout({.tensor = 2, .pipeline = 2});
  (void)train_in(first, folder.path() + "/first");
  for (const Layout& layout : {Layout{.tensor = 2, .pipeline = 2}, Layout{.data = 2, .tensor = 1, .zero = 1}}) {
    RunConfig next = in_layout(layout);
    next.training.accumulation = 4 / layout.data;
    next.sharding.micro_batches = next.training.accumulation;
    next.training.steps = 8;
    next.training.learning_rate.total_steps = first.training.learning_rate.total_steps;
    next.start = StartConfig{folder.path() + "/first/step-4/manifest.json", 4, 1};
    RunConfig whole = first;
    whole.training.steps = 8;
    const Trained expected = train_in(whole, folder.path() + "/whole" + std::to_string(layout.data));
    const Trained continued = train_in(next, folder.path() + "/next" + std::to_string(layout.data));
    ASSERT_TRUE(continued.outcome.started_from);
    EXPECT_EQ(continued.outcome.started_from->step, 4U);
    EXPECT_EQ(continued.outcome.started_from->copies_tensors, 0U);
    EXPECT_EQ(continued.outcome.steps, 8U);
    EXPECT_EQ(continued.outcome.tokens, expected.outcome.tokens);
    EXPECT_NEAR(*continued.outcome.validation_final_loss, *expected.outcome.validation_final_loss, 1e-5);
  }
}

TEST(PieceFiller, DifferencesOfCopiesAreOfTheirType) {
  const auto difference_of = [](const std::string& type, const auto& one, const auto& other) {
    PieceFiller filler;
    const models::TensorSlice whole = models::TensorSlice::whole({1});
    filler.want({"t", "values", type, sizeof(one), whole, 0, 1});
    for (const auto* value : {&one, &other}) {
      const auto bytes = std::as_bytes(std::span(value, 1));
      RankFile file;
      file.pieces = {{"t", "values", "key", whole, 0, 1}};
      filler.take("folder", file, {{"key", {type, {1}, {bytes.begin(), bytes.end()}}}});
    }
    return filler.difference().max;
  };
  EXPECT_EQ(difference_of("F16", std::uint16_t{0x3c00}, std::uint16_t{0x3e00}), 0.5) << "1 and 1.5";
  EXPECT_EQ(difference_of("BF16", std::uint16_t{0x3f80}, std::uint16_t{0x3fc0}), 0.5);
  EXPECT_EQ(difference_of("F32", 1.0F, 1.5F), 0.5);
  EXPECT_EQ(difference_of("F64", 1.0, 1.5), 0.5);
}

TEST(Elastic, AShellOfSrunIsToldWhatToUnset) {
  RunConfig config = tiny_config();
  config.parallel.tensor = 2;
  const auto refusal = [&](int ranks, const std::string& launcher) -> std::string {
    try {
      (void)replicas_of_launch(config, ranks, launcher);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  const std::string advice = "in a shell that srun --pty opened, unset SLURM_STEP_ID first";
  EXPECT_THAT(refusal(1, "Slurm"), HasSubstr("Slurm started 1 processes; start one for each rank; " + advice));
  EXPECT_THAT(refusal(3, "Slurm"), testing::Not(HasSubstr(advice)));
  EXPECT_THAT(refusal(1, "torchrun"), testing::Not(HasSubstr(advice)));
}

}  // namespace
}  // namespace droptest::experiments::checkpoint_test
