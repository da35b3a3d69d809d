// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the reduce half's fills that paths share.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/network.h"
#include "sim/loss/packet_mask.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {

/// Throws: ConfigError where `fill` rescales and the reduction is a maximum, or of integers; names the message.
void check_reduction(Fill fill, ReduceOp op, ElementType type, const Message& message);

/// Whether a half can lose anything.
bool can_lose(const HalfNetwork& half);

/// 1 / (1 - rate at which packets stay missing), the factor of inverse_probability; 0 at rate 1, where nothing arrives
/// to be scaled. The rate is that of a message of so many packets; without, of a long one.
double inverse_probability_factor(const HalfNetwork& half, std::uint64_t packets);
double inverse_probability_factor(const HalfNetwork& half);

/// How many contributions each packet of a reduction lost.
class LostContributions {
 public:
  /// Starts a reduction of that many packets with none lost.
  void start(std::uint64_t packets);
  /// Adds one contribution's fates; null: all arrived.
  void add(const sim::PacketMask* lost);

  /// Multiplies each packet of `sums` by contributions / arrived; a packet of which nothing arrived becomes zero.
  /// `sums` holds the elements that begin at `first_element` of the reduction.
  void rescale(Tensor sums, std::uint64_t first_element, const sim::Packetizer& packets, int contributions) const;
  /// Sets packets of which nothing arrived to zero.
  void zero_where_all_lost(Tensor results, std::uint64_t first_element, const sim::Packetizer& packets,
                           int contributions) const;

 private:
  std::vector<std::uint32_t> lost_;
  std::uint64_t total_ = 0;
};

}  // namespace droptest::comm
