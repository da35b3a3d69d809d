// SPDX-License-Identifier: Apache-2.0
// The connections of one rank's training to the records of its run and to the one who started it.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "experiments/checkpoint/checkpointer.h"
#include "experiments/data/corpus.h"
#include "experiments/records/data_record.h"
#include "experiments/records/metrics.h"
#include "experiments/records/replaced_kernel.h"
#include "experiments/training/alert_watch.h"

namespace droptest::experiments {

/// The connections of a run to its records and to the one who started it. A hook is called only on rank 0, unless its
/// comment names every rank.
struct TrainingHooks {
  /// Called before the first line. `step`: the step of the checkpoint from which the run continues; absent: it starts
  /// anew.
  std::function<void(std::optional<std::uint64_t> step)> on_start = [](const auto&) {};
  /// Called for each logged step, as it is finished.
  std::function<void(const MetricsLine&)> on_line = [](const MetricsLine&) {};
  /// Called after the last profiled step with the spans of each rank, for trace_document().
  std::function<void(const std::vector<nlohmann::json>&)> on_trace = [](const auto&) {};
  std::function<void(const LostShard&)> on_lost_shard = [](const LostShard&) {};
  std::function<void(const ReplacedKernel&)> on_replaced_kernel = [](const auto&) {};
  Checkpointer::Report on_checkpoint_error = [](std::uint64_t, const std::string&) {};
  /// How many times ranks of earlier attempts could not leave their states: they count as checkpoints that failed.
  std::uint64_t states_not_left = 0;
  /// Whether the run is to end with a checkpoint. Called after each step, if the config takes a checkpoint on a signal.
  std::function<bool()> stop_requested = [] { return false; };
  /// Called on every rank, with equal results: whether other replicas go on after that step. The run then ends with a
  /// checkpoint there. If it is only requested and cannot be written, the run goes on.
  std::function<std::optional<Checkpointer::Because>(std::uint64_t step)> replicas_change_after =
      [](std::uint64_t) -> std::optional<Checkpointer::Because> { return std::nullopt; };
  /// Called on every rank, before each step and after each forward pass of a step. No rank waits for another one there.
  std::function<void(int rank, std::uint64_t step)> before_step = [](int, std::uint64_t) {};
  std::function<void(int rank, std::uint64_t step)> after_forward = [](int, std::uint64_t) {};
  /// Called several times in a step and in an evaluation, and while ranks wait for files.
  std::function<void()> is_at_work = [] {};
  /// Called after each logged step, if an alert of the config can ask all ranks for something.
  std::function<AlertRequest()> take_alert_request = [] { return AlertRequest(); };
  /// Called at the end, on the thread of the other calls.
  std::function<void()> on_end = [] {};
  /// Called on every rank with its state, returns the state that checkpoints have. Tests leave out parts of it.
  std::function<TrainingState(int rank, TrainingState)> state = [](int, TrainingState all) { return all; };
  /// Equal on every rank. Absent: the run takes no checkpoints.
  std::optional<CheckpointPlace> checkpoints;
};

}  // namespace droptest::experiments
