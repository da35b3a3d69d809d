// SPDX-License-Identifier: Apache-2.0
// What a model needs to multiply in bfloat16: the library's code for its shapes, and room for rounded operands.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/kernels/bf16.h"
#include "models/kernels/matmul_bf16.h"

namespace droptest::models {

/// Owned by one rank's model and used by one thread at a time. An operand lasts until the next one of its kind.
class Bf16Products {
 public:
  /// The values [rows, columns] rounded.
  ConstMatrix<Bf16> input(std::span<const float> values, std::int64_t rows, std::int64_t columns, const Team& team) {
    return rounded(values, 1.0F, rows, columns, team, input_);
  }
  /// factor x the values [rows, columns], rounded.
  ConstMatrix<Bf16> grad_output(std::span<const float> values, float factor, std::int64_t rows, std::int64_t columns,
                                const Team& team) {
    return rounded(values, factor, rows, columns, team, grad_output_);
  }

  Bf16Matmul matmul;

 private:
  static ConstMatrix<Bf16> rounded(std::span<const float> values, float factor, std::int64_t rows, std::int64_t columns,
                                   const Team& team, std::vector<Bf16>& buffer) {
    const auto count = static_cast<std::size_t>(rows * columns);
    if (buffer.size() < count) buffer.resize(count);
    to_bf16(values.first(count), factor, std::span(buffer).first(count), team);
    return {buffer.data(), rows, columns, columns};
  }

  std::vector<Bf16> input_;
  std::vector<Bf16> grad_output_;
};

}  // namespace droptest::models
