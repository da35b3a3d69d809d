// SPDX-License-Identifier: Apache-2.0
// The groups of ranks that one rank's model gets.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/parallel_layout.h"
#include "experiments/spec/run_config.h"
#include "models/gpt2/gpt2.h"

namespace droptest::experiments {

/// Owner: one rank. Ranks: all of the world.
class RankGroups {
 public:
  /// The world has the ranks of the config's layout, and is borrowed, as the config. `plan` is pipeline_plan(config).
  RankGroups(const RunConfig& config, std::shared_ptr<const models::PipelinePlan> plan, comm::Communicator& world);

  comm::ParallelGroups& layout() { return groups_; }
  /// The ranks that share the model's layers: this one alone where there are no others.
  comm::Communicator& tensor() const { return tensor_; }
  /// Null: there is one stage.
  comm::Communicator* pipeline() const;
  /// Those that train the model together. With outer steps, a worker's ranks train alone; without, replicas train as
  /// one. Call it once: it makes the group of a worker.
  models::ModelRanks model_ranks();

 private:
  const RunConfig& config_;
  std::shared_ptr<const models::PipelinePlan> plan_;
  comm::ParallelGroups groups_;
  std::unique_ptr<comm::Communicator> alone_;
  std::unique_ptr<comm::Communicator> worker_;
  comm::Communicator& tensor_;
};

}  // namespace droptest::experiments
