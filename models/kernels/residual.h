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

/// Sets every row of rows_out to the bias. Shapes: rows_out [rows, width], bias [width].
template <class T>
void fill_rows(std::span<const T> bias, std::int64_t rows, std::span<T> rows_out, const Team& team);

/// sums += the sum of the rows, in order. Shapes: values [rows, width], sums [width].
template <class T>
void add_column_sums(std::span<const T> values, std::int64_t rows, std::span<T> sums, const Team& team);

// The device versions: E is float, Bf16 or Fp16.

/// Adds the bias to every row. Shapes: values [rows, width], bias [width].
template <class E>
void add_bias(comm::DeviceSpan<const E> bias, std::int64_t rows, comm::DeviceSpan<E> values, comm::Stream& stream);

/// A matrix with `stride` elements from one row to the next.
struct RowShape {
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::int64_t stride = 0;
};

/// The number of elements of the scratch of column_sums().
std::uint64_t column_sums_scratch_elems(const RowShape& shape);
/// Sets `sums` to the sums of the columns in float, or adds to it with kAdd. Shapes: values as `shape` says, sums
/// [width]. Determinism: the order depends only on the shape.
template <class E>
void column_sums(comm::DeviceSpan<const E> values, const RowShape& shape, GradientMode mode,
                 comm::DeviceSpan<float> sums, comm::DeviceSpan<float> scratch, comm::Stream& stream);

}  // namespace droptest::models
