// SPDX-License-Identifier: Apache-2.0
// Where the time of a training step goes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "comm/wall_times.h"

namespace droptest::models {

/// The kinds of work of a rank. Products: GEMMs with weight matrices; those inside attention count as attention.
/// Reductions: collectives with all that they wait for. Recomputation: all operations of blocks that are computed
/// again, and the saved values that they begin with.
enum class Phase : std::uint8_t {
  kProducts,
  kAttention,
  kLayerNorm,
  kGelu,
  kCrossEntropy,
  kEmbedding,
  kBias,
  kReductions,
  kGradientNorm,
  kOptimizer,
  kRecomputation
};
inline constexpr std::array<std::string_view, 11> kPhaseNames = {
    "products", "attention",  "layer_norm",    "gelu",      "cross_entropy", "embedding",
    "bias",     "reductions", "gradient_norm", "optimizer", "recomputation"};

/// The phases are its first activities.
using PhaseTimes = comm::WallTimes;

/// Times of phases alone; the last activity is the rest.
inline constexpr std::size_t kPhasesAndRest = kPhaseNames.size() + 1;

/// A phase as long as it lives; nothing without times.
class PhaseScope : public PhaseTimes::Scope {
 public:
  PhaseScope(PhaseTimes* times, Phase phase, PhaseTimes::Inner inner = PhaseTimes::Inner::kCounts)
      : Scope(times, static_cast<std::size_t>(phase), inner) {}
};

}  // namespace droptest::models
