// SPDX-License-Identifier: Apache-2.0
// The two ways in which weight matrices lie in memory.
#pragma once

#include <cstdint>

namespace droptest::models {

/// How a weight lies in memory: [inputs, outputs] as GPT-2's layers have it, or [outputs, inputs] as the embedding that
/// is also the head.
enum class WeightLayout : std::uint8_t { kInputsByOutputs, kOutputsByInputs };

}  // namespace droptest::models
