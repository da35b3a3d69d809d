// SPDX-License-Identifier: Apache-2.0
// Where the time of a training step goes.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace droptest::models {

/// The kinds of work of a rank. Products: GEMMs with weight matrices; those inside attention count as attention.
/// Reductions: collectives with all that they wait for.
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
  kOptimizer
};
inline constexpr std::array<std::string_view, 10> kPhaseNames = {
    "products",  "attention", "layer_norm", "gelu",          "cross_entropy",
    "embedding", "bias",      "reductions", "gradient_norm", "optimizer"};

/// Seconds spent in each phase by one rank.
struct PhaseTimes {
  std::array<double, kPhaseNames.size()> seconds{};
};

/// Adds the time until its end to a phase; does nothing without times to add to.
class PhaseScope {
 public:
  PhaseScope(PhaseTimes* times, Phase phase) : times_(times), phase_(phase) {
    if (times_ != nullptr) start_ = std::chrono::steady_clock::now();
  }
  ~PhaseScope() {
    if (times_ == nullptr) return;
    times_->seconds[static_cast<std::size_t>(phase_)] +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  PhaseTimes* times_;
  Phase phase_;
  std::chrono::steady_clock::time_point start_{};
};

}  // namespace droptest::models
