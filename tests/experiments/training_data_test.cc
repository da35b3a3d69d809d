// SPDX-License-Identifier: Apache-2.0
// The samples that ranks read from shards, and the treatment of samples that cannot be read.
#include "experiments/training/training_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/json/read_file.h"
#include "comm/run_ranks.h"
#include "experiments/checkpoint/state_bytes.h"
#include "experiments/data/corpus.h"
#include "experiments/data/read_ahead.h"
#include "experiments/files/crc32c.h"
#include "experiments/files/manifest.h"
#include "experiments/spec/run_config.h"
#include "models/kernels/cross_entropy.h"
#include "sim/error.h"
#include "tests/comm/temporary_folder.h"
#include "tests/experiments/sharded_runs.h"

namespace droptest::experiments::training_data_test {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// The samples that the replicas read, as their first tokens, which are unique.
struct Reading {
  std::vector<std::vector<int>> by_step;       ///< [step], in the order of the micro-batches of all replicas
  std::vector<std::vector<std::byte>> states;  ///< state of rank 0 after each step
  std::vector<std::uint64_t> sequences;
  DataRecord record;
  std::vector<LostShard> heard;
};

/// The share of that replica, with the config's absences.
ReplicaShare share_of(const RunConfig& config, int replica, std::uint64_t step) {
  const std::vector<int> absent =
      config.failures ? absent_replicas(config.failures->replicas, step) : std::vector<int>();
  ReplicaShare share{config.parallel.data - static_cast<int>(absent.size()), std::nullopt};
  if (std::ranges::count(absent, replica) != 0) return share;
  share.own = replica - static_cast<int>(std::ranges::count_if(absent, [=](int other) { return other < replica; }));
  return share;
}

/// Takes steps until the data ends, at most `most`, from a state on.
Reading read_all(const RunConfig& config, const Corpus& corpus, std::uint64_t most = 1000,
                 const std::vector<std::byte>& state = {}, std::uint64_t first_step = 1) {
  Reading reading;
  std::mutex mutex;
  std::map<std::pair<std::uint64_t, int>, std::vector<int>> by_micro_batch;  ///< step, number in the step
  comm::run_ranks(config.parallel.data, std::chrono::seconds(30), [&](comm::Communicator& group) {
    const auto data = make_training_data(
        config, corpus, group, [&](std::uint64_t step) { return share_of(config, group.rank(), step); },
        [&](const LostShard& lost) { reading.heard.push_back(lost); });
    if (!state.empty()) {
      StateRestorer restorer(state, "state");
      data->visit_state(restorer);
      restorer.finish();
    }
    for (std::uint64_t step = first_step; step < first_step + most && data->steps_left().value_or(1) > 0; ++step) {
      const StepData taken = data->take(step);
      const std::lock_guard lock(mutex);
      int number = group.rank();
      for (const Batch& batch : taken.micro_batches) {
        std::vector<int>& samples = by_micro_batch[{step, number}];
        number += config.parallel.data;
        for (int s = 0; s < batch.sequences; ++s) {
          const auto at = static_cast<std::size_t>(s * batch.length);
          if (batch.targets[at] == models::kIgnoredTarget) continue;
          EXPECT_EQ(batch.targets[at], batch.tokens[at] + 1);
          samples.push_back(batch.tokens[at]);
        }
      }
      if (group.rank() != 0) continue;
      reading.sequences.push_back(taken.sequences);
      StateSaver saver;
      data->visit_state(saver);
      reading.states.push_back(saver.take());
    }
    if (group.rank() == 0) reading.record = *data->record();
  });
  for (const auto& [place, samples] : by_micro_batch) {
    if (reading.by_step.size() < place.first) reading.by_step.resize(place.first);
    reading.by_step[place.first - 1].insert(reading.by_step[place.first - 1].end(), samples.begin(), samples.end());
  }
  return reading;
}

std::vector<int> all_of(const std::vector<std::vector<int>>& by_step) {
  std::vector<int> samples;
  for (const auto& step : by_step) samples.insert(samples.end(), step.begin(), step.end());
  std::sort(samples.begin(), samples.end());
  return samples;
}

/// The first tokens of all samples of write_three_shards().
std::vector<int> every_sample() {
  std::vector<int> samples;
  for (const auto& [first, count] : {std::pair(0, 10), std::pair(85, 5), std::pair(130, 3)}) {
    for (int i = 0; i < count; ++i) samples.push_back(first + 8 * i);
  }
  return samples;
}

class ShardedTraining : public ::testing::Test {
 protected:
  ShardedTraining() { write_three_shards(folder_.path()); }

