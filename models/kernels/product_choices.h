// SPDX-License-Identifier: Apache-2.0
// Recorded choices among the algorithms that cuBLASLt proposes for a GEMM. A GEMM without a record uses the first
// proposal. Choices are measured once on a device. So no run measures algorithms, and each run has the same bits.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace droptest::models {

/// The configuration that identifies an algorithm of cuBLASLt: the values of CUBLASLT_ALGO_CONFIG_ID to
/// CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, in that order.
using AlgorithmConfig = std::array<std::uint32_t, 9>;

/// The kind of a GEMM result [m, n] = op(a) op(b); each sum has k terms.
struct ProductKind {
  int compute;   ///< cublasComputeType_t
  int op_a;      ///< cublasOperation_t
  int op_b;      ///< cublasOperation_t
  int operands;  ///< cudaDataType_t of a and of b
  int result;    ///< cudaDataType_t
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
  int epilogue;  ///< cublasLtEpilogue_t
  bool adds;     ///< whether the GEMM adds to the old result

  bool operator==(const ProductKind&) const = default;
};

struct ProductChoice {
  int compute_capability;  ///< 90 means 9.0
  ProductKind product;
  AlgorithmConfig algorithm;
};

/// All recorded choices. `device_rates --choices` (benchmarks/gpu) prints rows for this table. A row changes the bits
/// of runs on its devices: docs/results_changes.md and kChanges of experiments/spec/numerics_version.cc name it.
std::span<const ProductChoice> recorded_choices();

}  // namespace droptest::models
