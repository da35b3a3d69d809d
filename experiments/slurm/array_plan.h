// SPDX-License-Identifier: Apache-2.0
// The division of runs into job arrays: the runs that share a task, the tasks that share an array. docs/cluster.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "experiments/spec/run_config.h"
#include "experiments/spec/sweep_plan.h"

namespace droptest::experiments {

/// The resources of a run, which are those of its task.
struct TaskResources {
  enum class Ranks : std::uint8_t {
    kThreads,    ///< threads of the task's one process
    kProcesses,  ///< processes that srun starts within the task
  } ranks = Ranks::kThreads;
  int processes = 1;
  int cores_per_process = 1;
  int gpus = 0;  ///< GPUs of all processes together

  auto operator<=>(const TaskResources&) const = default;
};

TaskResources resources_of(const RunConfig& config);

/// Resources in words: "1 process with 2 cores", "4 processes with 1 core each and 4 GPUs in all".
std::string resources_text(const TaskResources& resources);

/// Seconds of a run, estimated only from its floating-point operations, at a speed that most machines exceed: 10
/// GFLOP/s per core, 10 TFLOP/s per GPU.
double cautious_seconds(const RunConfig& config);

/// The runs of a task as indices into SweepPlan::runs, done one after another.
using TaskRuns = std::vector<std::size_t>;

struct ArrayPlan {
  TaskResources resources;
  std::vector<TaskRuns> tasks;

  std::size_t run_count() const;
};

struct GroupingOptions {
  std::uint64_t runs_per_task = 0;  ///< 0: as many as take five minutes together, by cautious_seconds()
  std::uint64_t tasks_per_array = 1000;
};

/// Arrays for these runs. Runs with other resources are in other arrays; within an array, tasks and their runs have the
/// plan's order. An array has at most tasks_per_array tasks.
std::vector<ArrayPlan> plan_arrays(const SweepPlan& plan, std::span<const std::size_t> runs,
                                   const GroupingOptions& options);

}  // namespace droptest::experiments
