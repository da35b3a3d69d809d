// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "comm/json/json_text.h"
#include "experiments/process/program_output.h"
#include "experiments/slurm/array_plan.h"
#include "experiments/slurm/batch_script.h"
#include "experiments/slurm/sbatch_options.h"
#include "experiments/slurm/slurm_queue.h"
#include "sim/error.h"

namespace droptest::experiments::slurm_array_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// Six runs of two ranks, of threads and of processes in turn.
SweepPlan six_runs() {
  return plan_sweep({comm::parse_json(R"({"name": "t", "data": {"text": "a"}, "parallel": {"tensor": 2},
      "network": {"loss": {"model": "bernoulli", "loss_rate": 0.1}},
      "sweep": {"cross": {"/network/loss/loss_rate": [0.1, 0.2, 0.3], "/backend/name": ["local", "gloo"]}}})",
                                      "s"),
                     "s"});
}

std::vector<std::size_t> all_of(const SweepPlan& plan) {
  std::vector<std::size_t> runs(plan.runs.size());
  std::iota(runs.begin(), runs.end(), std::size_t{0});
  return runs;
}

TEST(ArrayPlan, RunsOfOtherResourcesAreInOtherArrays) {
  const SweepPlan plan = six_runs();
  const std::vector<ArrayPlan> arrays = plan_arrays(plan, all_of(plan), {1, 1000});
  ASSERT_EQ(arrays.size(), 2U);
  EXPECT_EQ(resources_text(arrays[0].resources), "1 process with 2 cores");
  EXPECT_EQ(resources_text(arrays[1].resources), "2 processes with 1 core each");
  EXPECT_THAT(arrays[0].tasks, ElementsAre(TaskRuns{0}, TaskRuns{1}, TaskRuns{2}));
  EXPECT_THAT(arrays[1].tasks, ElementsAre(TaskRuns{3}, TaskRuns{4}, TaskRuns{5}));
}

TEST(ArrayPlan, ATaskHasTheNumberOfRunsThatIsAskedForAndTheLastOneTheRest) {
  const SweepPlan plan = six_runs();
  const std::vector<std::size_t> runs = {0, 1, 2};
  const std::vector<ArrayPlan> arrays = plan_arrays(plan, runs, {2, 1000});
  ASSERT_EQ(arrays.size(), 1U);
  EXPECT_THAT(arrays[0].tasks, ElementsAre(TaskRuns{0, 1}, TaskRuns{2}));
  EXPECT_EQ(arrays[0].run_count(), 3U);
}

TEST(ArrayPlan, AnArrayEndsAtTheLimitOfTheCluster) {
  const SweepPlan plan = six_runs();
  const std::vector<std::size_t> runs = {0, 1, 2};
  const std::vector<ArrayPlan> arrays = plan_arrays(plan, runs, {1, 2});
  ASSERT_EQ(arrays.size(), 2U);
  EXPECT_THAT(arrays[0].tasks, ElementsAre(TaskRuns{0}, TaskRuns{1}));
  EXPECT_THAT(arrays[1].tasks, ElementsAre(TaskRuns{2}));
}

TEST(ArrayPlan, SmallRunsShareATaskUpToFiveMinutes) {
  SweepPlan plan = six_runs();
  const std::vector<std::size_t> runs = {0, 1, 2};
  for (const std::size_t run : runs) {  // two evaluations of a batch each, which do not count
    plan.runs[run].run.config.validation.tokens = 1;
    plan.runs[run].run.config.validation.every_steps = 1000000000;
    plan.runs[run].run.config.training.steps = 1000000;
  }
  const RunConfig& first = plan.runs[0].run.config;
  const double seconds_per_step = cautious_seconds(first) / 1e6;
  const auto tasks_of_runs_that_take = [&](double seconds) {
    for (const std::size_t run : runs) {
      plan.runs[run].run.config.training.steps = static_cast<std::uint64_t>(seconds / seconds_per_step);
    }
    EXPECT_NEAR(cautious_seconds(first), seconds, 0.9);
    return plan_arrays(plan, runs, {}).at(0).tasks;
  };
  EXPECT_THAT(tasks_of_runs_that_take(99), ElementsAre(TaskRuns{0, 1, 2}));
  EXPECT_THAT(tasks_of_runs_that_take(149), ElementsAre(TaskRuns{0, 1}, TaskRuns{2}));
  EXPECT_THAT(tasks_of_runs_that_take(151), ElementsAre(TaskRuns{0}, TaskRuns{1}, TaskRuns{2}));
}

TEST(ArrayPlan, RanksOnGpusAskForThem) {
  RunConfig config = six_runs().runs[0].run.config;
  config.backend.threads_per_rank = 3;
  config.device = Device::kCuda;
  EXPECT_EQ(resources_of(config).gpus, 1);  // threads share it
  EXPECT_EQ(resources_of(config).cores_per_process, 6);
  config.backend.name = "nccl";
  EXPECT_EQ(resources_text(resources_of(config)), "2 processes with 3 cores each and 2 GPUs in all");
}

BatchScript script_of_threads() {
  return {.name = "t",
          .folder = "/work",
          .directory = {"results/t/slurm/array_1"},
          .resources = {TaskResources::Ranks::kThreads, 1, 2, 1},
          .tasks = 6,
          .task_command = {"/bin/droptest", "sweep-task"},
          .task_options = {"--again"}};
}

