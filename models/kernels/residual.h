// SPDX-License-Identifier: Apache-2.0
// Biases and their gradients.
#pragma once

#include <cstdint>
#include <span>

#include "comm/device/device_span.h"
#include "comm/device/stream.h"
#include "models/gradient_mode.h"
#include "models/team.h"

namespace droptest::models {

/// Every row becomes the bias. Shapes: rows_out [rows, width], bias [width].
template <class T>
void fill_rows(std::span<const T> bias, std::int64_t rows, std::span<T> rows_out, const Team& team);

/// sums += the rows added up in order. Shapes: values [rows, width], sums [width].
template <class T>
void add_column_sums(std::span<const T> values, std::int64_t rows, std::span<T> sums, const Team& team);

// On a device, for E float, Bf16 or Fp16.

/// Every row gets the bias added. Shapes: values [rows, width], bias [width].
template <class E>
void add_bias(comm::DeviceSpan<const E> bias, std::int64_t rows, comm::DeviceSpan<E> values, comm::Stream& stream);

/// A matrix whose rows begin `stride` elements apart.
struct RowShape {
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::int64_t stride = 0;
};

/// Elements of column_sums' scratch.
std::uint64_t column_sums_scratch_elems(const RowShape& shape);
/// sums = the sums of the columns, or += with kAdd, in float. Shapes: values as `shape` says, sums [width].
/// Determinism: the order depends on the shape alone.
template <class E>
void column_sums(comm::DeviceSpan<const E> values, const RowShape& shape, GradientMode mode,
                 comm::DeviceSpan<float> sums, comm::DeviceSpan<float> scratch, comm::Stream& stream);

}  // namespace droptest::models
