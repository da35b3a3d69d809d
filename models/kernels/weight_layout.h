// SPDX-License-Identifier: Apache-2.0
// The extents of a linear layer, and the two memory layouts of its weight matrix.
#pragma once

#include <cstdint>

namespace droptest::models {

/// The layout of a weight: [inputs, outputs] for GPT-2's linear layers, [outputs, inputs] for the embedding that is
/// also the LM head.
enum class WeightLayout : std::uint8_t { kInputsByOutputs, kOutputsByInputs };

/// A GEMM of input [rows, inputs] and a weight into output [rows, outputs]. Rows of the output may have gaps.
struct ProductShape {
  std::int64_t rows = 0;
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  WeightLayout layout = WeightLayout::kInputsByOutputs;
  std::int64_t output_stride = 0;  ///< elements between successive rows of the output, or of its gradient; 0: no gaps
};

/// The number of 16-bit outputs that a device computes together.
inline constexpr std::int64_t kOutputsTogether = 8;

/// The number of outputs beyond the largest multiple of kOutputsTogether; 0 if there are few outputs. A head with
/// 16-bit numbers computes them in a separate GEMM on a device, because a single GEMM has a seventh of the rate with
/// cuBLASLt 13.0.
constexpr std::int64_t left_over_outputs(std::int64_t outputs) {
  constexpr std::int64_t kMany = 1024;
  return outputs < kMany ? 0 : outputs % kOutputsTogether;
}

}  // namespace droptest::models
