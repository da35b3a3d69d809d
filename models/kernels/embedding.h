// SPDX-License-Identifier: Apache-2.0
// Token and position embeddings. This rank may have only some rows of the table of tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/device/device_span.h"
#include "comm/device/stream.h"
#include "models/team.h"

namespace droptest::models {

/// Token numbers in the memory of the device that computes.
struct TokenIds {
  std::int32_t* data = nullptr;
  std::size_t count = 0;

  TokenIds part(std::int64_t first, std::int64_t elems) const {
    return {data + first, static_cast<std::size_t>(elems)};
  }
};

/// The tokens first, ..., first + count - 1; a rank has their rows of the table.
struct TokenRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// output[i] = table[tokens[i] - range.first], or zeros if the token is not in range.
/// Shapes: tokens [rows], table [at least range.count, width], output [rows, width].
template <class T>
void embedding_forward(std::span<const std::int32_t> tokens, TokenRange range, std::span<const T> table,
                       std::int64_t width, std::span<T> output, const Team& team);

/// grad_table[tokens[i] - range.first] += grad_output[i] for tokens in range, in the order of i. Shapes: as in
/// embedding_forward().
template <class T>
void embedding_backward(std::span<const std::int32_t> tokens, TokenRange range, std::span<const T> grad_output,
                        std::int64_t width, std::span<T> grad_table, const Team& team);

/// values[b, t] += table[t]. Shapes: values [batch, length, width], table [at least length, width].
template <class T>
void add_positions(std::span<const T> table, std::int64_t batch, std::int64_t length, std::int64_t width,
                   std::span<T> values, const Team& team);

/// grad_table[t] += the sum over b of grad_values[b, t], in the order of b. Shapes: as in add_positions().
template <class T>
void positions_backward(std::span<const T> grad_values, std::int64_t batch, std::int64_t length, std::int64_t width,
                        std::span<T> grad_table, const Team& team);

// The device versions: E is float, Bf16 or Fp16 (models/kernels/narrow_floats.h). Values are rounded once, gradients
// are float. The backward pass of the token embedding is in models/kernels/token_groups.h.

template <class E>
void embedding_forward(comm::DeviceSpan<const std::int32_t> tokens, TokenRange range, comm::DeviceSpan<const E> table,
                       std::int64_t width, comm::DeviceSpan<E> output, comm::Stream& stream);

template <class E>
void add_positions(comm::DeviceSpan<const E> table, std::int64_t batch, std::int64_t length, std::int64_t width,
                   comm::DeviceSpan<E> values, comm::Stream& stream);

/// Determinism: each sum is in the order of b.
template <class E>
void positions_backward(comm::DeviceSpan<const E> grad_values, std::int64_t batch, std::int64_t length,
                        std::int64_t width, comm::DeviceSpan<float> grad_table, comm::Stream& stream);

}  // namespace droptest::models
