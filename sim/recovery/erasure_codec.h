// SPDX-License-Identifier: Apache-2.0
// The bytes of a parity code: encodes blocks, and restores lost packets exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/recovery/parity.h"

namespace droptest::sim {

/// A systematic code over blocks of k data and m parity packets of equal size: any k packets of a block give back
/// all. m = 1 is the XOR of the data. m > 1 is Reed-Solomon over GF(2^8) with a Cauchy matrix, every square part of
/// which can be inverted, so every pattern of at most m losses is repaired.
/// Source: Blomer et al., ICSI TR-95-048 (1995), Cauchy Reed-Solomon; arithmetic by ISA-L.
/// Thread safety: const methods may be called from any thread at once. Determinism: bitwise.
class ErasureCodec {
 public:
  /// Throws: ConfigError for sizes that no code has (Parity's rules).
  explicit ErasureCodec(const ParityCode& code);

  /// Fills the m parity packets of a block. Shapes: `data` has 1 to k packets (fewer than k in a last block), `parity`
  /// m, all of equal size, which is less than 2^31; a shorter packet of a message is padded with zeros.
  void encode(std::span<const std::byte* const> data, std::span<std::byte* const> parity,
              std::size_t packet_bytes) const;

  /// Restores the lost data packets of a block in place. `lost` says so of each of the data packets and then of each of
  /// the parity packets; those that arrived are read only. True where nothing was lost or all data is restored; false,
  /// with nothing written, where more than m packets are lost.
  bool decode(std::span<std::byte* const> data, std::span<const std::byte* const> parity, const std::vector<bool>& lost,
              std::size_t packet_bytes) const;

 private:
  std::vector<std::uint8_t> rows_of(std::size_t data) const;

  ParityCode code_;
  std::vector<std::uint8_t> matrix_;  // k + m rows of k: identity, then Cauchy
};

}  // namespace droptest::sim
