// SPDX-License-Identifier: Apache-2.0
// Records that grow, begin anew and end, as the watching side sees them, and their event files.
#include "experiments/watch/watched_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "comm/json/read_file.h"
#include "experiments/files/file_lock.h"
#include "experiments/records/provenance.h"
#include "experiments/records/run_holder.h"
#include "experiments/watch/event_file.h"
#include "experiments/watch/open_metrics.h"
#include "experiments/watch/tensorboard.h"
#include "sim/error.h"
#include "tests/comm/temporary_folder.h"
#include "tests/experiments/resolved_spec.h"

namespace droptest::experiments::watched_runs_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;
using State = WatchedRun::State;

class Watched : public ::testing::Test {
 protected:
  Watched() { fs::create_directories(run_.path); }
  static void write(const std::string& path, const std::string& text, std::ios::openmode mode = std::ios::trunc) {
    std::ofstream(path, mode) << text;
  }
  static std::string line(std::uint64_t step, const std::string& more = "") {
    return "{\"step\":" + std::to_string(step) + ",\"tokens\":" + std::to_string(100 * step) +
           ",\"seconds\":" + std::to_string(step) + more + "}\n";
  }
  /// Another file under that name, as a run that continues from a checkpoint writes it.
  void replace_metrics(const std::string& text) const {
    write(run_.path + "/new", text);
    fs::rename(run_.path + "/new", run_.metrics());
  }
  void complete() const {
    RunSummary summary;
    summary.steps = 4;
    summary.provenance = build_provenance();
    summary.provenance.started = summary.provenance.finished = "2026-01-31T12:00:00Z";
    write_summary_record(run_, summary_json(resolved(kTwoRanks), summary));
  }
  std::vector<fs::path> event_files() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(events_)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    return files;
  }

  TemporaryFolder folder_;
  const std::string experiment_ = folder_.path() + "/results/tiny";
  const RunDirectory run_{experiment_ + "/0123456789abcdef"};
  const std::string events_ = folder_.path() + "/events";
};

TEST_F(Watched, LinesAppearAndATornOneWaitsForItsEnd) {
  write(run_.spec(), "{}");
  WatchedRuns runs(experiment_);
  ASSERT_EQ(runs.runs().size(), 1U);
  const WatchedRun& run = *runs.runs().front();
  EXPECT_EQ(run.state(), State::kWaiting);
  std::optional<FileLock> lock = FileLock::try_take(run_.lock(), FileLock::Mode::kExclusive);
  write(run_.metrics(), line(0) + line(2, ",\"train_loss\":3.5") + "{\"step\":4");
  runs.update();
  EXPECT_EQ(run.state(), State::kRunning);
  EXPECT_EQ(run.step(), 2U);
  write(run_.metrics(), ",\"tokens\":600,\"seconds\":4}\n", std::ios::app);
  runs.update();
  EXPECT_EQ(run.step(), 4U);
  EXPECT_EQ(run.last("train_loss"), 3.5);
  EXPECT_DOUBLE_EQ(*run.tokens_per_second(), 400.0 / 2);
  lock.reset();
  runs.update();
  EXPECT_EQ(run.state(), State::kStopped);
}