  ResolvedRun run(const json& changes = json::object()) {
    json spec = sharded_spec(folder_.path());
    spec.merge_patch(changes);
    return resolved_with_files(spec);
  }

  Corpus corpus(const ResolvedRun& resolved) { return load_corpus(resolved.config, access_with(faults_)); }

  const TemporaryFolder folder_;
  Faults faults_;
};

TEST_F(ShardedTraining, AnEpochHasEachSampleOnceWhileReplicasLeaveAndComeBack) {
  const json absences = {{{"data_rank", 3}, {"from", 2}, {"until", 4}}, {{"data_rank", 1}, {"from", 3}, {"until", 5}}};
  const json layout = {{"parallel", {{"data", 4}}}, {"training", {{"batch_sequences", 1}, {"accumulation", 1}}}};
  json changes = layout;
  changes["failures"] = {{"replicas", absences}};
  const ResolvedRun four = run(changes);
  const Reading whole = read_all(four.config, corpus(four));
  EXPECT_EQ(all_of(whole.by_step), every_sample());
  EXPECT_THAT(whole.sequences, ElementsAre(4, 3, 2, 3, 4, 2));
  // This also holds if the run is interrupted.
  for (std::uint64_t k = 1; k < 6; ++k) {
    const Reading rest = read_all(four.config, corpus(four), 1000, whole.states[k - 1], k + 1);
    EXPECT_EQ(std::vector(rest.by_step.begin() + static_cast<std::ptrdiff_t>(k), rest.by_step.end()),
              std::vector(whole.by_step.begin() + static_cast<std::ptrdiff_t>(k), whole.by_step.end()));
  }
  // Other numbers of replicas, one after the other.
  Reading part = read_all(run(layout).config, corpus(run(layout)), 2);
  std::vector<int> samples = all_of(part.by_step);
  for (const auto& [data, steps] : {std::pair(3, 2), std::pair(4, 100)}) {
    json other = layout;
    other["parallel"]["data"] = data;
    const ResolvedRun with_other = run(other);
    part = read_all(with_other.config, corpus(with_other), static_cast<std::uint64_t>(steps), part.states.back());
    const std::vector<int> more = all_of(part.by_step);
    samples.insert(samples.end(), more.begin(), more.end());
  }
  std::sort(samples.begin(), samples.end());
  EXPECT_EQ(samples, every_sample());
}

TEST_F(ShardedTraining, AnEpochHasEachSampleOnceInEveryLayout) {
  const ResolvedRun one = run();
  EXPECT_EQ(one.config.training.steps, 5U);
  const Reading whole = read_all(one.config, corpus(one));
  EXPECT_EQ(all_of(whole.by_step), every_sample());
  EXPECT_THAT(whole.sequences, ElementsAre(4, 4, 4, 4, 2));
  EXPECT_EQ(whole.record.position, 18U);
  EXPECT_EQ(whole.record.lost_samples, 0U);
  for (const auto& [data, accumulation, batch] :
       {std::tuple(2, 2, 1), std::tuple(4, 1, 1), std::tuple(1, 1, 4), std::tuple(1, 2, 2), std::tuple(2, 1, 2)}) {
    const ResolvedRun other = run(
        {{"parallel", {{"data", data}}}, {"training", {{"accumulation", accumulation}, {"batch_sequences", batch}}}});
    EXPECT_EQ(read_all(other.config, corpus(other)).by_step, whole.by_step) << data << " " << accumulation;
  }
}

TEST_F(ShardedTraining, EpochsDifferAndDroppedBatchesAreLeftOut) {
  const ResolvedRun dropping = run({{"training", {{"epochs", 2}, {"drop_last", true}}}});
  EXPECT_EQ(dropping.config.training.steps, 8U);
  const Reading reading = read_all(dropping.config, corpus(dropping));
  ASSERT_EQ(reading.by_step.size(), 8U);
  const std::vector<int> samples = all_of({reading.by_step.begin(), reading.by_step.begin() + 4});
  EXPECT_EQ(std::set<int>(samples.begin(), samples.end()).size(), 16U);
  EXPECT_NE(reading.by_step[0], reading.by_step[4]);
}

TEST_F(ShardedTraining, AnEpochHasEachSampleOnceHoweverOftenItResumes) {
  std::mt19937 random(1);  // the choice of steps does not matter
  for (int trial = 0; trial < 20; ++trial) {
    const ResolvedRun whole = run({{"training", {{"epochs", 2}}}});
    const std::vector<std::vector<int>> expected = read_all(whole.config, corpus(whole)).by_step;
    std::vector<std::vector<int>> seen;
    std::vector<std::byte> state;
    while (seen.size() < expected.size()) {
      // Each part has its own layout.
      const int data = 1 << random() % 3;
      const ResolvedRun part =
          run({{"parallel", {{"data", data}}}, {"training", {{"epochs", 2}, {"accumulation", 4 / data}}}});
      const Reading reading = read_all(part.config, corpus(part), 1 + random() % 4, state);
      seen.insert(seen.end(), reading.by_step.begin(), reading.by_step.end());
      state = reading.states.back();
    }
    ASSERT_EQ(seen, expected);
  }
}

TEST_F(ShardedTraining, AnEpochHasEachSampleOnceWhenTheGlobalBatchChanges) {
  const ResolvedRun four = run();
  const Reading first = read_all(four.config, corpus(four), 2);
  const ResolvedRun three = run({{"training", {{"accumulation", 3}}}});
  const Reading second = read_all(three.config, corpus(three), 1000, first.states.back());
  EXPECT_EQ(second.by_step.size(), 4U);  // ceil(10 / 3)
  std::vector<std::vector<int>> both = first.by_step;
  both.insert(both.end(), second.by_step.begin(), second.by_step.end());
  EXPECT_EQ(all_of(both), every_sample());
}

TEST_F(ShardedTraining, AnErrorThatPassesIsRetriedWithLongerPauses) {
  faults_.failures_left["b.bin"] = 2;
  const ResolvedRun one = run();
  const Reading reading = read_all(one.config, corpus(one));
  EXPECT_EQ(all_of(reading.by_step), every_sample());
  EXPECT_THAT(faults_.pauses, ElementsAre(1, 2));
  EXPECT_TRUE(reading.record.lost_shards.empty());
}

TEST_F(ShardedTraining, AShardThatCannotBeReadEndsTheRunWithItsName) {
  faults_.broken = {{-1, "b.bin"}};
  const ResolvedRun one = run();
  const Corpus data = corpus(one);
  try {
    (void)read_all(one.config, data);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr(folder_.path() + "/b.bin: read at byte "));
    EXPECT_THAT(error.what(), HasSubstr(": made to fail; without it 5 of 18 samples are lost, more than "
                                        "/data/lost_limit allows"));
  }
}

