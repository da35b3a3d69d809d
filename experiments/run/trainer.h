// SPDX-License-Identifier: Apache-2.0
// One rank's training of a run.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/clock/time_model.h"
#include "comm/lossy/statistics/loss_statistics.h"
#include "experiments/data/corpus.h"
#include "experiments/records/metrics.h"
#include "experiments/run_config.h"
#include "models/files/safetensors.h"

namespace droptest::experiments {

/// The outcome of a training run.
struct TrainingOutcome {
  /// The first step whose loss or gradient norm was not finite on any rank; the run ended there. Absent: completed.
  std::optional<std::uint64_t> diverged_step;
  std::uint64_t steps = 0;                 ///< finished optimizer steps
  std::uint64_t tokens = 0;                ///< trained on
  std::optional<double> train_final_loss;  ///< mean over the last ten logged steps
  std::optional<double> validation_final_loss;
  std::optional<double> validation_best_loss;
  std::uint64_t validation_tokens = 0;
  std::optional<double> selection_loss;  ///< of the weights after the last step
  std::uint64_t selection_tokens = 0;
  std::vector<StageFailure> stage_failures;
  double seconds = 0;
  double tokens_per_second = 0;  ///< of the training steps alone: evaluation and sampling take no part
  std::vector<comm::ClassStatistics> statistics;
  std::optional<comm::VirtualTime> time;  ///< absent without a time model
  models::StoredTensors weights;          ///< rank 0, where the config keeps them: the final weights
};

/// Trains the run over `group`, with the losses of config.network between the ranks.
/// `on_line` is called on rank 0 alone, for each logged step, as it is finished.
/// Ranks: all of the group, with equal arguments. Losses, norms and the decision to end are the same on every rank.
/// Determinism: with `local` the losses are a pure function of (config, corpus), bit for bit, whatever
/// backend.threads_per_rank is. Errors: those of the communicator and the model.
TrainingOutcome train(const RunConfig& config, const Corpus& corpus, comm::Communicator& group,
                      const std::function<void(const MetricsLine&)>& on_line);

}  // namespace droptest::experiments
