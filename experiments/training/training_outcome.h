// SPDX-License-Identifier: Apache-2.0
// The results of one rank's training of a run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/lossy/clock/time_model.h"
#include "comm/lossy/statistics/loss_statistics.h"
#include "experiments/records/data_record.h"
#include "experiments/records/memory_record.h"
#include "experiments/records/replaced_kernel.h"
#include "experiments/records/run_records.h"
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

}  // namespace droptest::experiments
