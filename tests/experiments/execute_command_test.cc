// SPDX-License-Identifier: Apache-2.0
// Runs of the user's own programs: their lines, their errors and their processes.
#include "experiments/run/execute_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "comm/json/json_text.h"
#include "comm/json/read_file.h"
#include "experiments/process/last_words.h"
#include "experiments/process/program_tree.h"
#include "experiments/spec/resolve_command.h"
#include "sim/error.h"
#include "tests/comm/temporary_folder.h"

namespace droptest::experiments::execute_command_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

/// A run of `sh -c SCRIPT` that loses every tenth packet.
ResolvedRun run_of(const std::string& script) {
  json document = {{"name", "mine"},
                   {"command", {"/bin/sh", "-c", script}},
                   {"settings", {{"rate", 0.5}}},
                   {"seeds", {{"weights", 3}, {"data", 4}, {"network", 5}}},
                   {"files", json::array()},
                   {"network", {{"loss", {{"model", "bernoulli"}, {"loss_rate", 0.1}}}}}};
  return resolve(document, "s.json");
}

/// Shell that writes the counts of a rank with the network's own section.
std::string counts_script(int seed = 5, int packets = 10, const std::string& of_class = "dp_gradient") {
  const json counts = {
      {"network", {{"seed", seed}, {"digest", network_digest_of(run_of(""))}, {"classes", json::object()}}},
      {"classes", {{of_class, {{"halves", {{"reduce", {{"packets", packets}}}}}}}}},
      {"ranks", {{"world_size", 1}, {"missing", json::array()}}}};
  return "printf '" + counts.dump() + "' > \"$DROPTEST_RUN_FOLDER/loss_statistics.json\"; ";
}

json executed(const std::string& script, const TemporaryFolder& folder) {
  return execute_command(run_of(script), RunDirectory{folder.path() + "/run"}, {});
}

std::string error_of(const std::string& script, const TemporaryFolder& folder) {
  try {
    (void)executed(script, folder);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(ExecuteCommand, TheProgramGetsItsNetworkFolderSeedsSettingsAndAPort) {
  const TemporaryFolder folder;
  (void)executed(counts_script() + "env | sort", folder);
  const std::string run = std::filesystem::absolute(folder.path() + "/run").string();
  const std::string log = comm::read_file(run + "/program.log");
  for (const std::string& line :
       {"DROPTEST_NETWORK=" + run + "/network.json\n", "DROPTEST_RUN_FOLDER=" + run + "\n",
        std::string("DROPTEST_WEIGHTS_SEED=3\n"), std::string("DROPTEST_DATA_SEED=4\n"),
        std::string("DROPTEST_NETWORK_SEED=5\n"), std::string("DROPTEST_SETTINGS={\"rate\":0.5}\n"),
        std::string("MASTER_ADDR=127.0.0.1\n"), std::string("PET_MASTER_PORT=")}) {
    EXPECT_THAT(log, HasSubstr(line));
  }
  const json network = comm::load_json(run + "/network.json");
  EXPECT_EQ(network["seed"], 5);
  EXPECT_EQ(network["statistics"], run);
}

TEST(ExecuteCommand, TheSummaryIsThatOfItsLines) {
  const TemporaryFolder folder;
  std::string lines;
  for (int step = 1; step <= 12; ++step) {
    const json line = {{"step", step},
                       {"tokens", 10 * step},
                       {"seconds", 0.5 * step},
                       {"train_loss", 12.0 - step},
                       {"validation_loss", step == 11 ? 1.5 : 2.0}};
    lines += "echo '" + line.dump() + "' >> \"$DROPTEST_RUN_FOLDER/metrics.jsonl\"; ";
  }
  const json summary = executed(counts_script() + lines, folder);
  EXPECT_EQ(summary["status"], "completed");
  EXPECT_EQ(summary["steps"], 12);
  EXPECT_EQ(summary["tokens"], 120);
  EXPECT_EQ(summary["seconds"], 6.0);
  EXPECT_EQ(summary["tokens_per_second"], 20.0);
  EXPECT_EQ(summary["train"]["final_loss"], 4.5);  // mean of 9, 8, ..., 0
  EXPECT_EQ(summary["validation"]["final_loss"], 2.0);
  EXPECT_EQ(summary["validation"]["best_loss"], 1.5);
  EXPECT_EQ(summary["seeds"], json({{"weights", 3}, {"data", 4}, {"network", 5}}));
  EXPECT_EQ(summary["loss"]["dp_gradient"]["reduce"]["loss_rate"], 0.1);
  EXPECT_EQ(summary["warnings"], json::array());
  EXPECT_EQ(comm::load_json(folder.path() + "/run/summary.json"), summary);
}

TEST(ExecuteCommand, ALossThatIsNotFiniteIsADivergence) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/metrics.jsonl";
  std::ofstream(file) << R"({"step": 1, "seconds": 1, "train_loss": 3.0, "validation_loss": 2.5})"
                         "\n"
                      << R"({"step": 2, "seconds": 1, "train_loss": null})"
                         "\n"
                      << R"({"step": 3, "seconds": 1, "train_loss": 4.0, "validation_loss": null})"
                         "\n";
  const ProgramOutcome outcome = outcome_of(lines_that_count(file));
  EXPECT_EQ(outcome.diverged_step, 2u);
  EXPECT_EQ(outcome.steps, 3u);
  EXPECT_FALSE(outcome.train_final_loss.has_value());
  EXPECT_FALSE(outcome.validation_final_loss.has_value());
  EXPECT_EQ(outcome.validation_best_loss, 2.5);
}

TEST(ExecuteCommand, AProgramWithoutCountsIsNoResult) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of("true", folder), HasSubstr("its ranks have written no counts of the network"));
  EXPECT_THAT(error_of(counts_script(6), folder), HasSubstr("/network/seed: got another seed"));
  // A network that sends nothing, or nothing of a class that can lose.
  EXPECT_THAT(error_of(counts_script(5, 0), folder), HasSubstr("it has sent no packet that can be lost"));
  // Counts of an attempt before are not taken for those of this one.
  EXPECT_EQ(error_of(counts_script(), folder), "");
  EXPECT_THAT(error_of("true", folder), HasSubstr("no counts of the network"));
}

