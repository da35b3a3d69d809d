// SPDX-License-Identifier: Apache-2.0
// The random initial weights of a GPT-2 (docs/models.md).
#pragma once

#include <cstdint>
#include <span>

#include "models/gpt2/gpt2_tensors.h"
#include "models/parameter.h"

namespace droptest::models {

/// Sets every value; padding is zero. The values do not depend on how tensors are cut over ranks.
/// Shapes: one parameter for each tensor.
template <class T>
void set_initial_weights(std::span<const Gpt2Tensor> tensors, std::uint64_t seed, std::span<Parameter<T>> parameters);

}  // namespace droptest::models
