// SPDX-License-Identifier: Apache-2.0
// The losses that a run measures on data that it does not train on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/lossy_communicator.h"
#include "experiments/data/corpus.h"
#include "experiments/records/metrics.h"
#include "experiments/spec/run_config.h"
#include "experiments/training/classification.h"
#include "experiments/training/evaluation.h"
#include "experiments/training/replica_membership.h"
#include "experiments/training/step_profile.h"
#include "experiments/training/trainer_part.h"
#include "experiments/training/training_model.h"
#include "sim/state_visitor.h"

namespace droptest::experiments {

/// The mean over ranks, the same on every rank. It is exactly the value if all ranks have the same one, and not finite
/// if any rank's value is not. Ranks: all. Traffic is of class control.
double agree_on_mean(double value, comm::Communicator& group, std::string_view name);

/// The tokens or the examples that validation predicts.
std::unique_ptr<const EvaluationData> validation_data(const RunConfig& config, const Corpus& corpus);

/// Measures the validation loss and the selection loss.
/// Owner: one rank's trainer. Ranks: all of the group, after the same steps. Everything is borrowed.
class Validation : public TrainerPart {
 public:
  /// `network`: the loss layer over the group. `there`: the replicas that take part. `is_at_work`: called before the
  /// validation loss and after each batch. A loss that is not finite ends the run: it sets `diverged_step`.
  Validation(const RunConfig& config, const Corpus& corpus, comm::Communicator& group, comm::LossyCommunicator& network,
             TrainingModel& model, const ReplicaMembership& there, StepProfile& profile,
             std::function<void()> is_at_work, std::optional<std::uint64_t>& diverged_step);

  /// Validates after the steps of the config and after the last one.
  void after_update(FinishedStep& finished) override;

  /// Measures the validation loss, and compares the ranks' views of the fates so far.
  void validate(MetricsLine& line);

  /// The losses so far.
  struct Results {
    std::optional<double> final_loss;
    std::optional<double> best_loss;
    std::uint64_t tokens = 0;
    std::optional<double> selection_loss;  ///< the loss of the weights after the last step
    std::uint64_t selection_tokens = 0;
    void visit_state(sim::StateVisitor& visitor) {
      visit_values(visitor, final_loss, best_loss, tokens, selection_loss, selection_tokens);
    }
  };
  Results& results() { return results_; }
  /// A classification head's predictions at the last validation, on rank 0.
  std::optional<Predictions>& predictions() { return predictions_; }

 private:
  /// Measures the loss by which the best of several runs is chosen.
  void select(MetricsLine& line);
  Evaluated evaluate(const EvaluationData& data, const char* name);

  const RunConfig& config_;
  comm::Communicator& group_;
  comm::LossyCommunicator& network_;
  TrainingModel& model_;
  const ReplicaMembership& there_;
  StepProfile& profile_;
  std::function<void()> is_at_work_;
  std::optional<std::uint64_t>& diverged_step_;
  std::unique_ptr<const EvaluationData> data_;
  std::vector<std::int32_t> labels_;            ///< the labels of the examples in data_; empty if data_ is tokens
  std::optional<EvaluationBatches> selection_;  ///< the tokens of the selection loss; absent: there is none
  Results results_;
  std::optional<Predictions> predictions_;
};

}  // namespace droptest::experiments
