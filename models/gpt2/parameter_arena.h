// SPDX-License-Identifier: Apache-2.0
// All tensors of a rank in one array, one after another.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/gpt2/gpt2_tensors.h"
#include "models/parameter.h"

namespace droptest::models {

/// Where each tensor begins, in elements; each on a cache line of its own. What lies between tensors belongs to none.
struct ParameterArena {
  std::vector<std::uint64_t> offsets;
  std::uint64_t elems = 0;
};

ParameterArena parameter_arena(std::span<const Gpt2Tensor> tensors);

/// The tensors as parameters whose values and gradients lie in these arrays. Shapes: both arena.elems.
template <class T>
std::vector<Parameter<T>> parameters_in(const ParameterArena& arena, std::span<const Gpt2Tensor> tensors,
                                        std::span<T> values, std::span<T> gradients);

}  // namespace droptest::models
