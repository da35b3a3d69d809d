// SPDX-License-Identifier: Apache-2.0
// Feedback with a state at both ends: messages carry compressed differences from it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "comm/call.h"
#include "comm/lossy/fill/scratch.h"
#include "comm/lossy/fill/stale_memory.h"
#include "comm/lossy/statistics/sample_sums.h"
#include "sim/loss/packet_mask.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {

/// One rank's states of a message, zero before the first: its *estimate* of its own contribution, and, for each rank
/// with contributions that it adds up, a *copy* of that rank's estimate. A rank sends C(contribution - estimate); C is
/// the compression. It adds the message to its estimate, and each receiver adds it to its copy; the sums are sums of
/// copies. So the differences, and with them the errors of C, become small if contributions change slowly.
///
/// A receiver does not add lost packets. If the sender nevertheless adds them to its estimate, copy and estimate differ
/// from then on: no later message removes the difference. Acknowledgements let the sender leave them out, too.
/// A message of another type, size or cut begins with zeros.
/// Source: Richtarik, Sokolov and Fatkhullin, NeurIPS 2021 (EF21; g_i is the estimate).
class Ef21 {
 public:
  /// Takes the states of a call from `stale`, their owner. `copied_elems`: the elements of each of the `ranks` copies.
  /// `cut`: as for StaleMemory::of().
  void plan(StaleMemory& stale, const CallArguments& call, int ranks, std::uint64_t copied_elems,
            std::span<const std::uint64_t> cut);

  /// contribution - estimate, written into `scratch`.
  ConstTensor difference(ConstTensor contribution, Scratch& scratch) const;
  Tensor estimate() const { return estimate_; }
  Tensor copy_of(int source) const;

  /// The differences between the copies and the senders' estimates, without the copy of `own`. `gather` writes the
  /// estimates of all ranks in the layout of the copies.
  EndErrors compare(int own, const std::function<void(ConstTensor estimate, Tensor copies)>& gather) const;

 private:
  // The states of the current message.
  Tensor estimate_;
  Tensor copies_;  // one copy after the other, by source
  std::uint64_t copied_elems_ = 0;
};

/// The message in which receivers tell senders the packets that they miss. Both ends know the order and the number of
/// its words. It is reliable and takes no virtual time.
extern const Message kAcknowledgement;
/// Number of words of a message's mask.
inline std::uint64_t mask_words(const sim::Packetizer& packets) {
  return sim::PacketMask(packets.packets()).words().size();
}
/// Adds the missing packets of an acknowledgement to a mask of as many words.
void add_missing(std::span<const std::uint64_t> words, sim::PacketMask& missing);

}  // namespace droptest::comm
