// SPDX-License-Identifier: Apache-2.0
// A pipeline schedule with its messages and with slots for saved activations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "models/pipeline/schedule.h"

namespace droptest::models {

/// The directions in which each stage's input is sent past the stage, for the fill `skip`: the receiver of a stage's
/// result also receives a message with the stage's input, and fills lost elements from it. The input is the result of
/// the previous stage in that direction; for the first stage, it is the output of the embedding or the gradient of the
/// head.
struct SentPast {
  bool activations = false;
  bool gradients = false;  ///< the gradient of a stage's output is the input of its backward pass

  bool of(const Action& action) const { return action.is_forward() ? activations : gradients; }
};

/// A step of a rank's program.
struct PipelineStep {
  enum class Kind : std::uint8_t {
    kReceive,  ///< starts to receive the action's input, or an input sent past a stage
    kCompute,  ///< waits for the action's input and computes the action
    kSend,     ///< starts to send the action's result, or an input past a stage
  };
  Kind kind = Kind::kCompute;
  Action action;
  int peer = -1;  ///< the other rank of a message
  int slot = 0;   ///< slot of the stage's saved activations, from 0
  int past = -1;  ///< stage that the message is sent past; -1: none

  bool is_past() const { return past >= 0; }
  /// The step in messages: "receive for 2F0 from rank 1".
  std::string text() const;
};

/// A delivery of an action's result or input to another action.
struct Delivery {
  Action user;    ///< action that needs it, of kind kForward or kBackward
  int past = -1;  ///< stage that the input is sent past; -1: none
};

/// The steps of each rank, in order. Between two ranks, receives start in the order of the sends, for both directions
/// of the pipeline together. A receive starts when the sender begins to compute the result, in the times of
/// time_schedule().
struct PipelineProgram {
  std::vector<std::vector<PipelineStep>> ranks;
  /// The number of slots of each stage: the largest number of micro-batches between the start of their receive and
  /// their last use.
  std::vector<int> slots;
  std::vector<std::vector<int>> slot_of;  ///< the slot of [stage][micro-batch]
  std::vector<int> rank_of_stage;
  SentPast sent_past;

  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  int rank_of(int stage) const { return rank_of_stage.at(static_cast<std::size_t>(stage)); }
  /// The deliveries of an action, in the order of the sends.
  std::vector<Delivery> deliveries(const Action& action) const;
  /// Whether an input that is sent past the previous stage can replace lost elements of the action's input.
  bool has_substitute(const Action& action) const;
};

/// The program of a valid schedule.
PipelineProgram make_program(const PipelineSchedule& schedule, const SentPast& sent_past = {});

/// Throws: ConfigError that names rank, action and peer, unless: all ranks reach their end although each send waits
/// until its receive has started; each receive gets the message that it expects; and no slot is used twice at a time.
void validate(const PipelineProgram& program);

}  // namespace droptest::models
