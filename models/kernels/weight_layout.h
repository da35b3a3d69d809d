// SPDX-License-Identifier: Apache-2.0
// The extents of a linear layer, and the two ways in which its weight matrix lies in memory.
#pragma once

#include <cstdint>

namespace droptest::models {

/// How a weight lies in memory: [inputs, outputs] as GPT-2's layers have it, or [outputs, inputs] as the embedding that
/// is also the head.
enum class WeightLayout : std::uint8_t { kInputsByOutputs, kOutputsByInputs };

/// input [rows, inputs] times a weight gives output [rows, outputs], whose rows may begin further apart.
struct ProductShape {
  std::int64_t rows = 0;
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  WeightLayout layout = WeightLayout::kInputsByOutputs;
  std::int64_t output_stride = 0;  ///< elements from one row of outputs, or of their gradient, to the next; 0: outputs
};

/// Outputs in 16-bit numbers that a device multiplies at a time.
inline constexpr std::int64_t kOutputsTogether = 8;

/// Outputs beyond the largest multiple of kOutputsTogether, which a head in 16-bit numbers multiplies in a product of
/// their own on a device; 0 where there are few outputs. In one product, cuBLASLt 13.0 has a seventh of its rate.
constexpr std::int64_t left_over_outputs(std::int64_t outputs) {
  constexpr std::int64_t kMany = 1024;
  return outputs < kMany ? 0 : outputs % kOutputsTogether;
}

}  // namespace droptest::models
