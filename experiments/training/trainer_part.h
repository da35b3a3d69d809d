// SPDX-License-Identifier: Apache-2.0
// The parts of a rank's training that run before and after the update of each step.
#pragma once

#include <cstdint>

#include "experiments/records/metrics.h"

namespace droptest::experiments {

/// A step after its update, as the parts of the training see it.
struct FinishedStep {
  std::uint64_t step;
  bool is_last;  ///< the last step of the run
  MetricsLine& line;
  /// Whether the line is written. A part that puts measurements into the line sets it.
  bool is_logged = false;
};

/// Whether a step is a multiple of `every`; no step is a multiple of 0.
constexpr bool is_multiple(std::uint64_t step, std::uint64_t every) { return every != 0 && step % every == 0; }

/// A part of one rank's training. Owner: the trainer, which calls its parts in their order. Ranks: all of the run call
/// the same functions after the same steps.
class TrainerPart {
 public:
  TrainerPart() = default;
  virtual ~TrainerPart() = default;
  TrainerPart(const TrainerPart&) = delete;
  TrainerPart& operator=(const TrainerPart&) = delete;

  /// Called before the batches of the step are taken.
  virtual void begin_step(std::uint64_t /*step*/, MetricsLine& /*line*/) {}
  /// Called after the update, while the virtual clock pauses.
  virtual void after_update(FinishedStep& /*finished*/) {}
};

}  // namespace droptest::experiments
