// SPDX-License-Identifier: Apache-2.0
#include "experiments/slurm/array_plan.h"

#include <algorithm>
#include <numeric>

#include "comm/backend_registry.h"
#include "experiments/run/run_forecast.h"

namespace droptest::experiments {
namespace {

constexpr double kCautiousCoreOperationsPerSecond = 1e10;
constexpr double kCautiousGpuOperationsPerSecond = 1e13;
constexpr double kTaskSeconds = 300;

/// Cuts the runs of an array into tasks.
std::vector<TaskRuns> cut_into_tasks(const SweepPlan& plan, const TaskRuns& runs, std::uint64_t runs_per_task) {
  std::vector<TaskRuns> tasks;
  double seconds = 0;
  for (const std::size_t run : runs) {
    const double more = cautious_seconds(plan.runs[run].run.config);
    const bool full =
        tasks.empty() || (runs_per_task == 0 ? seconds + more > kTaskSeconds : tasks.back().size() == runs_per_task);
    if (full) {
      tasks.emplace_back();
      seconds = 0;
    }
    tasks.back().push_back(run);
    seconds += more;
  }
  return tasks;
}

std::string counted(int number, const std::string& noun, const std::string& plural) {
  return std::to_string(number) + " " + (number == 1 ? noun : plural);
}

}  // namespace

TaskResources resources_of(const RunConfig& config) {
  const int ranks = config.parallel.world_size();
  const int threads = config.backend.threads_per_rank;
  const bool on_gpus = config.device == Device::kCuda;
  if (comm::backend_entry(config.backend.name).rank_kind == comm::RankKind::kThreads) {
    return {TaskResources::Ranks::kThreads, 1, ranks * threads, on_gpus ? 1 : 0};
  }
  return {TaskResources::Ranks::kProcesses, ranks, threads, on_gpus ? ranks : 0};
}

std::string resources_text(const TaskResources& resources) {
  std::string text = counted(resources.processes, "process", "processes") + " with " +
                     counted(resources.cores_per_process, "core", "cores");
  if (resources.processes > 1) text += " each";
  if (resources.gpus > 0) text += " and " + counted(resources.gpus, "GPU", "GPUs") + " in all";
  return text;
}

double cautious_seconds(const RunConfig& config) {
  const TaskResources resources = resources_of(config);
  const double speed = resources.gpus > 0
                           ? resources.gpus * kCautiousGpuOperationsPerSecond
                           : resources.processes * resources.cores_per_process * kCautiousCoreOperationsPerSecond;
  return run_operations(config) / speed;
}

std::size_t ArrayPlan::run_count() const {
  return std::accumulate(tasks.begin(), tasks.end(), std::size_t{0},
                         [](std::size_t sum, const TaskRuns& task) { return sum + task.size(); });
}

std::vector<ArrayPlan> plan_arrays(const SweepPlan& plan, std::span<const std::size_t> runs,
                                   const GroupingOptions& options) {
  std::vector<std::pair<TaskResources, TaskRuns>> classes;  // classes in the order of their first runs
  for (const std::size_t run : runs) {
    const TaskResources resources = resources_of(plan.runs[run].run.config);
    auto found = std::find_if(classes.begin(), classes.end(), [&](const auto& one) { return one.first == resources; });
    if (found == classes.end()) found = classes.insert(classes.end(), {resources, {}});
    found->second.push_back(run);
  }
  std::vector<ArrayPlan> arrays;
  for (const auto& [resources, members] : classes) {
    const std::vector<TaskRuns> tasks = cut_into_tasks(plan, members, options.runs_per_task);
    for (std::size_t first = 0; first < tasks.size(); first += options.tasks_per_array) {
      const std::size_t end = std::min<std::size_t>(tasks.size(), first + options.tasks_per_array);
      arrays.push_back({resources, std::vector<TaskRuns>(tasks.begin() + static_cast<std::ptrdiff_t>(first),
                                                         tasks.begin() + static_cast<std::ptrdiff_t>(end))});
    }
  }
  return arrays;
}

}  // namespace droptest::experiments
