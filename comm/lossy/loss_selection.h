// SPDX-License-Identifier: Apache-2.0
// The selection of a message's lost packets: those of the loss process, or those that an adversary picks.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "sim/loss/packet_mask.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {

enum class LossSelection : std::uint8_t {
  kByFate,       ///< the losses of the loss process
  kLargestNorm,  ///< as many packets as the loss process loses, those with the largest norms: the most missing energy
};

/// The adversary. It sees a message's content, so its fates do not follow from the link: only a rank with the content
/// knows them. Buffers are kept between messages.
class LargestNorm {
 public:
  /// Replaces the lost packets by as many packets of the largest norm; if norms are equal, by the first ones. The norm
  /// of a packet with a NaN counts as infinite.
  /// Determinism: a pure function of its arguments, equal on every rank with the same content.
  void hit(sim::PacketMask& lost, ConstTensor message, const sim::Packetizer& packets);

 private:
  std::vector<std::pair<double, std::uint64_t>> energies_;  // energy of each packet, with its index
};

}  // namespace droptest::comm