TEST(ExecuteCommand, LinesOfAnAttemptBeforeAreNotTakenForThoseOfThisOne) {
  const TemporaryFolder folder;
  const std::string line =
      R"(echo '{"step": 9, "seconds": 1, "train_loss": 1.0}' >> "$DROPTEST_RUN_FOLDER/metrics.jsonl"; )";
  EXPECT_EQ(executed(counts_script() + line, folder)["steps"], 9);
  const json without = executed(counts_script(), folder);
  EXPECT_EQ(without["steps"], 0);
  EXPECT_EQ(without["tokens_per_second"], nullptr);
  EXPECT_THAT(without["warnings"][0]["message"], HasSubstr("has written no metrics.jsonl"));
  // A program that continues appends to them.
  EXPECT_EQ(executed(counts_script() + line, folder)["steps"], 9);
  const std::string more =
      R"(echo '{"step": 10, "seconds": 1, "train_loss": 1.0}' >> "$DROPTEST_RUN_FOLDER/metrics.jsonl"; )";
  const json resumed = executed(counts_script() + more, folder);
  EXPECT_EQ(resumed["steps"], 10);
  EXPECT_THAT(resumed["warnings"][0]["message"], HasSubstr("no line of metrics.jsonl has a validation_loss"));
}

TEST(ExecuteCommand, PacketsOfClassesThatCannotLoseAreNoLosses) {
  const TemporaryFolder folder;
  json document = {
      {"name", "mine"},
      {"command", {"/bin/sh", "-c", ""}},
      {"files", json::array()},
      {"network", {{"classes", {{"tp_forward", {{"loss", {{"model", "bernoulli"}, {"loss_rate", 0.1}}}}}}}}}};
  const std::string digest = network_digest_of(resolve(document, "s.json"));
  const auto error_with = [&](const std::string& of_class, const std::string& half) -> std::string {
    const json counts = {{"network", {{"seed", 1}, {"digest", digest}}},
                         {"classes", {{of_class, {{"halves", {{half, {{"packets", 10}}}}}}}}}};
    document["command"][2] = "printf '" + counts.dump() + "' > \"$DROPTEST_RUN_FOLDER/loss_statistics.json\"";
    try {
      (void)execute_command(resolve(document, "s.json"), RunDirectory{folder.path() + "/run"}, {});
    } catch (const CommError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_with("tp_forward", "reduce"), "");
  EXPECT_THAT(error_with("tp_forward", "gather"), HasSubstr("it has sent no packet that can be lost"));
  EXPECT_THAT(error_with("dp_gradient", "reduce"), HasSubstr("it has sent no packet that can be lost"));
}

TEST(ExecuteCommand, ANetworkWithOtherRulesIsAnotherOne) {
  const TemporaryFolder folder;
  json counts = {{"network", {{"seed", 5}, {"digest", "0123456789abcdef"}}}, {"classes", json::object()}};
  EXPECT_THAT(error_of("printf '" + counts.dump() + "' > \"$DROPTEST_RUN_FOLDER/loss_statistics.json\"", folder),
              HasSubstr("/network/digest: got that of other rules, or of another version of droptest"));
}

TEST(ExecuteCommand, LinesOfAProgramThatBeginsAgainReplaceTheOlderOnes) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/run/metrics.jsonl";
  const auto lines = [](std::initializer_list<int> steps, double loss) {
    std::string script;
    for (const int step : steps) {
      const json line = {{"step", step}, {"seconds", step}, {"train_loss", loss}, {"validation_loss", loss}};
      script += "printf '" + line.dump() + "\\n' >> \"$DROPTEST_RUN_FOLDER/metrics.jsonl\"; ";
    }
    return script;
  };
  EXPECT_THAT(error_of(counts_script() + lines({1, 2, 3}, 9.0) + "exit 1", folder), HasSubstr("exit code 1"));
  const json summary = executed(counts_script() + lines({1, 2}, 3.0), folder);
  EXPECT_EQ(summary["steps"], 2);
  EXPECT_EQ(summary["validation"]["best_loss"], 3.0);
  const std::vector<json> kept = lines_that_count(file);
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(std::count(kept.begin(), kept.end(),
                       json::parse(R"({"step": 2, "seconds": 2, "train_loss": 3.0, "validation_loss": 3.0})")),
            1);
  std::ifstream text(file);
  EXPECT_EQ(std::count(std::istreambuf_iterator<char>(text), std::istreambuf_iterator<char>(), '\n'), 2);

  // Blank lines do not hide that the program has begun again.
  const std::string blank = folder.path() + "/blank.jsonl";
  std::ofstream(blank)
      << "{\"step\": 1, \"seconds\": 1}\n{\"step\": 2, \"seconds\": 2}\n\n{\"step\": 2, \"seconds\": 9}\n";
  const std::vector<json> counted = lines_that_count(blank, 2);
  ASSERT_EQ(counted.size(), 2u);
  EXPECT_EQ(counted.back()["seconds"], 9);

  // Lines of an earlier attempt stay, also one of the same step; its incomplete line does not count.
  EXPECT_THAT(error_of(counts_script() + "rm -f \"$DROPTEST_RUN_FOLDER/metrics.jsonl\"; " + lines({7}, 0.5) +
                           "printf '{\"step\": 8, ' >> \"$DROPTEST_RUN_FOLDER/metrics.jsonl\"; exit 1",
                       folder),
              HasSubstr("exit code 1"));
  const json next = executed(counts_script() + lines({7}, 1.0), folder);
  EXPECT_EQ(next["validation"]["best_loss"], 1.0);
  EXPECT_EQ(next["train"]["final_loss"], 1.0);

  // A last line without its end is one all the same; half a line is an error.
  const std::string whole = R"(printf '{"step": 5, "seconds": 5}' > "$DROPTEST_RUN_FOLDER/metrics.jsonl")";
  EXPECT_EQ(executed(counts_script() + whole, folder)["steps"], 5);
  EXPECT_THAT(error_of(counts_script() + R"(printf '{"step": 5, "sec' > "$DROPTEST_RUN_FOLDER/metrics.jsonl")", folder),
              HasSubstr("metrics.jsonl: line 1: got \"{"));
}

TEST(ExecuteCommand, AProgramThatIsNotThereIsNamedBeforeItStarts) {
  const TemporaryFolder folder;
  json document = run_of("").spec;
  for (const char* name : {"no-such-program", "./no-such-program"}) {
    document["command"] = {name};
    try {
      (void)execute_command(resolve(document, "s.json"), RunDirectory{folder.path() + "/run"}, {});
      FAIL() << "nothing was thrown";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(name));
    }
  }
}

