// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the reduce half's fills, shared by paths.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/network.h"
#include "sim/loss/packet_mask.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {

/// Throws: ConfigError that names the message, if `fill` rescales a maximum or integers, or if it is `own` and the
/// reduction is not a mean.
void check_reduction(Fill fill, ReduceOp op, ElementType type, const Message& message);

/// Whether packets of a half can be lost or late.
bool can_lose(const HalfNetwork& half);

/// 1 / (1 - residual loss rate), the factor of inverse_probability; 0 at rate 1, because nothing arrives then. The rate
/// is that of a message of `packets` packets; without `packets`, of a long message.
double inverse_probability_factor(const HalfNetwork& half, std::uint64_t packets);
double inverse_probability_factor(const HalfNetwork& half);

/// The number of lost contributions to each packet of a reduction.
class LostContributions {
 public:
  /// Starts a reduction of `packets` packets with none lost.
  void start(std::uint64_t packets);
  /// Adds one contribution's fates; null: all arrived.
  void add(const sim::PacketMask* lost);

  /// Multiplies each packet of `sums` by contributions / arrived; a packet without arrived contributions becomes zero.
  /// `sums` holds the elements that begin at `first_element` of the reduction.
  void rescale(Tensor sums, std::uint64_t first_element, const sim::Packetizer& packets, int contributions) const;
  /// Sets packets without arrived contributions to zero.
  void zero_where_all_lost(Tensor results, std::uint64_t first_element, const sim::Packetizer& packets,
                           int contributions) const;

 private:
  std::vector<std::uint32_t> lost_;
  std::uint64_t total_ = 0;
};

}  // namespace droptest::comm
