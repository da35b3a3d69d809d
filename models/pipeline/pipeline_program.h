// SPDX-License-Identifier: Apache-2.0
// A schedule with its messages and the places of its saved activations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "models/pipeline/schedule.h"

namespace droptest::models {

/// The directions in which each stage's input is sent past it, for the fill `skip`: a message of that input goes with
/// each message of the stage's result, from the rank that has it to the rank that receives the result. It is the result
/// of the stage before, in the order of the direction, or that of the embedding or the head where there is none.
struct SentPast {
  bool activations = false;
  bool gradients = false;  ///< the gradient of a stage's output is the input of its backward pass

  bool of(const Action& action) const { return action.is_forward() ? activations : gradients; }
};

/// What a rank does next.
struct PipelineStep {
  enum class Kind : std::uint8_t {
    kReceive,  ///< starts to receive the input of the action, or the input of the stage before, sent past it
    kCompute,  ///< waits for the input, then computes the action
    kSend,     ///< starts to send the result of the action, just computed, or its input past its own stage
  };
  Kind kind = Kind::kCompute;
  Action action;
  int peer = -1;  ///< the other rank of a message
  int slot = 0;   ///< of the stage's saved activations, from 0
  int past = -1;  ///< of a message: the stage that it is sent past; -1: none

  bool is_past() const { return past >= 0; }
  /// "receive for 2F0 from rank 1"
  std::string text() const;
};

/// A result that another action needs.
struct Delivery {
  Action user;    ///< needs it; its kind is kForward or kBackward
  int past = -1;  ///< as PipelineStep::past
};

/// The steps of each rank, in order. Messages between two ranks match in the order of their sends, whatever their
/// direction of the pipeline, and receives are started in this order, each at least one action ahead of its use.
struct PipelineProgram {
  std::vector<std::vector<PipelineStep>> ranks;
  /// Of each stage: its micro-batches between the start of a receive and the last use, at most.
  std::vector<int> slots;
  std::vector<std::vector<int>> slot_of;  ///< [stage][micro-batch]
  std::vector<int> rank_of_stage;
  SentPast sent_past;

  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  int rank_of(int stage) const { return rank_of_stage.at(static_cast<std::size_t>(stage)); }
  /// The deliveries of an action, in the order of the sends.
  std::vector<Delivery> deliveries(const Action& action) const;
  /// Whether something was sent past the stage before, in the direction of the action, for the action's input.
  bool has_substitute(const Action& action) const;
};

/// The program of a valid schedule.
PipelineProgram make_program(const PipelineSchedule& schedule, const SentPast& sent_past = {});

/// Throws: ConfigError that names rank, action and peer unless all ranks reach their end although each send waits until
/// its receive was started, no message is expected in the place of another one, and no slot is taken twice.
void validate(const PipelineProgram& program);

}  // namespace droptest::models