TEST(ExecuteCommand, AnErrorIsToldInTheProgramsOwnWords) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of("echo first; echo 'ValueError: nothing fits' >&2; echo '=====' >&2; exit 3", folder),
              testing::StartsWith("the program ended with exit code 3: ValueError: nothing fits; its output is in "));
  EXPECT_THAT(error_of("kill -KILL $$", folder), HasSubstr("the program was killed by signal 9"));
  EXPECT_THAT(error_of(counts_script() + "echo '{\"loss\": 1}' > \"$DROPTEST_RUN_FOLDER/metrics.jsonl\"", folder),
              HasSubstr("metrics.jsonl: line 1: /step: got nothing"));
  EXPECT_THAT(
      error_of(counts_script() + "echo '{\"step\": 1, \"seconds\": -1}' > \"$DROPTEST_RUN_FOLDER/metrics.jsonl\"",
               folder),
      HasSubstr("metrics.jsonl: line 1: /seconds: got -1"));
  EXPECT_THAT(
      error_of(counts_script() + "echo '{\"step\": 1, \"train_loss\": NaN}' > \"$DROPTEST_RUN_FOLDER/metrics.jsonl\"",
               folder),
      HasSubstr("which has no NaN and no Infinity: write null"));
}

TEST(ExecuteCommand, TheErrorOfALaunchersRankIsFound) {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/log";
  std::ofstream(log) << "epoch 1: 3 errors\n"
                     << "[rank1]: Traceback (most recent call last):\n"
                     << "[rank1]: torch.cuda.OutOfMemoryError: no memory: 3 GiB\n"
                     << "Traceback (most recent call last):\n"
                     << "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
                     << "====\n  traceback : To enable traceback see: https://pytorch.org\n====\n";
  EXPECT_EQ(last_error(log), "torch.cuda.OutOfMemoryError: no memory: 3 GiB");
  std::ofstream(log) << "bash: torchrun: command not found\n====\n";
  EXPECT_EQ(last_error(log), "bash: torchrun: command not found");
  EXPECT_EQ(last_error(folder.path() + "/absent"), "");
}

