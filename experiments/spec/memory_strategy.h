// SPDX-License-Identifier: Apache-2.0
// The section `memory` of a spec.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// A named set of the section's members.
struct MemoryStrategy {
  std::string_view name;
  models::Recompute recompute;
  bool cut;
  bool offload;
};
/// The strategies, in the order of the memory that they save; the first one saves least.
inline constexpr std::array<MemoryStrategy, 4> kMemoryStrategies = {{
    {"basic", models::Recompute::kSaveAll, false, false},
    {"standard", models::Recompute::kSelective, false, false},
    {"aggressive", models::Recompute::kBlock, true, false},
    {"extreme", models::Recompute::kBlock, true, true},
}};

/// Why the tensor-parallel ranks of the run may have different activations; empty: they are equal.
std::string why_ranks_differ(const RunConfig& config);

/// Why a block that is computed again has other values than in the forward pass; empty: it has the same.
std::string why_recomputation_differs(const RunConfig& config);
/// Why a block that is computed again may gather another input than in the forward pass; empty: it gathers the same, or
/// none, since tokens are not cut.
std::string why_inputs_differ(const RunConfig& config);
/// Whether a block gathers its inputs before it is computed again, if tokens are cut: "full" does, and on CUDA, where
/// GELU is computed from the projection's inputs (OpsForm::gelu_from_projection()), "selective", too.
bool gathers_inputs_again(const RunConfig& config);

/// The strategy as this run has it: nothing is cut if there is one tensor-parallel rank.
MemoryConfig memory_of_strategy(const MemoryStrategy& strategy, const RunConfig& config);

}  // namespace droptest::experiments
