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

}  // namespace droptest::models
