// SPDX-License-Identifier: Apache-2.0
// Codes of values: bytes of a message from floats, and floats from its bytes.
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
/// float16 and bfloat16: 2 bytes each, the nearest value. int8 and int4: blocks of a float32 scale, then integers in
/// [-127, 127] and [-7, 7] in two's complement; the low bits of an int4 byte hold the element with the even index. The
/// scale is the block's largest magnitude over 127 or 7, rounded up, so that no code is out of range. x / scale is
/// rounded down or up at random: up with the probability of its fraction, so that the mean over draws is x. A block
/// with an element that is not finite decodes to NaN. Little endian.
/// Determinism: one draw for each element of int8 and int4, in the order of the elements.
/// Source: stochastic rounding as in QSGD, Alistarh et al., NeurIPS 2017, with blocks of their own scales.
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
