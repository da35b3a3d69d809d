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

/// The numbers of labelled examples that were cut at the length of a sequence.
struct CutExamples {
  std::uint64_t training = 0;
  std::uint64_t validation = 0;
};

/// The outcome of a training run.
struct TrainingOutcome {
  /// The step at which the run ended because it diverged; absent: it completed. It is the first step with a loss or
  /// gradient norm that is not finite on some rank. With a loss scale it is the last one of too many such steps in a
  /// row, or the last step of a run that skipped every update.
  std::optional<std::uint64_t> diverged_step;
  std::uint64_t steps = 0;                 ///< finished optimizer steps
  std::uint64_t tokens = 0;                ///< tokens trained on
  std::optional<double> train_final_loss;  ///< mean over the last ten logged steps
  std::optional<double> validation_final_loss;
  std::optional<double> validation_best_loss;
  std::uint64_t validation_tokens = 0;
  std::optional<Predictions> predictions;  ///< a classification head's at the last validation, on rank 0
  CutExamples cut_examples;
  std::optional<double> selection_loss;  ///< the loss of the weights after the last step
  std::uint64_t selection_tokens = 0;
  std::uint64_t skipped_steps = 0;  ///< steps with an overflow; `steps` includes them
  double loss_scale = 1;            ///< the scale of the next step
  std::vector<StageFailure> stage_failures;
  double seconds = 0;
  double tokens_per_second = 0;  ///< rate of the training steps, without evaluation and sampling
  std::vector<comm::ClassStatistics> statistics;
  std::optional<comm::VirtualTime> time;        ///< absent if there is no time model
  models::StoredTensors weights;                ///< the final weights on rank 0, if the config keeps them
  std::vector<std::uint64_t> resumed_at;        ///< steps of the checkpoints that the run continued from
  std::uint64_t steps_with_fewer_replicas = 0;  ///< steps of this membership with fewer replicas
  std::optional<std::uint64_t> stopped_after;   ///< the step after which the run ended on request
  bool replicas_change = false;                 ///< whether the run stopped for other replicas to go on
  std::string alert;                            ///< the reason of the alert that ended the run; empty: none did
  CheckpointTotals checkpoints;
  std::optional<StartRecord> started_from;
  std::string earlier_memberships;                ///< JSON with their losses (Manifest::memberships); empty: none
  std::optional<DataRecord> data;                 ///< absent if the data is one file
  MemoryRecord memory;                            ///< the memory that this rank used
  std::optional<ReplacedKernel> replaced_kernel;  ///< set by train_run()
};

}  // namespace droptest::experiments
