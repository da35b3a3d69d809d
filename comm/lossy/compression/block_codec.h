// SPDX-License-Identifier: Apache-2.0
// The codes of values: encodes floats as the bytes of a message, and decodes the bytes to floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/lossy/compression/compression.h"
#include "comm/tensor.h"
#include "sim/random/philox.h"

namespace droptest::comm {

/// The code of a message, for compressions with CompressionEntry::codes_values.
///
/// float16 and bfloat16: 2 bytes each, the nearest value. int8 and int4: blocks, each with a float32 scale and then
/// integers in [-127, 127] and [-7, 7] in two's complement; the low bits of an int4 byte hold the element with the even
/// index. The scale is the block's largest magnitude over 127 or 7, rounded up, so that no code is out of range. x /
/// scale is rounded down or up at random: up with a probability equal to its fractional part, so that the mean over
/// draws is x. A block with an element that is not finite decodes to NaN. Little endian.
/// Determinism: one draw for each element of int8 and int4, in the order of the elements.
/// Source: stochastic rounding as in QSGD, Alistarh et al., NeurIPS 2017, but each block has its own scale.
class BlockCodec {
 public:
  explicit BlockCodec(const Compression& compression) : compression_(compression) {}

  /// Encodes floats into coding_of(...).bytes(values.count_elems()) bytes. They are valid until the next call.
  std::span<const std::byte> encode(ConstTensor values, sim::PhiloxEngine& draws);
  /// Throws: CheckError unless the message has the bytes of values.count_elems() elements.
  void decode(std::span<const std::byte> message, Tensor values) const;

 private:
  Compression compression_;
  std::vector<std::byte> message_;
};

}  // namespace droptest::comm
