// SPDX-License-Identifier: Apache-2.0
// A GEMM of cuBLASLt as plain loops.
#pragma once

#include <cublasLt.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>

namespace droptest::fake_cuda {

/// The object behind a cublasLtMatrixLayout_t of the fake. Matrices are stored by columns.
struct MatrixLayout {
  cudaDataType type = CUDA_R_32F;
  std::uint64_t rows = 0;
  std::uint64_t cols = 0;
  std::int64_t ld = 0;
  std::int32_t order = CUBLASLT_ORDER_COL;
  std::int32_t batch_count = 1;
  std::int64_t batch_stride_elems = 0;

  /// The bytes from the first element to the end of the last one.
  std::size_t extent_bytes() const;
};

/// The object behind a cublasLtMatmulDesc_t of the fake.
struct MatmulDescription {
  cublasComputeType_t compute_type = CUBLAS_COMPUTE_32F;
  cudaDataType scale_type = CUDA_R_32F;
  std::int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  std::int32_t transpose_a = CUBLAS_OP_N;
  std::int32_t transpose_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;  // input, or output of a bias gradient
  std::int32_t bias_type = -1;
  void* aux = nullptr;
  std::int64_t aux_ld = 0;
  std::int32_t aux_type = -1;
};

/// D = epilogue(alpha op(A) op(B) + beta C), sums in float, k ascending.
/// Source: cuBLAS documentation, cublasLtMatmul() and cublasLtEpilogue_t.
struct Matmul {
  MatmulDescription description;
  MatrixLayout a_layout;
  MatrixLayout b_layout;
  MatrixLayout c_layout;
  MatrixLayout d_layout;
  float alpha = 1;
  float beta = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;
  void* d = nullptr;

  std::uint64_t m() const { return d_layout.rows; }
  std::uint64_t n() const { return d_layout.cols; }
  std::uint64_t k() const { return description.transpose_a == CUBLAS_OP_N ? a_layout.cols : a_layout.rows; }
  bool has(std::uint32_t bits) const { return (description.epilogue & bits) == bits; }
  bool adds_bias() const { return has(CUBLASLT_EPILOGUE_BIAS); }
  bool uses_aux() const { return has(128); }
  bool gelu() const { return has(CUBLASLT_EPILOGUE_GELU); }
  bool gelu_gradient() const { return has(CUBLASLT_EPILOGUE_DGELU); }
  /// The elements of the bias or bias gradient; 0 for an epilogue without one.
  std::uint64_t bias_elems() const;

  /// The answer of the real library: inconsistent sizes are invalid, a GEMM without a kernel is not supported. Pointers
  /// are not checked.
  cublasStatus_t check(const std::set<int>& refused_epilogues) const;
  void run() const;
};

std::size_t bytes_of(cudaDataType type);

}  // namespace droptest::fake_cuda
