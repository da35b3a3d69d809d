// SPDX-License-Identifier: Apache-2.0
// Erasure coding along a link: the packets of a block, and the losses that it repairs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sim/recovery/link_recovery.h"

namespace droptest::sim {

/// Sizes of a block in packets.
struct ParityCode {
  std::uint64_t data = 8;    ///< k, at least 1
  std::uint64_t parity = 2;  ///< m, at least 1; k + m is at most 255, the length of a Reed-Solomon code over bytes
  /// Number of blocks that take turns on the link, at least 1: a burst of that many packets hits each block once.
  std::uint64_t depth = 1;
};

/// Every `data` packets of a message (fewer in its last block) and `parity` packets of full size are a block. A block
/// is repaired if at most `parity` of its packets are lost. Otherwise its lost data packets stay missing: the code is
/// systematic, so the data packets that arrived are used as they are.
/// The blocks of each group of `depth` go out packet by packet in turn, all data before all parity.
/// Source: maximum distance separable codes; Reed and Solomon, J. SIAM 8 (1960).
class Parity final : public LinkRecovery {
 public:
  /// Throws: ConfigError for sizes that no code has.
  explicit Parity(const ParityCode& code);

  std::uint64_t first_packets(std::uint64_t data_packets) const override;
  std::uint64_t position(std::uint64_t data_packet, std::uint64_t data_packets) const override;
  Repair recover(const PacketMask& lost, const DrawAgain& draw_again, const LinkTiming& timing,
                 PacketMask& missing) const override;
  /// Exact for Bernoulli and Gilbert-Elliott, by the chain of states and losses over the packets of a block. For
  /// Bernoulli it is p P(Bin(k + m - 1, p) >= m).
  std::optional<double> residual_rate(const LossProcess& process, std::uint64_t data_packets) const override;
  std::optional<double> residual_rate(const LossProcess& process) const override;
  std::string describe() const override;

  const ParityCode& code() const { return code_; }
  /// The number of blocks of a message.
  std::uint64_t blocks(std::uint64_t data_packets) const;
  /// Data packets of a block: code().data, except in the last one.
  std::uint64_t block_data(std::uint64_t block, std::uint64_t data_packets) const;
  /// Index on the link of a block's parity packet.
  std::uint64_t parity_position(std::uint64_t block, std::uint64_t parity_packet, std::uint64_t data_packets) const;

 private:
  struct Group;  // a group of blocks that take turns
  Group group_of(std::uint64_t block, std::uint64_t data_packets) const;
  double missing_of_block(const LossChain& chain, std::uint64_t block, std::uint64_t data_packets) const;

  ParityCode code_;
};

}  // namespace droptest::sim
