// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/slurm_sweep.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "experiments/cli/commands.h"
#include "experiments/cli/number_options.h"
#include "experiments/cli/outcome_text.h"
#include "experiments/process/child_process.h"
#include "experiments/run/sweep_runner.h"
#include "experiments/slurm/sbatch_options.h"
#include "sim/error.h"

namespace droptest::cli {
namespace {

using experiments::PreparedArray;
using experiments::SweepPlan;
using experiments::SweepSurvey;

std::string counted_runs(std::size_t count) { return std::to_string(count) + (count == 1 ? " run" : " runs"); }

std::string joined(const std::set<std::string>& words, const std::string& separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

/// An array in words: "3 tasks, 6 runs, at most 2 at once, each 1 process with 2 cores".
std::string array_text(const PreparedArray& array, std::uint64_t array_limit) {
  const std::size_t tasks = array.plan.tasks.size();
  std::string text =
      (tasks == 1 ? "1 task, " : std::to_string(tasks) + " tasks, ") + counted_runs(array.plan.run_count());
  if (array_limit != 0) text += ", at most " + std::to_string(array_limit) + " at once";
  return text + ", each " + experiments::resources_text(array.plan.resources);
}

/// Prints the reasons why runs without a result are not submitted.
void say_survey(const SweepPlan& plan, const SweepSurvey& survey) {
  std::cout << plan.name << ": " << counted_runs(plan.runs.size() - plan.same_runs()) << ": " << survey.settled
            << " finished, " << survey.in_jobs.size() << " in jobs, " << survey.held.size() << " busy, "
            << survey.missing.size() << " missing\n";
  if (!survey.in_jobs.empty()) {
    std::cout << "in jobs " << joined(survey.job_ids, ", ") << " already: " << counted_runs(survey.in_jobs.size())
              << ", not submitted again\n";
  }
  for (const experiments::HeldRun& held : survey.held) {
    const experiments::PlannedRun& planned = plan.runs[held.run];
    std::cout << "not submitted: run "
              << experiments::busy_text(planned.run.run_id + " (" + point_text(plan, planned) + ", seed " +
                                            seeds_text(planned.seeds) + ")",
                                        held.holder)
              << "\n";
  }
}

void say_next(const std::set<std::string>& job_ids, const std::string& folder, const std::string& local_command) {
  std::cout << "watch:   squeue --jobs=" << joined(job_ids, ",") << "\n"
            << "cancel:  scancel " << joined(job_ids, " ") << "\n"
            << "logs:    " << folder << "/array_*/task_*.log\n"
            << "results: " << local_command << ", once the jobs have ended\n";
}

void print_scripts(const std::vector<PreparedArray>& arrays, const experiments::SubmissionOptions& submission) {
  for (const PreparedArray& array : arrays) {
    std::cout << "# " << array.directory.script() << ": " << array_text(array, submission.array_limit)
              << "\n# sbatch --parsable";
    for (const std::string& word : submission.sbatch_options) std::cout << " " << word;
    std::cout << " " << array.directory.script() << "\n" << array.script;
  }
}

/// Removes folders that are empty at the end of its scope: those of a submission that came to nothing.
class RemovedIfEmpty {
 public:
  explicit RemovedIfEmpty(std::vector<std::string> paths) : paths_(std::move(paths)) {}
  ~RemovedIfEmpty() {
    std::error_code ignored;
    for (const std::string& path : paths_) std::filesystem::remove(path, ignored);
  }
  RemovedIfEmpty(const RemovedIfEmpty&) = delete;
  RemovedIfEmpty& operator=(const RemovedIfEmpty&) = delete;

 private:
  std::vector<std::string> paths_;  ///< inner ones first
};

/// The device "auto" was resolved on this machine, which may have no GPU.
void say_device_of_tasks(const SweepPlan& plan) {
  if (plan.spec.value("device", "") != "auto") return;
  const bool on_gpu = plan.runs.front().run.config.device == experiments::Device::kCuda;
  std::cerr << "droptest: device: \"auto\" means " << (on_gpu ? "cuda" : "cpu")
            << " on this machine, and so for the tasks; write \"cpu\" or \"cuda\" in the spec to choose\n";
}

}  // namespace

void add_slurm_options(CLI::App& command, SlurmSweepOptions& options) {
  const std::string group = "Slurm";
  CLI::Option* slurm =
      command.add_flag("--slurm", options.chosen, "Submit the runs without a result as job arrays (docs/cluster.md)")
          ->group(group)
          ->excludes(command.get_option("--jobs"))
          ->excludes(command.get_option("--pin"));
  add_integer(command, "--array-limit", options.array_limit, "Largest number of tasks of an array that run at once",
              {1, 1000000})
      ->group(group)
      ->needs(slurm);
  add_integer(
      command, "--runs-per-task", options.runs_per_task,
      "Number of runs that a task does one after another; default: as many as take five minutes at 10 GFLOP/s per core",
      {1, 10000})
      ->group(group)
      ->needs(slurm);
  command.add_flag("--dry-run", options.dry_run, "Print the batch scripts, and submit nothing")
      ->group(group)
      ->needs(slurm);
  command.add_option("SBATCH_OPTIONS", options.sbatch_options,
                     "After --: options of sbatch, for example --partition=gpu");
}

void require_no_sbatch_options(const SlurmSweepOptions& options) {
  experiments::check_sbatch_options(options.sbatch_options);
  if (options.sbatch_options.empty()) return;
  throw ConfigError("sweep: got options of sbatch (" + options.sbatch_options.front() +
                    "), but no --slurm, which they need");
}

int submit_sweep(const SweepPlan& plan, experiments::SubmissionOptions submission, const SlurmSweepOptions& options,
                 Verbosity verbosity) {
  experiments::check_sbatch_options(options.sbatch_options);
  submission.array_limit = options.array_limit;
  submission.runs_per_task = options.runs_per_task;
  submission.sbatch_options = options.sbatch_options;
  submission.task_command = {experiments::this_program(), "sweep-task"};
  if (verbosity == Verbosity::kNormal) say_device_of_tasks(plan);
  if (options.dry_run) {
    print_scripts(experiments::prepare_arrays(plan, experiments::survey_sweep(plan, submission), submission),
                  submission);
    return kExitSuccess;
  }
  const RemovedIfEmpty rest({experiments::slurm_folder(submission.out, plan.name), submission.out + "/" + plan.name});
  const experiments::FileLock lock = experiments::hold_submission(plan, submission.out);
  const SweepSurvey survey = experiments::survey_sweep(plan, submission);
  const std::vector<PreparedArray> arrays = experiments::prepare_arrays(plan, survey, submission);
  if (verbosity == Verbosity::kNormal) say_survey(plan, survey);
  experiments::record_sweep(plan, submission.out);
  std::set<std::string> job_ids = survey.job_ids;
  for (const PreparedArray& array : arrays) {
    const std::string job_id = experiments::submit_array(plan, array, submission);
    job_ids.insert(job_id);
    if (verbosity == Verbosity::kNormal) {
      std::cout << "submitted job " << job_id << ": " << array_text(array, submission.array_limit) << std::endl;
    }
  }
  if (verbosity == Verbosity::kQuiet) return kExitSuccess;
  if (!job_ids.empty()) say_next(job_ids, experiments::slurm_folder(submission.out, plan.name), options.local_command);
  if (arrays.empty() && job_ids.empty() && survey.held.empty()) {
    std::cout << "nothing to submit; next: droptest report " << submission.out << "/" << plan.name << "\n";
  }
  return kExitSuccess;
}

}  // namespace droptest::cli
