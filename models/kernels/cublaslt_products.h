// SPDX-License-Identifier: Apache-2.0
// The GEMMs of one rank by cuBLASLt, and the choice of the library's algorithms.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "comm/bfloat16.h"
#include "comm/device/device_buffer.h"
#include "comm/device/stream.h"
#include "models/kernels/matrix_products.h"
#include "models/kernels/product_choices.h"

namespace droptest::models {

/// A column-major matrix, as the library expects it: [rows, columns] here is a row-major [columns, rows] in memory.
struct Stored {
  const void* data;
  cudaDataType_t type;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t stride;  ///< elements from one column to the next

  /// The alignment of the address: the largest power of two that divides it, at most 256.
  unsigned alignment() const {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    return address % 256 == 0 ? 256 : static_cast<unsigned>(address & (~address + 1));
  }
};

/// A matrix of float, Bf16 or Fp16.
template <class T>
Stored stored(const T* data, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  constexpr cudaDataType_t kType = std::is_same_v<T, float>        ? CUDA_R_32F
                                   : std::is_same_v<T, comm::Bf16> ? CUDA_R_16BF
                                                                   : CUDA_R_16F;
  return {data, kType, rows, columns, stride};
}

/// result = factor x op(a) op(b) + keep x result, then the epilogue. Sums are float.
struct CublasLtProduct {
  cublasOperation_t op_a;
  Stored a;
  cublasOperation_t op_b;
  Stored b;
  Stored result;  ///< the output
  float factor;
  float keep;  ///< 0 or 1
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;        ///< input, or output with CUBLASLT_EPILOGUE_BGRADA
  const void* pre_gelu = nullptr;    ///< argument of GELU: output of the forward epilogue, input of the backward one
  std::int64_t pre_gelu_stride = 0;  ///< elements from one column of pre_gelu to the next
};

/// The kind of the GEMM, by which recorded choices are looked up.
ProductKind kind_of(const CublasLtProduct& product, FloatProducts floats);

/// Owned by one rank and used by one thread, for one stream. A GEMM uses the algorithm in `choices` for its kind and
/// the stream's device if the library proposes it, otherwise the library's first proposal.
class CublasLtProducts {
 public:
  /// The stream is borrowed, on the current device. Throws: DeviceError.
  explicit CublasLtProducts(comm::Stream& stream, FloatProducts floats = FloatProducts::kExact,
                            std::span<const ProductChoice> choices = recorded_choices());
  ~CublasLtProducts();

  /// Puts the GEMM on the stream. Returns false and does nothing if the library has no algorithm for it. The library is
  /// asked once for each shape. Throws: DeviceError.
  bool multiply_if_possible(const CublasLtProduct& product);
  /// multiply_if_possible(), except that a missing algorithm is a DeviceError.
  void multiply(const char* operation, const CublasLtProduct& product);

  // Members for the program that records choices.

  struct Proposal {
    AlgorithmConfig config;
    cublasLtMatmulAlgo_t algorithm;
  };
  /// The algorithms that the library proposes, at most kMostProposals, in the order of its estimates of the time.
  std::vector<Proposal> proposals(const CublasLtProduct& product) const;
  /// GEMMs with these shapes, strides and alignments use this algorithm from now on.
  void choose(const CublasLtProduct& product, const Proposal& proposal);
  /// Calls `visitor` once for each shape that has an algorithm, before the first GEMM of that shape is put on the
  /// stream.
  void visit_new_products(std::function<void(const CublasLtProduct&)> visitor) { visitor_ = std::move(visitor); }
  /// The compute capability of the device: 90 for 9.0.
  int compute_capability() const;

  static constexpr int kMostProposals = 16;

 private:
  struct Library;
  comm::Stream& stream_;
  FloatProducts floats_;
  comm::DeviceMemory workspace_;
  std::unique_ptr<Library> library_;
  std::function<void(const CublasLtProduct&)> visitor_;
};

}  // namespace droptest::models
