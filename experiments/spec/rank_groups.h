// SPDX-License-Identifier: Apache-2.0
// The groups of ranks that one rank's model gets.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/parallel_layout.h"
#include "experiments/spec/run_config.h"
#include "models/gpt2/gpt2.h"

namespace droptest::experiments {

/// The groups of one rank. Owner: the rank. Ranks: all of the world.
class RankGroups {
 public:
  /// `world`: the ranks of the config's layout. The world and the config are borrowed. `plan`: pipeline_plan(config).
  RankGroups(const RunConfig& config, std::shared_ptr<const models::PipelinePlan> plan, comm::Communicator& world);

  comm::ParallelGroups& layout() { return groups_; }
  /// The ranks that share the model's layers; a group of one rank if there are no others.
  comm::Communicator& tensor() const { return tensor_; }
  /// The ranks of the stages of one pipeline; null if there is one stage.
  comm::Communicator* pipeline() const;
  /// The ranks that train the model together: with outer steps the ranks of one worker, without them all replicas. Call
  /// it once: it makes the group of a worker.
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
