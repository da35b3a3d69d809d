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
  IfBusy if_busy = IfBusy::kSkip;           ///< reaction of a task to a run with a lock that another process holds
  std::uint64_t array_limit = 0;            ///< tasks of an array at once; 0: as many as Slurm starts
  std::uint64_t runs_per_task = 0;          ///< GroupingOptions::runs_per_task
  std::vector<std::string> sbatch_options;  ///< options that check_sbatch_options() allows
  std::vector<std::string> task_command;    ///< runs a task of an array; its folder and the number are appended
};

/// A run that a process outside of this sweep's jobs is at work on.
struct HeldRun {
  std::size_t run = 0;
  std::string holder;
};

/// The states of the plan's runs; each run is counted once, and runs that share an id are counted once together.
struct SweepSurvey {
  std::size_t settled = 0;           ///< runs with nothing left to do
  std::vector<std::size_t> in_jobs;  ///< runs in a task that waits or runs
  std::set<std::string> job_ids;     ///< jobs of those tasks
  std::vector<HeldRun> held;
  std::vector<std::size_t> missing;  ///< all other runs
};

/// Asks squeue about the arrays that were submitted before. Throws: ConfigError.
SweepSurvey survey_sweep(const SweepPlan& plan, const SubmissionOptions& options);

/// An array that is ready to be submitted.
struct PreparedArray {
  ArrayPlan plan;
  ArrayDirectory directory;
  std::string script;  ///< text of the script
};

/// Arrays for the missing runs; asks scontrol for the limit of an array, and writes nothing. Throws: ConfigError.
std::vector<PreparedArray> prepare_arrays(const SweepPlan& plan, const SweepSurvey& survey,
                                          const SubmissionOptions& options);

/// Held while a submission goes on, so that no two submissions submit the same runs. Throws: BusyError.
FileLock hold_submission(const SweepPlan& plan, const std::string& out);

/// Writes the array's files and submits it; returns the job id. If sbatch fails, the files are removed.
/// Throws: ConfigError.
std::string submit_array(const SweepPlan& plan, const PreparedArray& array, const SubmissionOptions& options);

}  // namespace droptest::experiments
