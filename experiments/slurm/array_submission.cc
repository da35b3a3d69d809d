// SPDX-License-Identifier: Apache-2.0
#include "experiments/slurm/array_submission.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "experiments/files/atomic_file.h"
#include "experiments/records/run_holder.h"
#include "experiments/slurm/batch_script.h"
#include "experiments/slurm/sbatch_options.h"
#include "experiments/slurm/slurm_queue.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

/// The job of the live task that has a run, by run id.
using JobsOfRuns = std::map<std::string, std::string>;

JobsOfRuns jobs_of_runs(const SweepPlan& plan, const std::vector<std::size_t>& unsettled, const std::string& out) {
  std::set<std::string> wanted;
  for (const std::size_t run : unsettled) wanted.insert(plan.runs[run].run.run_id);
  std::map<ArrayTask, std::vector<std::string>> runs_of_tasks;
  std::set<std::string> job_ids;
  for (ArrayRecord& array : read_arrays(out, plan.name)) {
    const auto concerns = [&wanted](const std::vector<std::string>& task) {
      return std::any_of(task.begin(), task.end(), [&wanted](const std::string& id) { return wanted.contains(id); });
    };
    if (array.job_id.empty()) {
      if (std::none_of(array.tasks.begin(), array.tasks.end(), concerns)) continue;
      const std::optional<std::string> job_id = job_of_script(array.directory.script());
      if (!job_id) continue;
      confirm_array_record(array.directory, *job_id);
      array.job_id = *job_id;
    }
    for (std::size_t i = 0; i < array.tasks.size(); ++i) {
      for (const std::string& id : array.tasks[i]) {
        if (!wanted.contains(id)) continue;
        runs_of_tasks[{array.job_id, i + 1}].push_back(id);
        job_ids.insert(array.job_id);
      }
    }
  }
  JobsOfRuns jobs;
  for (const ArrayTask& task : live_tasks(job_ids)) {
    const auto found = runs_of_tasks.find(task);
    if (found == runs_of_tasks.end()) continue;
    for (const std::string& id : found->second) jobs[id] = task.job_id;
  }
  return jobs;
}

std::vector<std::string> task_options(const SubmissionOptions& options) {
  std::vector<std::string> words = {"--if-busy"};
  words.emplace_back(options.if_busy == IfBusy::kWait ? "wait" : options.if_busy == IfBusy::kSkip ? "skip" : "fail");
  if (options.again == Again::kYes) words.emplace_back("--again");
  if (options.stopped == Stopped::kAccept) words.emplace_back("--accept-stopped");
  return words;
}

}  // namespace

SweepSurvey survey_sweep(const SweepPlan& plan, const SubmissionOptions& options) {
  SweepSurvey survey;
  std::vector<std::size_t> unsettled;
  for (std::size_t i = 0; i < plan.runs.size(); ++i) {
    if (plan.runs[i].same_as != i) continue;
    const RunDirectory directory = run_directory(options.out, plan.name, plan.runs[i].run.run_id);
    if (is_settled(directory, plan.runs[i].run, options.again, options.stopped, options.say_unread)) {
      ++survey.settled;
    } else {
      unsettled.push_back(i);
    }
  }
  const JobsOfRuns jobs = jobs_of_runs(plan, unsettled, options.out);
  for (const std::size_t run : unsettled) {
    const std::string& id = plan.runs[run].run.run_id;
    const auto job = jobs.find(id);
    if (job != jobs.end()) {
      survey.in_jobs.push_back(run);
      survey.job_ids.insert(job->second);
    } else if (const auto holder = holder_of(run_directory(options.out, plan.name, id)); holder && holder->works()) {
      survey.held.push_back({run, holder->text()});
    } else {
      survey.missing.push_back(run);
    }
  }
  return survey;
}

std::vector<PreparedArray> prepare_arrays(const SweepPlan& plan, const SweepSurvey& survey,
                                          const SubmissionOptions& options) {
  if (survey.missing.empty()) return {};
  const GroupingOptions grouping{options.runs_per_task, most_tasks_of_an_array()};
  const bool gpus_by_user = asks_for_gpus(options.sbatch_options);
  std::uint64_t number = next_array_number(options.out, plan.name);
  std::vector<PreparedArray> arrays;
  for (ArrayPlan& array : plan_arrays(plan, survey.missing, grouping)) {
    BatchScript script;
    script.name = plan.name;
    script.folder = std::filesystem::current_path().string();
    script.directory = array_directory(options.out, plan.name, number++);
    script.resources = array.resources;
    script.gpus = gpus_by_user ? BatchScript::Gpus::kLeaveToUser : BatchScript::Gpus::kAsk;
    script.tasks = array.tasks.size();
    script.array_limit = options.array_limit;
    script.task_command = options.task_command;
    script.task_options = task_options(options);
    arrays.push_back({std::move(array), script.directory, batch_script_text(script)});
  }
  return arrays;
}

FileLock hold_submission(const SweepPlan& plan, const std::string& out) {
  const std::string folder = slurm_folder(out, plan.name);
  std::optional<FileLock> lock = FileLock::try_take(folder + "/lock", FileLock::Mode::kExclusive);
  if (!lock) {
    throw BusyError(busy_text(folder, lock_holder(folder + "/lock")) +
                    ": another submission of this sweep goes on; try again once it has ended");
  }
  return std::move(*lock);
}

std::string submit_array(const SweepPlan& plan, const PreparedArray& array, const SubmissionOptions& options) {
  std::string job_id;
  try {
    write_tasks(array.directory, plan, array.plan);
    write_file_atomically(array.directory.script(), array.script);
    // The record is written before the job is known: if the process is killed now, the next call looks for the job.
    write_array_record(array.directory, plan, array.plan, "");
    job_id = submit_batch(options.sbatch_options, array.directory.script());
  } catch (const UnconfirmedError& error) {
    throw ConfigError(std::string(error.what()) + "\nSlurm may have taken the array: its folder " +
                      array.directory.path +
                      " stays, and the next call asks squeue for it, and submits its runs again where it is not there");
  } catch (const ConfigError&) {
    std::error_code ignored;
    std::filesystem::remove_all(array.directory.path, ignored);
    throw;
  }
  confirm_array_record(array.directory, job_id);
  return job_id;
}

}  // namespace droptest::experiments
