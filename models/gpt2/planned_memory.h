// SPDX-License-Identifier: Apache-2.0
// The memory of a rank's model, found by dry runs.
#pragma once

#include <cstdint>
#include <vector>

#include "models/gpt2/batch.h"
#include "models/gpt2/parameter_store.h"
#include "models/gpt2/pipeline_plan.h"
#include "models/gpt2/stage_range.h"
#include "models/ops/ops_form.h"
#include "models/optimizer.h"

namespace droptest::models {

/// The part of a model that a rank has.
struct ModelPart {
  int tensor_ranks = 1;
  int tensor_rank = 0;
  const PipelinePlan* plan = nullptr;  ///< borrowed; null: all stages
  int pipeline_rank = 0;
};

/// What training on batches of one shape, and evaluations of them, take. In bytes, but for the two numbers.
struct PassUse {
  std::uint64_t memory = 0;        ///< activations, but for those of an attention with state
  std::uint64_t largest_slot = 0;  ///< a micro-batch between its passes, in the stage where it takes most
  std::uint64_t slots = 0;         ///< number of slots of all stages of the rank
  std::uint64_t states = 0;        ///< number of states of an attention: each block has one for each slot
  std::uint64_t stored = 0;        ///< residual streams of all slots that are outside of memory
  std::uint64_t passing = 0;       ///< buffers between memory and storage, at most
};
/// Batch: of this rank's tokens. Needs no device. The memory is 2^63 where 64 bits cannot count it. Throws: ConfigError
/// for a model that the ranks cannot have.
PassUse pass_use(const Gpt2Config& config, const ModelPart& part, const OpsForm& form, const BatchShape& batch,
                 const SlotOptions& options = {});

/// Parameters, gradients and moments of these tensors on that data-parallel rank. Of more than 2^24 pieces outside of
/// memory (ShardOptions::offload_piece_elems), which no machine stores, all counts as memory. Throws: ConfigError of
/// ParameterStore.
MemoryUse state_use(std::vector<Gpt2Tensor> tensors, const OpsForm& form, const ShardOptions& sharding, int data_ranks,
                    int data_rank, const OptimizerConfig& optimizer);

}  // namespace droptest::models
