// SPDX-License-Identifier: Apache-2.0
// GEMMs of bfloat16 operands with sums in float, by oneDNN.
#pragma once

#include <memory>

#include "models/kernels/matmul.h"
#include "models/kernels/narrow_floats.h"
#include "models/team.h"

namespace droptest::models {

/// Generates the library's code once for each shape. Owned by one rank; used by one thread at a time.
class Bf16Matmul {
 public:
  Bf16Matmul();
  ~Bf16Matmul();

  enum class Keep : std::uint8_t { kSet, kAdd };
  /// Sets result = op(a) op(b), or adds to it with kAdd. Arithmetic is float. Shapes: as in matmul(). Determinism: bits
  /// depend on shapes and values, not on the team. Call it under SingleThreadedLibraries (models/kernels/chunks.h).
  void operator()(Transpose transpose_a, const ConstMatrix<Bf16>& a, Transpose transpose_b, const ConstMatrix<Bf16>& b,
                  Keep keep, const Matrix<float>& result, const Team& team);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace droptest::models
