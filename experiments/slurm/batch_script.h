// SPDX-License-Identifier: Apache-2.0
// The batch script of a job array.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "experiments/slurm/array_plan.h"
#include "experiments/slurm/array_record.h"

namespace droptest::experiments {

struct BatchScript {
  std::string name;    ///< name of the sweep
  std::string folder;  ///< folder from which the paths of the spec start
  ArrayDirectory directory;
  TaskResources resources;
  enum class Gpus : std::uint8_t { kAsk, kLeaveToUser } gpus = Gpus::kAsk;  ///< whether the script asks for GPUs
  std::uint64_t tasks = 1;
  std::uint64_t array_limit = 0;          ///< tasks at once; 0: as many as Slurm starts
  std::vector<std::string> task_command;  ///< the array's folder and the task's number are appended
  std::vector<std::string> task_options;  ///< options that follow the folder and the number
};

std::string batch_script_text(const BatchScript& script);

}  // namespace droptest::experiments
