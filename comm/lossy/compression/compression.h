// SPDX-License-Identifier: Apache-2.0
// Compression of a class's sums: the kinds, their sizes on the wire, and the networks in which they have a meaning.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/tensor.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {

enum class CompressionKind : std::uint8_t { kNone, kFloat16, kBfloat16, kInt8, kInt4, kTopK, kPowerSgd };

/// The compression of the reductions of a traffic class (docs/compression.md). The comment of a member names the kinds
/// that use it; other kinds ignore the member.
struct Compression {
  CompressionKind kind = CompressionKind::kNone;
  std::uint64_t block_elems = 256;  ///< int8, int4: elements that share a scale
  double fraction = 0.01;           ///< top_k: share of a contribution's elements that travel, in (0, 1]
  std::uint64_t rank = 4;           ///< power_sgd: columns of the two factors
};

struct CompressionEntry {
  std::string_view name;
  CompressionKind kind;
  std::string_view summary;
  /// Whether each value travels in a code of its own, which its receivers decode. Sums are then made of decoded values,
  /// and their results are coded again.
  bool codes_values = false;
  /// Whether contributions, or their factors, travel in the reduce half. Otherwise pairs of an index and a value travel
  /// in the gather half.
  bool has_contributions = true;
};
/// All compressions, in the order of their enumerators.
const std::vector<CompressionEntry>& compressions();
const CompressionEntry& compression_entry(CompressionKind kind);
/// Throws: ConfigError that lists the known names.
CompressionKind compression_from_name(std::string_view name);
inline bool codes_values(const Compression& compression) { return compression_entry(compression.kind).codes_values; }

/// The coding of elements of type `type` on the wire: coded values, or pairs of an index and a value (top_k).
sim::ElementCoding coding_of(const Compression& compression, ElementType type);

/// top_k: the number of pairs that a rank sends of a contribution; at least one, unless there is no element.
std::uint64_t pairs_of(const Compression& compression, std::uint64_t count_elems);

/// power_sgd: a contribution as a matrix of `side` rows and columns, padded with zeros, and its factors of `side` rows
/// and `rank` columns. Source: Vogels et al., NeurIPS 2019; the square matrix of a whole bucket as in PyTorch's
/// batched_powerSGD_hook.
struct FactorShape {
  std::uint64_t side = 0;
  std::uint64_t rank = 0;
  std::uint64_t elems() const { return side * rank; }  ///< elements of one factor
};
/// The shape of a contribution's factors. Absent: the contribution travels as it is, because both factors together
/// would not be smaller.
std::optional<FactorShape> factors_of(const Compression& compression, std::uint64_t count_elems);

struct ClassNetwork;  // comm/lossy/network.h

/// The reason why a network has no meaning with its compression; absent: it has a meaning. `pointer` names the member
/// within the class's section.
struct CompressionRefusal {
  std::string pointer;
  std::string reason;
};
std::optional<CompressionRefusal> compression_refusal(const ClassNetwork& network);

}  // namespace droptest::comm
