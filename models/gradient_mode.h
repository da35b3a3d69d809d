// SPDX-License-Identifier: Apache-2.0
// Whether gradients replace or add.
#pragma once

#include <cstdint>

namespace droptest::models {

/// Whether a backward pass adds to the gradients or sets them: the first one after zero_gradients() sets those of the
/// matrices, which saves writing zeros and reading them again.
enum class GradientMode : std::uint8_t { kSet, kAdd };

}  // namespace droptest::models
