// SPDX-License-Identifier: Apache-2.0
// The records of a job array, <out>/<name>/slurm/array_<n>/. docs/records.md is their format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/slurm/array_plan.h"
#include "experiments/spec/sweep_plan.h"

namespace droptest::experiments {

/// The places of an array's files.
struct ArrayDirectory {
  std::string path;
  std::string array() const { return path + "/array.json"; }
  std::string tasks() const { return path + "/tasks.jsonl"; }
  std::string script() const { return path + "/batch.sh"; }
  std::string log(std::string_view task) const { return path + "/task_" + std::string(task) + ".log"; }
};

/// The folder <out>/<name>/slurm.
std::string slurm_folder(const std::string& out, std::string_view name);

/// The folder of an array, whether it exists or not; numbers count from 1.
ArrayDirectory array_directory(const std::string& out, std::string_view name, std::uint64_t number);

/// The first number that no array of the sweep has.
std::uint64_t next_array_number(const std::string& out, std::string_view name);

/// An array that was submitted.
struct ArrayRecord {
  ArrayDirectory directory;
  std::string job_id;                           ///< empty: it is not known whether Slurm took it
  std::vector<std::vector<std::string>> tasks;  ///< run ids of each task; tasks count from 1 in Slurm
};

/// Writes tasks.jsonl: all that a task needs to know. Throws: ConfigError.
void write_tasks(const ArrayDirectory& directory, const SweepPlan& plan, const ArrayPlan& array);

/// Writes array.json; `job_id` is empty before sbatch has answered. Throws: ConfigError.
void write_array_record(const ArrayDirectory& directory, const SweepPlan& plan, const ArrayPlan& array,
                        const std::string& job_id);

/// Writes the job id of an array into its record. Throws: ConfigError.
void confirm_array_record(const ArrayDirectory& directory, const std::string& job_id);

/// The arrays of the sweep that were submitted, oldest first. Throws: ConfigError for a file that is no such record.
std::vector<ArrayRecord> read_arrays(const std::string& out, std::string_view name);

/// The runs of a task as a plan of their own. Throws: ConfigError if there is no such task, or if this program gives a
/// run another id than the program that submitted it.
SweepPlan read_task(const ArrayDirectory& directory, std::uint64_t task);

}  // namespace droptest::experiments
