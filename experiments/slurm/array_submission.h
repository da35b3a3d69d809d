// SPDX-License-Identifier: Apache-2.0
// Submits the runs of a sweep that have no result as job arrays of Slurm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "experiments/files/file_lock.h"
#include "experiments/records/run_records.h"
#include "experiments/slurm/array_plan.h"
#include "experiments/slurm/array_record.h"
#include "experiments/spec/sweep_plan.h"

namespace droptest::experiments {

struct SubmissionOptions {
  std::string out;                                   ///< root folder of results
  Again again = Again::kNo;                          ///< whether finished runs that lack a record are run again
  Stopped stopped = Stopped::kRunAgain;              ///< runs that an alert stopped, or will stop
  SayUnread say_unread = [](const std::string&) {};  ///< hears of summaries that cannot be read
  IfBusy if_busy = IfBusy::kSkip;           ///< where a task finds a run of which another process holds the lock
  std::uint64_t array_limit = 0;            ///< tasks of an array at once; 0: as many as Slurm starts
  std::uint64_t runs_per_task = 0;          ///< GroupingOptions::runs_per_task
  std::vector<std::string> sbatch_options;  ///< as check_sbatch_options() allows
  std::vector<std::string> task_command;    ///< runs a task of an array; its folder and the number are appended
};

/// A run that another process, of no job of this sweep, is at work on.
struct HeldRun {
  std::size_t run = 0;
  std::string holder;
};

/// Where the runs of the plan stand; each is counted once, those that share an id once together.
struct SweepSurvey {
  std::size_t settled = 0;           ///< nothing is left to do
  std::vector<std::size_t> in_jobs;  ///< in a task that waits or runs
  std::set<std::string> job_ids;     ///< of those tasks
  std::vector<HeldRun> held;
  std::vector<std::size_t> missing;  ///< all others
};

/// Asks squeue about the arrays that were submitted before. Throws: ConfigError.
SweepSurvey survey_sweep(const SweepPlan& plan, const SubmissionOptions& options);

/// An array that is ready to be submitted.
struct PreparedArray {
  ArrayPlan plan;
  ArrayDirectory directory;
  std::string script;  ///< its text
};

/// Arrays for the missing runs; asks scontrol for the limit of an array, and writes nothing. Throws: ConfigError.
std::vector<PreparedArray> prepare_arrays(const SweepPlan& plan, const SweepSurvey& survey,
                                          const SubmissionOptions& options);

/// Held while a submission goes on, so that two of them do not submit the same runs. Throws: BusyError.
FileLock hold_submission(const SweepPlan& plan, const std::string& out);

/// Writes the array's files and submits it; returns the job id. Where sbatch fails, the files are gone.
/// Throws: ConfigError.
std::string submit_array(const SweepPlan& plan, const PreparedArray& array, const SubmissionOptions& options);

}  // namespace droptest::experiments
