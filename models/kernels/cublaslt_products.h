// SPDX-License-Identifier: Apache-2.0
// One GEMM as cuBLASLt sees it, and the library's choices for the GEMMs of one rank.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <type_traits>

#include "comm/bfloat16.h"
#include "comm/device/device_buffer.h"
#include "comm/device/stream.h"
#include "models/kernels/matrix_products.h"

namespace droptest::models {

/// A column-major matrix as the library sees it: [rows, columns] here lies in memory as [columns, rows] row by row.
struct Stored {
  const void* data;
  cudaDataType_t type;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t stride;  ///< elements from one column to the next

  /// The largest power of two, up to 256, that its address is a multiple of.
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
struct Product {
  cublasOperation_t op_a;
  Stored a;
  cublasOperation_t op_b;
  Stored b;
  Stored result;  ///< is written
  float factor;
  float keep;  ///< 0 or 1
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;  ///< that is read or, with BGRADA, written
  const void* pre_gelu = nullptr;
  std::int64_t pre_gelu_stride = 0;
};

/// Owned by one rank and used by one thread, for one stream.
class CublasLtProducts {
 public:
  /// The stream is borrowed. Throws: DeviceError.
  explicit CublasLtProducts(comm::Stream& stream, FloatProducts floats = FloatProducts::kExact);
  ~CublasLtProducts();

  /// Puts the GEMM on the stream. False, and nothing is done, where the library has no algorithm for it; that is
  /// asked once for each shape. Throws: DeviceError.
  bool multiply_if_possible(const Product& product);
  /// The same, but an absent algorithm is a DeviceError.
  void multiply(const char* operation, const Product& product);

 private:
  struct Library;
  comm::Stream& stream_;
  FloatProducts floats_;
  comm::DeviceMemory workspace_;
  std::unique_ptr<Library> library_;
};

}  // namespace droptest::models