TEST_F(ShardedTraining, AShardWithinTheLimitIsSetAsideOnAllRanks) {
  // Only rank 1 cannot read it.
  faults_.broken = {{1, "b.bin"}};
  const ResolvedRun two = run({{"parallel", {{"data", 2}}},
                               {"training", {{"accumulation", 2}, {"epochs", 3}}},
                               {"data", {{"lost_limit", 0.3}}}});
  const Reading reading = read_all(two.config, corpus(two));
  ASSERT_EQ(reading.record.lost_shards.size(), 1U);
  const LostShard& lost = reading.record.lost_shards[0];
  EXPECT_EQ(lost.file, folder_.path() + "/b.bin");
  EXPECT_EQ(lost.samples, 5U);
  EXPECT_EQ(reading.heard.size(), 1U);
  const auto of_b = [](int token) { return token >= 85 && token < 130; };
  std::map<int, int> seen;
  for (std::size_t step = 0; step < reading.by_step.size(); ++step) {
    for (const int token : reading.by_step[step]) {
      ++seen[token];
      EXPECT_TRUE(step + 1 < lost.step || !of_b(token)) << "from the step on in which one rank fails, no rank reads it";
    }
  }
  std::uint64_t of_shard = 0;
  for (const int token : every_sample()) {
    if (of_b(token)) {
      of_shard += static_cast<std::uint64_t>(seen[token]);
    } else {
      EXPECT_EQ(seen[token], 3) << token;
    }
  }
  EXPECT_EQ(reading.record.lost_samples, 15 - of_shard) << "lost and read ones are all of them";
  EXPECT_GT(reading.record.lost_samples, 0U);
  EXPECT_EQ(std::accumulate(reading.sequences.begin(), reading.sequences.end(), std::uint64_t{0}),
            54 - reading.record.lost_samples);
}