TEST_F(Watched, ALockIsAskedWhetherARunGoesOn) {
  write(run_.spec(), "{}");
  write(run_.metrics(), line(0) + line(2));
  WatchedRuns runs(run_.path);
  const WatchedRun& run = *runs.runs().front();
  std::array<char, 256> host{};
  ASSERT_EQ(::gethostname(host.data(), host.size() - 1), 0);
  // The lock of a process that was killed.
  write(run_.lock(), std::string("process 1 on host ") + host.data() + "\n");
  runs.update();
  EXPECT_EQ(run.state(), State::kStopped);
  EXPECT_FALSE(holder_of(run_).has_value());
  {
    const std::optional<FileLock> lock = FileLock::try_take(run_.lock(), FileLock::Mode::kExclusive);
    runs.update();
    EXPECT_EQ(run.state(), State::kRunning);
    EXPECT_FALSE(holder_of(run_)->silent_seconds.has_value());
    EXPECT_EQ(holder_of(run_)->text(), "process " + std::to_string(::getpid()) + " on host " + host.data());
  }
  // The lock of another machine, which does not show here: the age of the run's last line decides.
  write(run_.lock(), "process 4711 on host node3\n");
  runs.update();
  EXPECT_EQ(run.state(), State::kRunning);
  EXPECT_THAT(holder_of(run_)->text(), testing::StartsWith("process 4711 on host node3, which wrote its last line "));
  const auto past = fs::file_time_type::clock::now() - std::chrono::minutes(25);
  fs::last_write_time(run_.lock(), past);
  runs.update();
  EXPECT_EQ(run.state(), State::kRunning) << "metrics.jsonl is new";
  fs::last_write_time(run_.metrics(), past);
  runs.update();
  EXPECT_EQ(run.state(), State::kStopped);
  EXPECT_EQ(holder_of(run_)->text(), "process 4711 on host node3, which wrote its last line 25 min ago");
}

TEST_F(Watched, AFileOfAnotherNameIsForgottenBeforeItsLinesAreTaken) {
  write(run_.spec(), "{}");
  write(run_.metrics(), line(0, ",\"gradient_norm\":7") + line(2));
  WatchedRuns runs(run_.path);
  const WatchedRun& run = *runs.runs().front();
  EXPECT_EQ(run.last("gradient_norm"), 7);
  write(run_.metrics(), "");
  runs.update();
  EXPECT_FALSE(run.has_lines()) << "a new file without lines";
  write(run_.metrics(), line(1) + line(3));
  runs.update();
  EXPECT_EQ(run.step(), 3U);
  EXPECT_EQ(run.last("gradient_norm"), json());
}

TEST_F(Watched, ARunHasTheNamesOfItsSweep) {
  write(run_.spec(), "{}");
  const json names = {{{"pointer", "/network/reduce/loss"}, {"name", "reduce/loss"}},
                      {{"pointer", "/network/gather/loss"}, {"name", "gather/loss"}}};
  const json point = {{"/network/reduce/loss", {{"model", "none"}}}, {"/network/gather/loss", {{"model", "none"}}}};
  json sweep = {
      {"schema_version", 1},
      {"name", "tiny"},
      {"description", ""},
      {"spec", {{"name", "tiny"}, {"data", {{"text", "a"}}}}},
      {"runs",
       {{{"run_id", "0123456789abcdef"}, {"point", point}, {"seeds", {{"weights", 1}, {"data", 1}, {"network", 1}}}}}}};
  const auto title = [this] { return WatchedRuns(experiment_).runs().front()->title(); };
  write(experiment_ + "/sweep.json", sweep.dump());
  EXPECT_EQ(title(), "gather/loss: none, reduce/loss: none") << "of a record without names";
  sweep["names"] = names;
  write(experiment_ + "/sweep.json", sweep.dump());
  EXPECT_EQ(title(), "reduce/loss: none, gather/loss: none");
  EXPECT_EQ(WatchedRuns(run_.path).runs().front()->title(), title()) << "watched by itself";
}

TEST_F(Watched, RunThatBeginsAnewHasItsNewLinesAlone) {
  write(run_.spec(), "{}");
  write(run_.metrics(), line(0) + line(2) + line(4));
  WatchedRuns runs(run_.path);
  const WatchedRun& run = *runs.runs().front();
  EXPECT_EQ(run.step(), 4U);
  EXPECT_EQ(run.tokens_per_second(), 100);
  replace_metrics(line(0) + line(1));
  runs.update();
  EXPECT_EQ(run.step(), 1U);
  // The same file becomes shorter: a run without checkpoints writes it anew.
  write(run_.metrics(), line(0, ",\"train_loss\":3"));
  runs.update();
  EXPECT_EQ(run.step(), 0U);
  EXPECT_EQ(run.tokens_per_second(), std::nullopt);
  // The same file with more content: the inode number of a removed file is given to the next one.
  write(run_.metrics(), line(0) + line(2) + line(3) + line(5));
  runs.update();
  EXPECT_EQ(run.step(), 5U);
  EXPECT_EQ(run.last("train_loss"), json()) << "of the attempt before";
}

