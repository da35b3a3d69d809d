// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/compression/compression.h"

#include <algorithm>
#include <cmath>

#include "comm/lossy/network.h"
#include "comm/lossy/paths/path_registry.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

constexpr std::uint64_t kScaleBytes = 4;
constexpr std::uint64_t kIndexBits = 32;
constexpr std::uint64_t kBitsPerByte = 8;

CompressionRefusal path_refusal(const CompressionEntry& entry, std::string_view path, std::string_view want) {
  std::string reason = "got " + std::string(entry.name) + " on path " + std::string(path) + ", ";
  if (entry.kind == CompressionKind::kPowerSgd) {
    reason += "where ranks can end with different factors, whose product would have no meaning";
  } else if (path_entry(path).route == Route::kAggregated) {
    reason += "whose aggregation point adds up elements, not codes";
  } else {
    reason += "where partial sums travel, so each hop would compress them again";
  }
  return {"/compression/kind", reason + "; want the path " + std::string(want)};
}

}  // namespace

const std::vector<CompressionEntry>& compressions() {
  static const std::vector<CompressionEntry> entries = {
      {"none", CompressionKind::kNone, "elements travel as they are"},
      {"float16", CompressionKind::kFloat16, "values rounded to the nearest float16", true},
      {"bfloat16", CompressionKind::kBfloat16, "values rounded to the nearest bfloat16", true},
      {"int8", CompressionKind::kInt8, "blocks of 8-bit integers with a scale, by stochastic rounding", true},
      {"int4", CompressionKind::kInt4, "blocks of 4-bit integers with a scale, by stochastic rounding", true},
      {"top_k", CompressionKind::kTopK, "the elements of largest magnitude, with their indices, by all-gather", false,
       false},
      {"power_sgd", CompressionKind::kPowerSgd, "two factors of low rank, by two sums"},
  };
  return entries;
}

const CompressionEntry& compression_entry(CompressionKind kind) {
  for (const CompressionEntry& entry : compressions()) {
    if (entry.kind == kind) return entry;
  }
  DROPTEST_CHECK(false, "unknown compression " + std::to_string(static_cast<int>(kind)));
}

CompressionKind compression_from_name(std::string_view name) {
  std::string known;
  for (const CompressionEntry& entry : compressions()) {
    if (entry.name == name) return entry.kind;
    known.append(known.empty() ? "" : ", ").append(entry.name);
  }
  throw ConfigError("compression: got \"" + std::string(name) + "\", want one of " + known);
}

sim::ElementCoding coding_of(const Compression& compression, ElementType type) {
  const std::uint64_t bits = kBitsPerByte * element_bytes(type);
  switch (compression.kind) {
    case CompressionKind::kFloat16:
    case CompressionKind::kBfloat16:
      return {1, 0, 16};
    case CompressionKind::kInt8:
      return {compression.block_elems, kScaleBytes, 8};
    case CompressionKind::kInt4:
      return {compression.block_elems, kScaleBytes, 4};
    case CompressionKind::kTopK:
      return {1, 0, kIndexBits + bits};
    case CompressionKind::kNone:
    case CompressionKind::kPowerSgd:
      break;
  }
  return {1, 0, bits};
}

std::uint64_t pairs_of(const Compression& compression, std::uint64_t count_elems) {
  const double wanted = std::ceil(compression.fraction * static_cast<double>(count_elems));
  return std::min(count_elems, std::max<std::uint64_t>(1, static_cast<std::uint64_t>(wanted)));
}

std::optional<FactorShape> factors_of(const Compression& compression, std::uint64_t count_elems) {
  auto side = static_cast<std::uint64_t>(std::ceil(std::sqrt(static_cast<double>(count_elems))));
  while (side * side < count_elems) ++side;
  const FactorShape shape{side, std::min(compression.rank, side)};
  if (2 * shape.elems() >= count_elems) return std::nullopt;
  return shape;
}

std::optional<CompressionRefusal> compression_refusal(const ClassNetwork& network) {
  const Compression& compression = network.compression;
  if (compression.kind == CompressionKind::kNone) return std::nullopt;
  const CompressionEntry& entry = compression_entry(compression.kind);
  const std::string_view want = compression.kind == CompressionKind::kPowerSgd ? "contribution" : "direct";
  if (network.path != want) return path_refusal(entry, network.path, want);
  for (const SizedPath& small : network.sized_paths) {
    if (small.path != want) return path_refusal(entry, small.path, want);
  }
  const std::string got = "got " + std::string(entry.name) + " with ";
  if (network.recovery.interleave_packets > 1) {
    return CompressionRefusal{"/compression/kind",
                              got + "recovery interleave, which would part the elements of a code; want one of them"};
  }
  if (entry.codes_values) {
    const sim::ElementCoding coding = coding_of(compression, ElementType::kFloat32);
    const std::uint64_t block_bytes = coding.bytes(coding.block_elems);
    if (coding.block_elems == 0 || block_bytes > network.payload_bytes) {
      return CompressionRefusal{"/compression/block",
                                "got blocks of " + std::to_string(compression.block_elems) + " elements (" +
                                    std::to_string(block_bytes) + " bytes), want at least 1 element and at most the " +
                                    std::to_string(network.payload_bytes) + " bytes of a packet's payload"};
    }
    return std::nullopt;
  }
  if (network.recovery.hadamard_block_elems > 0) {
    return CompressionRefusal{"/compression/kind", got + "recovery hadamard, after which all elements are alike, so " +
                                                       "that few of them, or a low rank, describe none; want one of " +
                                                       "them"};
  }
  if (compression.kind == CompressionKind::kTopK) {
    if (!(compression.fraction > 0 && compression.fraction <= 1)) {
      return CompressionRefusal{"/compression/fraction",
                                "got " + std::to_string(compression.fraction) + ", want more than 0 and at most 1"};
    }
    if (network.gather.rule() != FillRule{}) {
      return CompressionRefusal{"/compression/kind", got + "the fill " +
                                                         std::string(fill_entry(network.gather.fill).name) +
                                                         ", but lost pairs have unknown indices; want the fill zero"};
    }
    return std::nullopt;
  }
  if (compression.rank == 0) return CompressionRefusal{"/compression/rank", "got 0, want at least 1"};
  if (network.reduce.rule() != FillRule{}) {
    return CompressionRefusal{"/compression/kind", got + "the fill " +
                                                       std::string(fill_entry(network.reduce.fill).name) +
                                                       ", which has a meaning for contributions, not for their " +
                                                       "factors; want the fill zero"};
  }
  if (network.gather.loss != nullptr || !network.gather.links.empty()) {
    return CompressionRefusal{"/compression/kind", got + "loss in the gather half, after which ranks have different " +
                                                       "factors; want loss in the reduce half alone"};
  }
  return std::nullopt;
}

}  // namespace droptest::comm
