// SPDX-License-Identifier: Apache-2.0
// One rank's training of a run.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/clock/time_model.h"
#include "comm/lossy/statistics/loss_statistics.h"
#include "experiments/checkpoint/checkpointer.h"
#include "experiments/data/corpus.h"
#include "experiments/records/data_record.h"
#include "experiments/records/metrics.h"
#include "experiments/records/replaced_kernel.h"
#include "experiments/spec/run_config.h"
#include "experiments/training/alert_watch.h"
#include "experiments/training/classification.h"
#include "models/files/safetensors.h"

namespace droptest::experiments {

/// Labelled examples of more tokens than a sequence has, which lost the last ones.
struct CutExamples {
  std::uint64_t training = 0;
  std::uint64_t validation = 0;
};

/// The outcome of a training run.
struct TrainingOutcome {
  /// The first step whose loss or gradient norm was not finite on any rank, or with a loss scale the last one of too
  /// many in a row; the run ended there. Absent: completed.
  std::optional<std::uint64_t> diverged_step;
  std::uint64_t steps = 0;                 ///< finished optimizer steps
  std::uint64_t tokens = 0;                ///< trained on
  std::optional<double> train_final_loss;  ///< mean over the last ten logged steps
  std::optional<double> validation_final_loss;
  std::optional<double> validation_best_loss;
  std::uint64_t validation_tokens = 0;
  std::optional<Predictions> predictions;  ///< of a classification head at the last validation, on rank 0
  CutExamples cut_examples;
  std::optional<double> selection_loss;  ///< of the weights after the last step
  std::uint64_t selection_tokens = 0;
  std::uint64_t skipped_steps = 0;  ///< with an overflow, among them
  double loss_scale = 1;            ///< of the next step
  std::vector<StageFailure> stage_failures;
  double seconds = 0;
  double tokens_per_second = 0;  ///< of the training steps alone: evaluation and sampling take no part
  std::vector<comm::ClassStatistics> statistics;
  std::optional<comm::VirtualTime> time;        ///< absent without a time model
  models::StoredTensors weights;                ///< rank 0, where the config keeps them: the final weights
  std::vector<std::uint64_t> resumed_at;        ///< steps of the checkpoints that the run continued from
  std::uint64_t steps_with_fewer_replicas = 0;  ///< since the last of earlier_memberships
  std::optional<std::uint64_t> stopped_after;   ///< the step after which the run ended, because that was asked for
  bool replicas_change = false;                 ///< it was stopped for other replicas to go on
  std::string alert;                            ///< why an alert ended the run; empty: none did
  CheckpointTotals checkpoints;
  std::optional<StartRecord> started_from;
  std::string earlier_memberships;  ///< their losses as JSON (Manifest::memberships); empty: there are none
  std::optional<DataRecord> data;   ///< absent where the data is one file
  MemoryRecord memory;              ///< that this rank used
  std::optional<ReplacedKernel> replaced_kernel;  ///< set by train_run()
};

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

/// Trains the run over `group`, with the losses of config.network between the ranks.
/// Ranks: all of the group, with equal arguments. Losses, norms and the decision to end are the same on every rank.
/// Determinism: with `local` the losses are a pure function of (config, corpus), bit for bit, whatever
/// backend.threads_per_rank is, and wherever it was interrupted. Errors: those of the communicator, the model and the
/// checkpointer.
TrainingOutcome train(const RunConfig& config, const Corpus& corpus, comm::Communicator& group,
                      const TrainingHooks& hooks);
/// The same without checkpoints.
TrainingOutcome train(const RunConfig& config, const Corpus& corpus, comm::Communicator& group,
                      const std::function<void(const MetricsLine&)>& on_line);

}  // namespace droptest::experiments
