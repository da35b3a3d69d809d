// SPDX-License-Identifier: Apache-2.0
// Whether a backward pass sets gradients or adds to them.
#pragma once

#include <cstdint>

namespace droptest::models {

/// kSet: gradients are set. kAdd: they are added to. The first backward pass after zero_gradients() sets the gradients
/// of matrices, which saves writing zeros and reading them again.
enum class GradientMode : std::uint8_t { kSet, kAdd };

}  // namespace droptest::models