TEST(BatchScript, AsksForTheResourcesOfARun) {
  const std::string text = batch_script_text(script_of_threads());
  for (const char* line :
       {"#SBATCH --array=1-6\n", "#SBATCH --requeue\n", "#SBATCH --open-mode=append\n", "#SBATCH --chdir=/work\n",
        "#SBATCH --ntasks=1\n", "#SBATCH --cpus-per-task=2\n", "#SBATCH --gpus=1\n",
        "#SBATCH --output=results/t/slurm/array_1/task_%a.log\n",
        "\nexec /bin/droptest sweep-task results/t/slurm/array_1 \"$SLURM_ARRAY_TASK_ID\" --again\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("MASTER_PORT")));
}

TEST(BatchScript, LimitsTheTasksAtOnceAndLeavesGpusToTheUser) {
  BatchScript script = script_of_threads();
  script.array_limit = 2;
  script.gpus = BatchScript::Gpus::kLeaveToUser;
  const std::string text = batch_script_text(script);
  EXPECT_THAT(text, HasSubstr("#SBATCH --array=1-6%2\n"));
  EXPECT_THAT(text, Not(HasSubstr("--gpus")));
}

TEST(BatchScript, GivesProcessesAPlaceToMeet) {
  BatchScript script = script_of_threads();
  script.resources = {TaskResources::Ranks::kProcesses, 4, 1, 0};
  const std::string text = batch_script_text(script);
  EXPECT_THAT(text, HasSubstr("#SBATCH --ntasks=4\n"));
  EXPECT_THAT(text, HasSubstr("export MASTER_ADDR="));
  EXPECT_THAT(text, HasSubstr("export MASTER_PORT="));
}

TEST(BatchScript, QuotesNamesOfFolders) {
  BatchScript script = script_of_threads();
  script.folder = "/my work";
  script.directory = {"o'k 5%/t/slurm/array_1"};
  const std::string text = batch_script_text(script);
  EXPECT_THAT(text, HasSubstr("#SBATCH --chdir=\"/my work\"\n"));
  EXPECT_THAT(text, HasSubstr("#SBATCH --output=\"o'k 5%%/t/slurm/array_1/task_%a.log\"\n"));
  EXPECT_THAT(text, HasSubstr(R"( 'o'\''k 5%/t/slurm/array_1' "$SLURM_ARRAY_TASK_ID")"));
}

std::string refusal_of(const std::vector<std::string>& words) {
  try {
    check_sbatch_options(words);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(SbatchOptions, ThoseThatDroptestSetsAreRefused) {
  EXPECT_THAT(refusal_of({"--array=1-3"}),
              HasSubstr("got --array=1-3, want none of --array: droptest numbers the tasks"));
  EXPECT_THAT(refusal_of({"--partition=gpu", "--arr", "1-3"}), HasSubstr("got --arr,"));  // short for --array
  EXPECT_THAT(refusal_of({"-a1-3"}), HasSubstr("--array"));
  EXPECT_THAT(refusal_of({"-Hn4"}), HasSubstr("--ntasks"));  // -H -n4
  EXPECT_THAT(refusal_of({"--test-only"}), HasSubstr("--dry-run"));
  EXPECT_THAT(refusal_of({"--no-requeue"}), HasSubstr("--requeue"));
  EXPECT_THAT(refusal_of({"other.json"}), HasSubstr("got \"other.json\" beyond its last argument"));
  EXPECT_THAT(refusal_of({"--mem=1", "--"}), HasSubstr("got --,"));
}

TEST(SbatchOptions, OthersPass) {
  EXPECT_EQ(refusal_of({}), "");
  EXPECT_EQ(refusal_of({"--ntasks-per-node=2", "--nodes=2", "--time", "10:00", "-pgpu-a", "-c2", "--wait-all-nodes=1",
                        "--job-name=x", "--output=o"}),
            "");
  EXPECT_FALSE(asks_for_gpus({"--mem=1", "--gpu-bind=none"}));
  EXPECT_TRUE(asks_for_gpus({"--gpus-per-node=4"}));
  EXPECT_TRUE(asks_for_gpus({"-G4"}));
  EXPECT_TRUE(asks_for_gpus({"--gres=gpu:1"}));
}

TEST(SlurmQueue, TasksOfAListing) {
  EXPECT_THAT(tasks_of_listing("17_1\n17_12  \n18_N/A\n19\n\n20_3\n"),
              ElementsAre(ArrayTask{"17", 1}, ArrayTask{"17", 12}, ArrayTask{"20", 3}));
}

TEST(SlurmQueue, TheLimitOfAnArrayLeavesIndexZeroOut) {
  EXPECT_EQ(most_tasks_in_configuration("MaxArraySizeX = 7\nMaxArraySize            = 1001\nMaxJobCount = 3\n"), 1000U);
  EXPECT_THROW(most_tasks_in_configuration("MaxJobCount = 3\n"), ConfigError);
  EXPECT_THROW(most_tasks_in_configuration("MaxArraySize = 1\n"), ConfigError);
}

TEST(ProgramOutput, HasBothOutputsAndTheExitCode) {
  // More than a pipe's capacity on both pipes: the reader reads them in turn.
  const ProgramOutput ended =
      run_program({"sh", "-c", "head -c 200000 /dev/zero >&2; head -c 300000 /dev/zero; echo end; cat; exit 7"});
  EXPECT_EQ(ended.exit_code, 7);
  EXPECT_EQ(ended.output.size(), 300004U);
  EXPECT_EQ(ended.errors.size(), 200000U);
  EXPECT_EQ(run_program({"sh", "-c", "kill -9 $$"}).exit_code, 128 + 9);
  EXPECT_TRUE(run_program({"true"}).succeeded());
}

TEST(ProgramOutput, AProgramThatIsNotThereIsNamed) {
  EXPECT_THROW(run_program({"no-such-program-of-slurm"}), ConfigError);
  EXPECT_THROW(path_of_program("no-such-program-of-slurm"), ConfigError);
  EXPECT_TRUE(path_of_program("sh").ends_with("/sh"));
}

}  // namespace
}  // namespace droptest::experiments::slurm_array_test
