// SPDX-License-Identifier: Apache-2.0
// A sender adds its lost contributions to its next message.
#pragma once

#include <cstdint>
#include <span>

#include "comm/communicator.h"
#include "comm/lossy/fill/scratch.h"
#include "comm/lossy/fill/stale_memory.h"
#include "sim/loss/packet_mask.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {

/// One rank's memory, per message, of the sent values that have not arrived yet; zero before the first send. A path
/// adds the memory to its input at the start of a reduction, sends the sum, and stores the lost elements of its own
/// sends. The next message of the same class, name and layer carries them, if it has the same type, size and cut into
/// parts. So the inputs of all messages and the arrived values have equal sums, except for the values that the memories
/// hold, as long as no name changes its type, size or cut: such a change drops the memory of that name. Paths of hops
/// have no memory: a hop loses a partial sum, and its sender does not know which of its own values were in it.
///
/// Source: Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019, algorithm 2, with loss as the compressor.
class ErrorFeedback {
 public:
  /// Takes the memory of a message from `stale`, its owner. `use` tells collectives apart, `cut` is as for
  /// StaleMemory::of(). Throws: ConfigError for a maximum and for integers, which have no feedback.
  void plan(StaleMemory& stale, ConstTensor input, ReduceOp op, StaleMemory::Use use,
            std::span<const std::uint64_t> cut, const Message& message);

  /// input + the lost contributions of the last message of this kind, in `scratch`. Clears the memory, which then
  /// collects the losses of the new message.
  ConstTensor correct(ConstTensor input, Scratch& scratch);

  /// Adds factor x (values - decoded) to the memory: the change that a compression made to the elements from
  /// `first_element` on.
  void changed(std::uint64_t first_element, ConstTensor values, ConstTensor decoded, double factor = 1);

  /// Adds the lost elements of a send to the memory: `values` are the elements of the send, which begin at
  /// `first_element` of the message. Null `lost`: all arrived.
  void undelivered(std::uint64_t first_element, ConstTensor values, const sim::PacketMask* lost,
                   const sim::Packetizer& packets);

 private:
  Tensor memory_;  // memory of the current message
};

}  // namespace droptest::comm