TEST_F(Watched, LinesThatAreNewAreNotThoseOfAnEarlierFileOfTheSameInode) {
  const std::string path = run_.metrics();
  MetricsTail tail(path);
  const auto new_lines = [&tail] {
    std::size_t lines = 0;
    tail.update([&lines](const NumberedLine&) { ++lines; });
    return lines;
  };
  write(path, line(0) + line(2) + line(4));
  EXPECT_EQ(new_lines(), 3U);
  write(path, line(6), std::ios::app);
  EXPECT_EQ(new_lines(), 1U);
  EXPECT_EQ(tail.files(), 1U);
  write(path, line(0) + line(2) + line(5) + line(7) + line(9));  // longer, with the same first line
  EXPECT_EQ(new_lines(), 5U);
  EXPECT_EQ(tail.files(), 2U);
  EXPECT_EQ(new_lines(), 0U);
}

TEST_F(Watched, AFileThatIsNoRecordIsNamedUntilAnotherTakesItsPlace) {
  write(run_.spec(), "{}");
  write(run_.metrics(), line(0) + "{\"step\":\n" + line(4));
  write(run_.events(), "{\"step\": -1}\n");
  write(run_.summary(), "{\"schema_version\": 2}");
  WatchedRuns runs(run_.path);
  const WatchedRun& run = *runs.runs().front();
  EXPECT_EQ(run.step(), 4U);
  EXPECT_EQ(run.state(), State::kStopped);
  EXPECT_THAT(run.unreadable(), testing::Contains(run_.metrics() + ": line 2: no JSON object"));
  EXPECT_THAT(run.unreadable(), testing::Contains(StartsWith(run_.events() + ": line 1: /")));
  EXPECT_THAT(run.unreadable(), testing::Contains(StartsWith(run_.summary() + ": /")));
  runs.update();
  EXPECT_THAT(run.unreadable(), testing::Contains(StartsWith(run_.metrics()))) << "it is still there";
  replace_metrics(line(0) + line(1));
  fs::remove(run_.summary());
  runs.update();
  EXPECT_THAT(run.unreadable(), testing::Not(testing::Contains(StartsWith(run_.metrics()))));
  EXPECT_THAT(run.unreadable(), testing::Not(testing::Contains(StartsWith(run_.summary()))));
}

TEST_F(Watched, AListThatIsNoRecordIsNamedUntilItIsMended) {
  const std::string path = experiment_ + "/sweep.json";
  write(run_.spec(), "{}");
  write(path, "{\"runs\": 3}");
  WatchedRuns runs(experiment_);
  EXPECT_EQ(runs.runs().size(), 1U);
  EXPECT_THAT(runs.unreadable(), testing::Contains(StartsWith(path + ": /")));
  fs::remove(path);
  runs.update();
  EXPECT_THAT(runs.unreadable(), testing::Not(testing::Contains(StartsWith(path))));
  // A file that becomes readable without being written, such as one on a network file system.
  write(path, "{\"runs\": 3}");
  const auto written = fs::last_write_time(path);
  runs.update();
  EXPECT_THAT(runs.unreadable(), testing::Contains(StartsWith(path)));
  write(path, "not JSON");
  fs::last_write_time(path, written);
  runs.update();
  EXPECT_THAT(runs.unreadable(), testing::Contains(testing::HasSubstr("not JSON")));
}