TEST(ExecuteCommand, ARequestToStopEndsAllProcessesThatTheProgramHasStarted) {
  const TemporaryFolder folder;
  const std::string started = folder.path() + "/started";
  ExecuteOptions options;
  options.program_grace = std::chrono::milliseconds(300);
  options.stop_requested = [&] { return std::filesystem::exists(started); };
  // One process with a separate session, as a launcher's ranks have, and one that ignores signals.
  const std::string script = "setsid sleep 1000 & (trap '' TERM; sleep 1001) & echo $! > " + started + ".new; mv " +
                             started + ".new " + started + "; wait";
  EXPECT_THROW(execute_command(run_of(script), RunDirectory{folder.path() + "/run"}, options), StoppedError);
  EXPECT_THAT(descendants(), testing::IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/run/summary.json"));
}

TEST(ExecuteCommand, WhatAProgramLeavesIsEndedWithIt) {
  const TemporaryFolder folder;
  ProgramTree program({.arguments = {"/bin/sh", "-c", "setsid sleep 1000 & exit 0"}, .environment = {}, .log = ""});
  while (!program.poll()) {
  }
  EXPECT_EQ(descendants().size(), 1u);
  program.end_rest(std::chrono::milliseconds(0), std::chrono::milliseconds(1000));
  EXPECT_THAT(descendants(), testing::IsEmpty());
}

}  // namespace
}  // namespace droptest::experiments::execute_command_test