TEST_F(ShardedTraining, AShardThatFailedIsNotReadAgain) {
  faults_.broken = {{-1, "b.bin"}};
  const ResolvedRun one = run({{"data", {{"lost_limit", 0.5}}}, {"training", {{"epochs", 5}}}});
  (void)read_all(one.config, corpus(one));
  EXPECT_EQ(faults_.tried[folder_.path() + "/b.bin"], 3);
}

TEST_F(ShardedTraining, ALostShardStaysLostWhenTheRunResumes) {
  faults_.broken = {{-1, "a.bin"}};
  const ResolvedRun one = run({{"data", {{"lost_limit", 0.6}}}});
  const Reading whole = read_all(one.config, corpus(one));
  const Reading first = read_all(one.config, corpus(one), 3);
  faults_.broken.clear();
  const Reading second = read_all(one.config, corpus(one), 1000, first.states.back());
  std::vector<std::vector<int>> both = first.by_step;
  both.insert(both.end(), second.by_step.begin(), second.by_step.end());
  EXPECT_EQ(both, whole.by_step);
  EXPECT_EQ(second.record.lost_samples, 10U);
  EXPECT_TRUE(second.heard.empty()) << "it is no news";
}

TEST_F(ShardedTraining, AStateOfOtherDataIsLeftAside) {
  const ResolvedRun one = run();
  const Reading first = read_all(one.config, corpus(one), 2);
  const ResolvedRun other = run({{"seeds", {{"data", 77}}}});
  EXPECT_EQ(read_all(other.config, corpus(other), 1000, first.states.back()).by_step.size(), 5U);
}

TEST_F(ShardedTraining, AShardThatIsNotWhatTheManifestSaysIsSetAside) {
  json files = json::array();
  for (const auto& [name, bytes] :
       {std::pair("a.bin", 170), std::pair("b.bin", 90), std::pair("c.bin", 58), std::pair("v.val", 400)}) {
    const std::string content = comm::read_file(folder_.path() + "/" + name);
    files.push_back(
        {{"file", name}, {"bytes", bytes}, {"crc32c", crc_text(crc32c(std::as_bytes(std::span(content))))}});
  }
  files[1]["crc32c"] = "00000000";
  write_bytes(folder_.path() + "/shards.json", json{{"schema_version", 1}, {"files", files}}.dump());
  const ResolvedRun one = run({{"data", {{"manifest", folder_.path() + "/shards.json"}, {"lost_limit", 0.3}}}});
  const Corpus data = corpus(one);
  ASSERT_EQ(data.shards->damaged().size(), 1U);
  const Reading reading = read_all(one.config, data);
  ASSERT_EQ(reading.record.lost_shards.size(), 1U);
  EXPECT_EQ(reading.record.lost_shards[0].error, "its content has another CRC-32C than the manifest");
  EXPECT_EQ(reading.record.lost_shards[0].step, 1U);
  EXPECT_EQ(reading.record.lost_samples, 5U);
}

TEST_F(ShardedTraining, AFileThatIsCutWhileTheRunReadsItIsAnErrorOfTheFile) {
  const ResolvedRun one = run();
  const Corpus data = corpus(one);
  write_shard(folder_.path() + "/a.bin", 0, 3);
  try {
    (void)read_all(one.config, data);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("/a.bin: the file ends before byte "));
  }
}

TEST_F(ShardedTraining, AFileThatChangesWhileTheRunGoesOnIsSetAside) {
  const auto expect_lost = [&](const std::function<void()>& change) {
    const ResolvedRun one = run({{"data", {{"lost_limit", 0.3}}}});
    const Corpus data = corpus(one);
    change();
    const Reading reading = read_all(one.config, data);
    ASSERT_EQ(reading.record.lost_shards.size(), 1U);
    EXPECT_EQ(reading.record.lost_shards[0].file, folder_.path() + "/b.bin");
    EXPECT_EQ(reading.record.lost_shards[0].error,
              "changed since the run began: another program wrote into the file or replaced it");
  };
  const std::string path = folder_.path() + "/b.bin";
  // Other bytes of the same number, and another file with the same content in its place.
  expect_lost([&] {
    const auto before = std::filesystem::last_write_time(path);
    write_shard(path, 86, 45);
    std::filesystem::last_write_time(path, before + std::chrono::nanoseconds(1));
  });
  expect_lost([&] {
    const auto before = std::filesystem::last_write_time(path);
    write_shard(folder_.path() + "/other", 86, 45);
    std::filesystem::last_write_time(folder_.path() + "/other", before);
    std::filesystem::rename(folder_.path() + "/other", path);
  });
}

