// SPDX-License-Identifier: Apache-2.0
// The commands of Slurm that a submission needs: sbatch, squeue and scontrol.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "sim/error.h"

namespace droptest::experiments {

/// A task of a job array.
struct ArrayTask {
  std::string job_id;
  std::uint64_t number = 0;
  auto operator<=>(const ArrayTask&) const = default;
};

/// sbatch did not say whether Slurm took the job.
class UnconfirmedError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// Submits the batch script with these options of sbatch, and returns the job id. Throws: ConfigError that quotes
/// sbatch; UnconfirmedError if sbatch had no answer from Slurm, or was killed.
std::string submit_batch(const std::vector<std::string>& options, const std::string& script);

/// The job of this user that runs a batch script and has not ended; absent: none. Throws: ConfigError that quotes
/// squeue.
std::optional<std::string> job_of_script(const std::string& script);

/// The tasks of these jobs that have not ended: they wait, run, or are being requeued. Throws: ConfigError that quotes
/// squeue.
std::set<ArrayTask> live_tasks(const std::set<std::string>& job_ids);

/// The number of tasks that one array may have, from 1: the cluster's MaxArraySize less one. Throws: ConfigError that
/// quotes scontrol.
std::uint64_t most_tasks_of_an_array();

/// The tasks in the output of `squeue --noheader --array --format=%F_%K`.
std::set<ArrayTask> tasks_of_listing(std::string_view listing);

/// The limit of an array in the output of `scontrol show config`. Throws: ConfigError if it is not there.
std::uint64_t most_tasks_in_configuration(std::string_view configuration);

}  // namespace droptest::experiments
