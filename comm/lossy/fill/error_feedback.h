// SPDX-License-Identifier: Apache-2.0
// Lost contributions of a sender go out again with its next message.
#pragma once

#include <cstdint>
#include <span>

#include "comm/communicator.h"
#include "comm/lossy/fill/scratch.h"
#include "comm/lossy/fill/stale_memory.h"
#include "sim/loss/packet_mask.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {

/// One rank's memory, per message, of what of its sends never arrived; zero before the first. A path corrects its input
/// at the start of a reduction, sends that, and reports what each of its own sends lost; the next message of the same
/// class, name and layer carries it, where it has the same type, size and cut into parts. So the sum over time of what
/// arrives falls short of the sum of the inputs by no more than what the memories hold, as long as no name changes its
/// type, size or cut: such a change drops the memory of that name. Paths of hops have none: what a hop loses is a
/// partial sum, whose sender does not know which of its own values were in it.
///
/// Source: Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019, algorithm 2, with loss as the compressor.
class ErrorFeedback {
 public:
  /// Takes the memory of a message, which lives in `stale`. `use` tells collectives apart, `cut` is as for
  /// StaleMemory::of(). Throws: ConfigError for a maximum and for integers, to which nothing can be added.
  void plan(StaleMemory& stale, ConstTensor input, ReduceOp op, StaleMemory::Use use,
            std::span<const std::uint64_t> cut, const Message& message);

  /// input + the lost contributions of the last message of this kind, in `scratch`.
  ConstTensor correct(ConstTensor input, Scratch& scratch);

  /// Remembers what of a send did not arrive: `values` are its elements, which begin at `first_element` of the message.
  /// Null `lost`: all arrived.
  void undelivered(std::uint64_t first_element, ConstTensor values, const sim::PacketMask* lost,
                   const sim::Packetizer& packets);

 private:
  Tensor memory_;  // of the message at hand
};

}  // namespace droptest::comm