/// If a run has ended, lines in the middle are not parsed.
TEST_F(Watched, ARunThatHasEndedShowsTheLastValueOfEachMember) {
  write(run_.spec(), "{}");
  write(run_.metrics(), line(0, R"(,"validation_loss":5.5)") + line(1, R"(,"train_loss":5.0,"gradient_norm":2.5)") +
                            "{\"step\": no value}\n" + line(2, R"(,"train_loss":4.0)") + line(3) + line(4));
  complete();
  const WatchedRuns runs(experiment_);
  const WatchedRun& run = *runs.runs().front();
  ASSERT_EQ(run.state(), State::kCompleted) << json(runs.unreadable()).dump();
  EXPECT_EQ(run.step(), 4U);
  EXPECT_EQ(run.last("validation_loss"), 5.5);
  EXPECT_EQ(run.last("train_loss"), 4.0);
  EXPECT_EQ(run.last("gradient_norm"), 2.5);
}

TEST_F(Watched, ALineThatIsNoObjectIsNamedInARunThatHasEnded) {
  write(run_.spec(), "{}");
  write(run_.metrics(), line(0) + line(1) + "\"tokens\":1}\n" + line(2) + line(3) + line(4));
  complete();
  const WatchedRuns runs(experiment_);
  EXPECT_THAT(runs.unreadable(), testing::Contains(run_.metrics() + ": line 3: no JSON object"));
  EXPECT_EQ(runs.runs().front()->step(), 4U);
}

