// SPDX-License-Identifier: Apache-2.0
// The phases among which the time of a training step is divided.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "comm/wall_times.h"

namespace droptest::models {

/// The kinds of work of a rank. kProducts: GEMMs with weight matrices; GEMMs of attention count as attention.
/// kReductions: collectives and their waits. kRecomputation: all operations of recomputed blocks except collectives,
/// and the reading of their saved values.
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

/// Times by activity; the first activities are the phases.
using PhaseTimes = comm::WallTimes;

/// The number of activities if only phases are measured; the last activity is the rest.
inline constexpr std::size_t kPhasesAndRest = kPhaseNames.size() + 1;

/// Counts its lifetime as a phase; does nothing if `times` is null.
class PhaseScope : public PhaseTimes::Scope {
 public:
  PhaseScope(PhaseTimes* times, Phase phase, PhaseTimes::Inner inner = PhaseTimes::Inner::kCounts)
      : Scope(times, static_cast<std::size_t>(phase), inner) {}
};

}  // namespace droptest::models
