// SPDX-License-Identifier: Apache-2.0
// The planned memory of a whole model.
#pragma once

#include <cstdint>

#include "models/gpt2/gpt2_tensors.h"
#include "models/gpt2/planned_memory.h"

namespace droptest::models {

/// Gpt2::memory_bytes() of a rank that has trained on and evaluated batches of that shape, without a StatefulAttention.
inline std::uint64_t planned_bytes(const Gpt2Config& config, int tensor_ranks, int rank, const OpsForm& form,
                                   const BatchShape& shape, const SlotOptions& options = {},
                                   const ShardOptions& sharding = {}, int data_ranks = 1, int data_rank = 0,
                                   const OptimizerConfig& optimizer = {}) {
  return state_use(gpt2_tensors(config, tensor_ranks, rank), form, sharding, data_ranks, data_rank, optimizer).total() +
         pass_use(config, {tensor_ranks, rank}, form, shape, options).memory;
}

}  // namespace droptest::models
