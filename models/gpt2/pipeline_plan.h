// SPDX-License-Identifier: Apache-2.0
// The stages of a model and the ranks that have them.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "models/gpt2/batch.h"
#include "models/gpt2/stage_range.h"
#include "models/pipeline/pipeline_program.h"

namespace droptest::models {

/// The stages of a model, from the embedding to the head, and the steps of the ranks of a pipeline.
struct PipelinePlan {
  std::vector<StageRange> stages;
  PipelineProgram program;

  /// The stages of one rank of the pipeline, in order.
  std::vector<int> stages_of(int rank) const;
  /// Throws: std::out_of_range for a stage that does not exist.
  int rank_of(int stage) const { return program.rank_of(stage); }
  /// The activations that a stage's forward passes save: kForBackward, or kForSplitBackward if the program splits them.
  Keep keep_of(int stage) const;
  /// The directions in which a stage needs a buffer for inputs that are sent past a stage. The first stage of a
  /// direction counts, too, because it sends its own input.
  SentPast sent_past_of(int stage) const;
};

/// The ranks that have the stages of one model.
struct PipelineParallel {
  comm::Communicator* group = nullptr;  ///< borrowed; null: one rank has all stages
  int stride = 1;                       ///< distance in ModelRanks::all from a rank to the next one of its pipeline
  std::shared_ptr<const PipelinePlan> plan{};  ///< shared by all users; null: the whole model is one stage

  int rank() const { return group == nullptr ? 0 : group->rank(); }
};

}  // namespace droptest::models
