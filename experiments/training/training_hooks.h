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

/// The connections of a run to its records and to the one who started it. Called on rank 0 alone.
struct TrainingHooks {
  /// Before the first line: the step of the checkpoint that the run continues from; absent: it starts anew.
  std::function<void(std::optional<std::uint64_t> step)> on_start = [](const auto&) {};
  /// Each logged step, as it is finished.
  std::function<void(const MetricsLine&)> on_line = [](const MetricsLine&) {};
  /// After the last profiled step: the spans of each rank, for trace_document().
  std::function<void(const std::vector<nlohmann::json>&)> on_trace = [](const auto&) {};
  std::function<void(const LostShard&)> on_lost_shard = [](const LostShard&) {};
  std::function<void(const ReplacedKernel&)> on_replaced_kernel = [](const auto&) {};
  Checkpointer::Report on_checkpoint_error = [](std::uint64_t, const std::string&) {};
  /// States of attempts before that ranks could not leave: they count as checkpoints that failed.
  std::uint64_t states_not_left = 0;
  /// Asked after each step, where the config takes a checkpoint on a signal: whether the run is to end with one.
  std::function<bool()> stop_requested = [] { return false; };
  /// On every rank, with equal results: whether other replicas go on after that step. The run ends with a checkpoint
  /// there, as soon as one can be written unless it is required.
  std::function<std::optional<Checkpointer::Because>(std::uint64_t step)> replicas_change_after =
      [](std::uint64_t) -> std::optional<Checkpointer::Because> { return std::nullopt; };
  /// On every rank, before each step and after each forward pass of a step: no rank waits for another one there.
  std::function<void(int rank, std::uint64_t step)> before_step = [](int, std::uint64_t) {};
  std::function<void(int rank, std::uint64_t step)> after_forward = [](int, std::uint64_t) {};
  /// Several times in a step and in an evaluation, and while ranks wait for files.
  std::function<void()> is_at_work = [] {};
  /// Asked after each logged step, where the config has alerts that ask for something.
  std::function<AlertRequest()> take_alert_request = [] { return AlertRequest(); };
  /// At the end, on the thread of the other calls.
  std::function<void()> on_end = [] {};
  /// On every rank: the state of that rank, with visitors between it and checkpoints. Tests leave out parts of it.
  std::function<TrainingState(int rank, TrainingState)> state = [](int, TrainingState all) { return all; };
  /// On every rank. Absent: the run takes no checkpoints.
  std::optional<CheckpointPlace> checkpoints;
};

}  // namespace droptest::experiments
