// SPDX-License-Identifier: Apache-2.0
// The hidden `sweep-task`: the work of a task of a job array.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/cli/commands.h"
#include "experiments/cli/finished_runs.h"
#include "experiments/cli/number_options.h"
#include "experiments/cli/outcome_text.h"
#include "experiments/cli/spec_options.h"
#include "experiments/cli/stop_signal.h"
#include "experiments/cli/sweep_outcome.h"
#include "experiments/process/child_process.h"
#include "experiments/process/program_output.h"
#include "experiments/run/sweep_runner.h"
#include "experiments/slurm/array_record.h"
#include "experiments/training/run_device.h"
#include "sim/error.h"

namespace droptest::cli {
namespace {

using experiments::TaskResources;

struct SweepTaskOptions {
  std::string array;  ///< folder of the array
  std::uint64_t task = 0;
  experiments::IfBusy if_busy = experiments::IfBusy::kSkip;
  experiments::Again again = experiments::Again::kNo;
  experiments::Stopped stopped = experiments::Stopped::kRunAgain;
};

/// Cores of each process of this job: the user may have asked for another number than the spec's.
std::string cores_per_process(const TaskResources& resources) {
  const char* const given = std::getenv("SLURM_CPUS_PER_TASK");
  return given != nullptr ? given : std::to_string(resources.cores_per_process);
}

/// Starts the ranks of a run within the job. When a rank fails, the others name the cause; processes that still run
/// half a minute after the first one ended are stopped.
std::vector<std::string> worker_command_of(const TaskResources& resources) {
  std::vector<std::string> command;
  if (resources.ranks == TaskResources::Ranks::kProcesses) {
    command = {experiments::path_of_program("srun"), "--ntasks=" + std::to_string(resources.processes),
               "--cpus-per-task=" + cores_per_process(resources), "--kill-on-bad-exit=0", "--wait=30"};
  }
  command.insert(command.end(), {experiments::this_program(), "worker"});
  return command;
}

/// The log of the task: a line for each run, once it has ended.
class TaskLog {
 public:
  explicit TaskLog(const experiments::SweepPlan& plan) : plan_(plan), told_(plan.runs.size()) {}

  void show(const experiments::SweepProgress& progress) {
    for (std::size_t i = 0; i < plan_.runs.size(); ++i) {
      const experiments::SweepRun& run = progress.runs[i];
      if (told_[i] || run.summary.is_null()) continue;
      told_[i] = true;
      const experiments::PlannedRun& planned = plan_.runs[i];
      std::cout << "run " << planned.run.run_id << " (" << point_text(plan_, planned) << ", seed "
                << seeds_text(planned.seeds) << "): " << outcome_text(run.summary) << std::endl;
    }
  }

 private:
  const experiments::SweepPlan& plan_;
  std::vector<bool> told_;
};

int work_on_task(const SweepTaskOptions& options) {
  const experiments::ArrayDirectory directory{options.array};
  const experiments::SweepPlan plan = experiments::read_task(directory, options.task);
  const TaskResources resources = experiments::resources_of(plan.runs.front().run.config);
  if (resources.ranks == TaskResources::Ranks::kThreads) (void)experiments::most_demanding(plan.runs);
  experiments::FileHashes files;
  experiments::SweepOptions sweep;
  sweep.files = &files;
  // The array's folder is <out>/<name>/slurm/array_<n>.
  sweep.out = std::filesystem::path(options.array).parent_path().parent_path().parent_path().string();
  sweep.jobs = 1;
  sweep.pin = experiments::SweepOptions::Pin::kNone;  // Slurm places the task
  sweep.if_busy = options.if_busy;
  sweep.again = options.again;
  sweep.stopped = options.stopped;
  sweep.say_unread = say_unread;
  sweep.worker_command = worker_command_of(resources);
  catch_stop_signals();
  outlive_readers();
  TaskLog log(plan);
  const experiments::SweepProgress progress = experiments::run_planned(
      plan, sweep, [&log](const experiments::SweepProgress& now) { log.show(now); }, [] { return stop_requested(); });
  print_failures(plan, progress);
  print_busy(plan, progress);
  if (!progress.problem.empty()) {
    std::cerr << "droptest: error: " << progress.problem << "; started again, the task does the runs that are left\n";
    return kExitFailedRun;
  }
  if (progress.ended() < plan.runs.size() && progress.busy() == 0) {
    std::cerr << "droptest: stopped: " << progress.ended() << " of " << plan.runs.size()
              << " runs of the task have ended; started again, the task does the others\n";
    return kExitInterrupted;
  }
  if (progress.failed() != 0) return kExitFailedRun;
  return progress.busy() != 0 ? kExitBusy : kExitSuccess;
}

}  // namespace

void add_sweep_task_command(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("sweep-task", "Do the runs of a task of a job array")->group("");
  const auto options = std::make_shared<SweepTaskOptions>();  // shared by CLI11's bindings and the action
  command->add_option("FOLDER", options->array, "Of the array")->required();
  add_integer(*command, "TASK", options->task, "Number of the task, from 1", {1, experiments::kMaxRuns})->required();
  add_if_busy_option(*command, options->if_busy, {"wait", "skip", "fail"});
  add_again_option(*command, options->again);
  add_accept_option(*command, options->stopped);
  command->callback([options, &chosen] { chosen = [options] { return work_on_task(*options); }; });
}

}  // namespace droptest::cli
