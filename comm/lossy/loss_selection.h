// SPDX-License-Identifier: Apache-2.0
// Which of a message's packets are the lost ones: those that the loss process says, or those that an adversary picks.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "sim/loss/packet_mask.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {

enum class LossSelection : std::uint8_t {
  kByFate,       ///< those of the loss process
  kLargestNorm,  ///< as many, those of the largest Euclidean norm: the worst case for the energy of the missing
                 ///< elements
};

/// The adversary. It sees a message's content, so that its fates are no function of the link alone: only who has the
/// content knows them. Buffers are kept between messages.
class LargestNorm {
 public:
  /// In the place of the lost packets as many of the largest norm; of equal norms the first ones. A NaN is larger than
  /// anything.
  /// Determinism: a pure function of its arguments, equal on every rank that has the same content.
  void hit(sim::PacketMask& lost, ConstTensor message, const sim::Packetizer& packets);

 private:
  std::vector<std::pair<double, std::uint64_t>> energies_;  // of each packet, with its index
};

}  // namespace droptest::comm