TEST_F(ShardedTraining, AFileThatHasChangedSinceItWasHashedIsSetAside) {
  const ResolvedRun one = run({{"data", {{"lost_limit", 0.3}}}});
  const std::string path = folder_.path() + "/b.bin";
  const auto lost = [&] {
    std::vector<std::string> shards;
    for (const LostShard& shard : read_all(one.config, corpus(one)).record.lost_shards) {
      shards.push_back(shard.file + ": " + shard.error);
    }
    return shards;
  };
  EXPECT_THAT(lost(), testing::IsEmpty());
  // The content is equal, but its time and its file differ: a run also continues with a copy of its data.
  std::filesystem::create_hard_link(path, folder_.path() + "/kept");  // no other file gets its inode
  const auto hashed = std::filesystem::last_write_time(path);
  std::filesystem::last_write_time(path, hashed + std::chrono::seconds(1));
  EXPECT_THAT(lost(), testing::IsEmpty());
  std::filesystem::copy_file(path, folder_.path() + "/copy");
  std::filesystem::rename(folder_.path() + "/copy", path);
  EXPECT_THAT(lost(), testing::IsEmpty());
  // The file has other bytes of the same number.
  const std::vector<std::string> changed = {path + ": its content has changed since the spec was resolved"};
  write_shard(path, 86, 45);
  std::filesystem::last_write_time(path, hashed + std::chrono::seconds(1));
  EXPECT_EQ(lost(), changed);
  write_shard(folder_.path() + "/other", 86, 45);
  std::filesystem::last_write_time(folder_.path() + "/other", hashed);
  std::filesystem::rename(folder_.path() + "/other", path);
  EXPECT_EQ(lost(), changed);
  // The times of files are no part of the run.
  write_shard(path, 85, 45);
  EXPECT_EQ(run({{"data", {{"lost_limit", 0.3}}}}).run_id, one.run_id);
}

TEST_F(ShardedTraining, APositionInOtherContentOfEqualSizeIsLeftAside) {
  const ResolvedRun one = run();
  const Reading first = read_all(one.config, corpus(one), 2);
  const ResolvedRun same = run();
  EXPECT_EQ(read_all(same.config, corpus(same), 1000, first.states.back()).by_step.size(), 3U);
  write_shard(folder_.path() + "/b.bin", 86, 45);
  const ResolvedRun other = run();
  EXPECT_NE(other.run_id, one.run_id);
  EXPECT_EQ(read_all(other.config, corpus(other), 1000, first.states.back()).by_step.size(), 5U);
}

TEST_F(ShardedTraining, ANameThatIsNotUtf8IsAnErrorOfTheSpec) {
  write_shard(folder_.path() + "/d\xff.bin", 0, 20);
  try {
    (void)run();
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("/data/shards: "));
    EXPECT_THAT(error.what(), HasSubstr("/d\uFFFD.bin: matches "));
    EXPECT_THAT(error.what(), HasSubstr("its name is not UTF-8"));
  }
}

TEST_F(ShardedTraining, AFolderThatCannotBeReadIsAnErrorOfTheSpec) {
  std::filesystem::create_symlink("loop", folder_.path() + "/loop");
  try {
    (void)run({{"data", {{"shards", {folder_.path() + "/*.bin", folder_.path() + "/loop/*.bin"}}}}});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("/loop/*.bin: the folders cannot be read"));
  }
}

TEST_F(ShardedTraining, ATokenThatTheModelDoesNotHaveEndsTheRun) {
  const ResolvedRun small = run({{"model", {{"vocabulary", 100}}}, {"data", {{"lost_limit", 1}}}});
  const Corpus data = corpus(small);
  try {
    (void)read_all(small.config, data);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("want tokens below the model's vocabulary of 100"));
  }
}

/// A reader that waited for its pause would take hours.
TEST_F(ShardedTraining, AReaderEndsWithoutWaitingForItsPause) {
  faults_.broken = {{-1, ".bin"}};
  const ResolvedRun slow =
      run({{"data", {{"retries", {{"backoff_seconds", 9000}}}}}, {"backend", {{"timeout_seconds", 100000}}}});
  FileAccess access = access_with(faults_);
  access.pause = nullptr;
  const auto data =
      std::make_shared<const ShardedData>(*slow.config.data.shards, slow.config.data.validation_fraction,
                                          slow.config.training.sequence_tokens, slow.config.model.vocabulary, access);
  ReadAhead reader(data, 0);
  reader.request({0, 1});
}

