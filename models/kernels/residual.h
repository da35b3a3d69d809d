// SPDX-License-Identifier: Apache-2.0
// Biases and their gradients.
#pragma once

#include <cstdint>
#include <span>

#include "models/team.h"

namespace droptest::models {

/// Every row becomes the bias. Shapes: rows_out [rows, width], bias [width].
template <class T>
void fill_rows(std::span<const T> bias, std::int64_t rows, std::span<T> rows_out, const Team& team);

/// sums += the rows added up in order. Shapes: values [rows, width], sums [width].
template <class T>
void add_column_sums(std::span<const T> values, std::int64_t rows, std::span<T> sums, const Team& team);

}  // namespace droptest::models
