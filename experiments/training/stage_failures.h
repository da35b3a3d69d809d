// SPDX-License-Identifier: Apache-2.0
// Stages of a pipeline that lose their weights, and the replacements of these.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/parallel_layout.h"
#include "experiments/records/metrics.h"
#include "experiments/spec/run_config.h"
#include "experiments/training/trainer_part.h"
#include "experiments/training/training_model.h"
#include "sim/state_visitor.h"

namespace droptest::experiments {

/// The stages that fail before a step, in order: a pure function of (seeds.network, step). Each stage between the first
/// and the last fails with the configured probability. No stage fails before the first step: nothing is trained yet.
std::vector<int> failing_stages(const RunConfig& config, std::uint64_t step);

/// A failed stage has lost its weights and its optimizer's state. Its blocks get the configured replacement, and its
/// optimizer begins anew; the other stages train on. Source: CheckFree, Blagoev et al. 2025 (arXiv:2506.15461),
/// algorithm 1: the weights of the mean are the squared norms of the neighbours' last gradients. Embeddings and head,
/// on the first and the last stage, do not fail.
/// Owner: one rank. Ranks: all of the run. Everything is borrowed.
class StageFailures : public TrainerPart {
 public:
  /// `record`: gets each failure. `network`: the loss layer; its clock stops meanwhile.
  StageFailures(const RunConfig& config, comm::Communicator& pipeline_group, comm::Communicator& tensor_group,
                TrainingModel& model, comm::LossyCommunicator& network, std::vector<StageFailure>& record)
      : config_(config),
        pipeline_(pipeline_group),
        tensor_group_(tensor_group),
        model_(model),
        network_(network),
        record_(record) {}

  /// Replaces the stages that fail before that step, while the gradients of the previous step are still there. Reliable
  /// messages of class control carry the neighbours' weights.
  void begin_step(std::uint64_t step, MetricsLine& line) override;

  /// Visits the squared norm of the last gradients, because the gradients are not there after a restart.
  void visit_state(sim::StateVisitor& visitor);

 private:
  /// The weights of a stage's blocks, and their share in a mean.
  struct Blocks {
    std::vector<float> values;
    double weight = 0;
  };
  Blocks own_blocks();
  int layers_of(int stage) const;
  void replace(const std::vector<Blocks>& neighbours, std::uint64_t step);

  const RunConfig& config_;
  comm::Communicator& pipeline_;
  comm::Communicator& tensor_group_;
  TrainingModel& model_;
  comm::LossyCommunicator& network_;
  std::vector<StageFailure>& record_;
  std::optional<double> restored_weight_;  ///< Blocks::weight of the first step after a restart
};

}  // namespace droptest::experiments