TEST_F(Watched, MemoryDoesNotGrowWithTheLines) {
  write(run_.spec(), "{}");
  const std::string more = R"(,"ranks":[{"resident_bytes":1,"cpu_seconds":1,"cpu_percent":1}])";
  write(run_.metrics(), line(0, more));
  WatchedRuns runs(experiment_);
  TensorBoardFolder tensorboard(events_);
  tensorboard.update(runs);
  const auto used = [] { return ::mallinfo2().uordblks; };
  const std::size_t before = used();
  constexpr int kLines = 4000;
  for (int piece = 0; piece < 4; ++piece) {
    std::string text;
    for (int i = 1; i <= kLines / 4; ++i) text += line(static_cast<std::uint64_t>(piece * kLines / 4 + i), more);
    write(run_.metrics(), text, std::ios::app);
    runs.update();
    tensorboard.update(runs);
  }
  EXPECT_EQ(runs.runs().front()->step(), static_cast<std::uint64_t>(kLines));
  EXPECT_LT(used(), before + 100'000);  // 25 bytes for each line
}

TEST_F(Watched, NamesThatAreNotUtf8AreShownWithoutTheirBytes) {
  const std::string folder = folder_.path() + "/results/a\xff" + "b/run\xfe";
  fs::create_directories(folder);
  write(folder + "/spec.json", "{}");
  write(folder + "/metrics.jsonl", line(0));
  WatchedRuns runs(folder_.path() + "/results");
  const std::string text = open_metrics_text(runs);
  EXPECT_THAT(text, HasSubstr("experiment=\"a\uFFFDb\",run=\"run\uFFFD\""));
  TensorBoardFolder tensorboard(events_);
  tensorboard.update(runs);
  ASSERT_EQ(event_files().size(), 1U);
  EXPECT_THAT(comm::read_file(event_files().front()), HasSubstr("a\uFFFDb: "));
}

TEST_F(Watched, EventFilesGrowAtTheirEndAndAreReplacedWhereARunBeginsAnew) {
  write(run_.spec(), "{}");
  write(run_.metrics(), line(0) + line(2));
  WatchedRuns runs(experiment_);
  TensorBoardFolder tensorboard(events_);
  tensorboard.update(runs);
  ASSERT_EQ(event_files().size(), 1U);
  const fs::path first = event_files().front();
  EXPECT_THAT(first.string(), EndsWith("/seed -/events.out.tfevents.0000000001.droptest"));
  const std::string before = comm::read_file(first);
  tensorboard.update(runs);
  EXPECT_EQ(comm::read_file(first), before) << "nothing is new";
  write(run_.metrics(), line(4, ",\"train_loss\":null"), std::ios::app);
  runs.update();
  tensorboard.update(runs);
  const std::string after = comm::read_file(first);
  EXPECT_THAT(after, StartsWith(before));
  SummaryEvent expected(0, 4);
  expected.add_scalar("train_loss", std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(after.substr(before.size()), HasSubstr(expected.data().substr(13))) << "null is not a number";
  replace_metrics(line(0));
  runs.update();
  tensorboard.update(runs);
  ASSERT_EQ(event_files().size(), 1U);
  EXPECT_THAT(event_files().front().string(), EndsWith("0000000002.droptest"));
  EXPECT_LT(fs::file_size(event_files().front()), before.size());
}

TEST_F(Watched, FoldersHaveNamesThatFileSystemsTake) {
  const auto run_of = [](const std::string& id, const json& point, const char* label) {
    json run = {
        {"run_id", id}, {"point", point}, {"seeds", {{"weights", 1}, {"data", 1}, {"network", 1}}}, {"seed", 1}};
    if (label != nullptr) run["labels"] = json::array({{{"label", label}, {"pointers", {"/x"}}}});
    return run;
  };
  const std::string ids[] = {"00000000000000aa", "00000000000000bb", "00000000000000cc", "00000000000000dd"};
  const json runs = {run_of(ids[0], {{"/x", 1}}, "a/b\n"), run_of(ids[1], {{"/x", 2}}, "a/b\n"),
                     run_of(ids[2], {{"/x", 3}}, ".."), run_of(ids[3], {{"/x", std::string(300, 'x')}}, nullptr)};
  write(experiment_ + "/sweep.json", json({{"schema_version", 1},
                                           {"name", "tiny"},
                                           {"description", ""},
                                           {"spec", {{"name", "tiny"}, {"data", {{"text", "a"}}}}},
                                           {"runs", runs}})
                                         .dump());
  for (const std::string& id : ids) {
    fs::create_directories(experiment_ + "/" + id);
    write(experiment_ + "/" + id + "/metrics.jsonl", line(0));
  }
  WatchedRuns watched(experiment_);
  TensorBoardFolder tensorboard(events_);
  tensorboard.update(watched);
  std::set<std::string> folders;
  for (const fs::path& file : event_files()) folders.insert(fs::relative(file.parent_path(), events_).string());
  EXPECT_EQ(folders.size(), 4U);
  EXPECT_EQ(folders.count("a_b_/seed 1"), 1U);
  EXPECT_EQ(folders.count("a_b_/seed 1 " + ids[1]), 1U) << "two points of one name";
  EXPECT_EQ(folders.count("_../seed 1"), 1U);
}

TEST_F(Watched, HyperparametersOfPointsAreNumbersWhereTheyCanBe) {
  const json point = {{"/network/loss", {{"model", "bernoulli"}, {"loss_rate", "9%"}, {"deep", {{"n", 3}}}}},
                      {"/a", {1, 2}},
                      {"/b", true},
                      {"/c", "50% more"},
                      {"/d", "%"}};
  EXPECT_EQ(hyperparameters(point), json({{"/network/loss/model", "bernoulli"},
                                          {"/network/loss/loss_rate", 0.09},
                                          {"/network/loss/deep/n", 3},
                                          {"/a", "[1,2]"},
                                          {"/b", true},
                                          {"/c", "50% more"},
                                          {"/d", "%"}}));
}

TEST_F(Watched, MetricsOfNothingHaveTheirEnd) {
  WatchedRuns runs(folder_.path());
  EXPECT_EQ(open_metrics_text(runs), "# EOF\n");
  EXPECT_THROW(WatchedRuns(folder_.path() + "/absent"), ConfigError);
}

TEST_F(Watched, NumbersThatAreNotFiniteAreNaN) {
  write(run_.spec(), "{}");
  write(run_.metrics(), line(0, ",\"train_loss\":1.5,\"validation_loss\":null"));
  const WatchedRuns runs(experiment_);
  const std::string text = open_metrics_text(runs);
  EXPECT_THAT(text, HasSubstr("seed=\"-\"} NaN\n"));
  EXPECT_THAT(text, HasSubstr("seed=\"-\"} 1.5\n"));
  EXPECT_THAT(text, EndsWith("# EOF\n"));
}

}  // namespace
}  // namespace droptest::experiments::watched_runs_test
