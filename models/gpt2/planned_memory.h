// SPDX-License-Identifier: Apache-2.0
// Computes the memory of a rank's model by dry runs.
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

/// The memory of training and evaluation on batches of one shape. In bytes, except `slots` and `states`.
struct PassUse {
  std::uint64_t memory = 0;        ///< activations, without those of a StatefulAttention
  std::uint64_t largest_slot = 0;  ///< the largest slot of a micro-batch over the stages
  std::uint64_t slots = 0;         ///< number of slots, over all stages of the rank
  std::uint64_t states = 0;        ///< number of states of a StatefulAttention: one for each block and slot
  std::uint64_t stored = 0;        ///< offloaded residual streams of all slots
  std::uint64_t passing = 0;       ///< upper bound for the buffers of offloading
};
/// `batch` has the shape of this rank's tokens. Needs no device. If sizes may not fit into 64 bits, `memory` is 2^63
/// and the other members are 0. Throws: ConfigError for a model that the ranks do not support.
PassUse pass_use(const Gpt2Config& config, const ModelPart& part, const OpsForm& form, const BatchShape& batch,
                 const SlotOptions& options = {});

/// The memory of parameters, gradients and moments of these tensors on that data-parallel rank. Offloaded state counts
/// as memory if it has more than 2^24 pieces (ShardOptions::offload_piece_elems), which no machine can store. Throws:
/// as ParameterStore.
MemoryUse state_use(std::vector<Gpt2Tensor> tensors, const OpsForm& form, const ShardOptions& sharding, int data_ranks,
                    int data_rank, const OptimizerConfig& optimizer);

}  // namespace droptest::models
