// SPDX-License-Identifier: Apache-2.0
// Low-rank additions to the weight of a linear layer (Hu et al. 2022, LoRA).
#pragma once

#include <cstdint>
#include <span>

#include "models/team.h"

namespace droptest::models {

/// The weight is [inputs, outputs], A [rank, inputs] and B [outputs, rank], as PEFT has them.
struct AdapterShape {
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  std::int64_t rank = 0;
  double scale = 1;  ///< alpha / rank
};

/// merged = weight + scale x A' B'.
template <class T>
void merge_adapter(const AdapterShape& shape, std::span<const T> weight, std::span<const T> a, std::span<const T> b,
                   std::span<T> merged, const Team& team);

/// The gradients of A and B, from that of the merged weight. Determinism: bits do not depend on the team.
template <class T>
void adapter_gradients(const AdapterShape& shape, std::span<const T> grad_merged, std::span<const T> a,
                       std::span<const T> b, std::span<T> grad_a, std::span<T> grad_b, const Team& team);

}  // namespace droptest::models