TEST_F(ShardedTraining, ValidationTokensAreThoseAfterTheTrainingTokens) {
  // 159 tokens in all: the last half are 79 or 80, of which the last of b.bin come first.
  const ResolvedRun one =
      run({{"data", {{"validation_shards", nullptr}, {"validation_fraction", 0.5}}}, {"validation", {{"tokens", 56}}}});
  const Corpus data = corpus(one);
  std::vector<std::int32_t> tokens(57);
  data.validation.read(0, tokens);
  EXPECT_EQ(tokens.front(), 79);
  EXPECT_EQ(tokens.back(), 79 + 56);
  EXPECT_EQ(data.shards->table().samples(), 9U);  // 79 tokens of a.bin train
  EXPECT_EQ(data.shards->table().samples_of(1), 0U);
}

// The shards begin with the tokens 85 and 130; none ends with an end of text.
TEST_F(ShardedTraining, ADocumentEndsWithItsShard) {
  constexpr std::int32_t kEndOfText = 100;
  const ResolvedRun one =
      run({{"data", {{"validation_shards", nullptr}, {"validation_fraction", 0.5}}}, {"validation", {{"tokens", 56}}}});
  const Corpus data = corpus(one);
  for (const int length : {8, 6, 19}) {  // 6: the second sequence begins with a shard
    const EvaluationBatches batches(data.validation, 56, 2, length);
    for (std::uint64_t b = 0; b < batches.batches(); ++b) {
      const Batch batch = batches.batch(b);
      std::vector<std::int32_t> want;
      for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
        const std::int32_t token = batch.tokens[i];
        if (i % static_cast<std::size_t>(batch.length) == 0) {
          want.push_back(0);
        } else {
          const bool begins = token == 85 || token == 130 || token == kEndOfText + 1;
          want.push_back(want.back() + (begins ? 1 : 0));
        }
      }
      EXPECT_EQ(documents_of(batch, kEndOfText), want) << "batch " << b << " of length " << length;
    }
  }
  // A part keeps its shards.
  EXPECT_THAT(data.validation.files_in(0, 57), ElementsAre(6, 51));
  EXPECT_THAT(data.validation.part(5, 52).files_in(0, 52), ElementsAre(1, 46));
  EXPECT_THAT(data.validation.part(5, 52).files_in(2, 44), ElementsAre());
}

TEST_F(ShardedTraining, ValidationNeedsItsTokens) {
  faults_.broken = {{-1, "v.val"}};
  const ResolvedRun one = run();
  EXPECT_THROW((void)corpus(one), ConfigError);
  const ResolvedRun more = run({{"validation", {{"tokens", 200}}}});
  try {
    (void)corpus(more);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("200 tokens of 1 shards, want at least 201"));
  }
}

TEST(ShardedText, IsCheckedAtItsPlaceInTheFile) {
  const TemporaryFolder folder;
  // Two-byte characters, which samples of 7 tokens cut; one of them is broken.
  std::string text;
  for (int i = 0; i < 60; ++i) text += "\xc3\xa4";
  write_bytes(folder.path() + "/good.txt", text);
  json spec = sharded_spec(folder.path());
  spec["data"] = {{"shards", folder.path() + "/*.txt"}, {"format", "text"}, {"validation_fraction", 0.4}};
  spec["training"]["sequence_tokens"] = 7;
  spec["validation"]["tokens"] = 7;
  const ResolvedRun good = resolved_with_files(spec);
  const Corpus corpus = load_corpus(good.config);
  std::vector<std::int32_t> tokens(8);
  const auto files = system_files(1);
  for (std::uint64_t sample = 0; sample < corpus.shards->table().samples(); ++sample) {
    EXPECT_EQ(corpus.shards->read(sample, tokens, *files, [](double) {}), std::nullopt);
    EXPECT_EQ(tokens[0], sample % 2 == 0 ? 0xc3 : 0xa4);
  }
  text[21] = 'x';
  write_bytes(folder.path() + "/good.txt", text);
  const Corpus damaged = load_corpus(good.config);
  try {
    (void)damaged.shards->read(2, tokens, *files, [](double) {});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("good.txt: not UTF-8 at byte 20"));
  }
}

}  // namespace
}  // namespace droptest::experiments::training_data_test
