// SPDX-License-Identifier: Apache-2.0
// Low-rank additions to the weight of a linear layer (Hu et al. 2022, LoRA).
#pragma once

#include <cstdint>
#include <span>

#include "comm/device/device_span.h"
#include "comm/device/stream.h"
#include "models/team.h"

namespace droptest::models {

/// The extents of an adapter: weight [inputs, outputs], A [rank, inputs] and B [outputs, rank], as in Hugging Face's
/// PEFT library.
struct AdapterShape {
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  std::int64_t rank = 0;
  double scale = 1;  ///< alpha / rank
};

/// merged = weight + scale x A' B', where ' is the transpose. Shapes: merged as the weight.
template <class T>
void merge_adapter(const AdapterShape& shape, std::span<const T> weight, std::span<const T> a, std::span<const T> b,
                   std::span<T> merged, const Team& team);

/// Sets the gradients of A and B, computed from the gradient of the merged weight. Shapes: each gradient as its tensor.
/// Determinism: bits do not depend on the team.
template <class T>
void adapter_gradients(const AdapterShape& shape, std::span<const T> grad_merged, std::span<const T> a,
                       std::span<const T> b, std::span<T> grad_a, std::span<T> grad_b, const Team& team);

// The device versions. Determinism: the order of sums depends only on the shape.

void merge_adapter(const AdapterShape& shape, comm::DeviceSpan<const float> weight, comm::DeviceSpan<const float> a,
                   comm::DeviceSpan<const float> b, comm::DeviceSpan<float> merged, comm::Stream& stream);
void adapter_gradients(const AdapterShape& shape, comm::DeviceSpan<const float> grad_merged,
                       comm::DeviceSpan<const float> a, comm::DeviceSpan<const float> b, comm::DeviceSpan<float> grad_a,
                       comm::DeviceSpan<float> grad_b, comm::Stream& stream);

}  // namespace droptest::models
