// SPDX-License-Identifier: Apache-2.0
// A schedule with its messages and the places of its saved activations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/pipeline/schedule.h"

namespace droptest::models {

/// What a rank does next.
struct PipelineStep {
  enum class Kind : std::uint8_t {
    kReceive,  ///< starts to receive the input of the action
    kCompute,  ///< waits for the input, then computes the action
    kSend,     ///< starts to send the result of the action, just computed
  };
  Kind kind = Kind::kCompute;
  Action action;
  int peer = -1;  ///< the other rank of a message
  int slot = 0;   ///< of the stage's saved activations, from 0

  /// "receive for 2F0 from rank 1"
  std::string text() const;
};

/// The steps of each rank, in order. Messages between two ranks match in the order of their sends, whatever their
/// direction of the pipeline, and receives are started in this order, each at least one action ahead of its use.
struct PipelineProgram {
  std::vector<std::vector<PipelineStep>> ranks;
  /// Of each stage: its micro-batches between the start of a receive and the last use, at most.
  std::vector<int> slots;
  std::vector<std::vector<int>> slot_of;  ///< [stage][micro-batch]
};

/// The program of a valid schedule.
PipelineProgram make_program(const PipelineSchedule& schedule);

/// Throws: ConfigError that names rank, action and peer unless all ranks reach their end although each send waits until
/// its receive was started, no message is expected in the place of another one, and no slot is taken twice.
void validate(const PipelineProgram& program);

}  // namespace droptest::models
