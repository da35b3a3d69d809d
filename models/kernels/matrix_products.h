// SPDX-License-Identifier: Apache-2.0
// The GEMMs of a linear layer on a device, by cuBLASLt.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/device/device_span.h"
#include "comm/device/stream.h"
#include "models/gradient_mode.h"
#include "models/kernels/narrow_floats.h"
#include "models/kernels/weight_layout.h"

namespace droptest::models {

class CublasLtProducts;

/// How products of floats are formed on a device: of the numbers as they are, or of their upper 19 bits (TF32), which
/// tensor cores take. Other types are multiplied exactly.
enum class FloatProducts : std::uint8_t { kExact, kTf32 };

/// E is float (all arithmetic in float), Bf16 or Fp16 (operands of 16 bits, sums in float, rounded
/// once). Owned by one rank and used by one thread; all work is put on the stream given at the start. The library
/// chooses once for each shape. Any extent may be zero. Determinism: results depend on shapes, addresses'
/// alignment and values.
template <class E>
class MatrixProducts {
 public:
  /// Who adds biases and computes GELU: the library within the GEMM where it can, or always own kernels.
  enum class Epilogues : std::uint8_t { kFused, kOwnKernels };
  /// The stream is borrowed. Throws: DeviceError.
  explicit MatrixProducts(comm::Stream& stream, Epilogues epilogues = Epilogues::kFused,
                          FloatProducts floats = FloatProducts::kExact);
  ~MatrixProducts();

  /// output = input W + bias; the bias [outputs] may be empty, and must be where rows of outputs have gaps, or the
  /// output is not of E. R is E, or float where E has 16 bits: sums that are not rounded.
  template <class R>
  void forward(const ProductShape& shape, comm::DeviceSpan<const E> input, comm::DeviceSpan<const E> weight,
               comm::DeviceSpan<const E> bias, comm::DeviceSpan<R> output);

  /// pre_gelu = input W + bias, and output = gelu(pre_gelu), both without gaps between rows.
  void forward_gelu(const ProductShape& shape, comm::DeviceSpan<const E> input, comm::DeviceSpan<const E> weight,
                    comm::DeviceSpan<const E> bias, comm::DeviceSpan<E> pre_gelu, comm::DeviceSpan<E> output);

  /// grad_input = factor x grad_output W'. R as above.
  template <class R>
  void backward_input(const ProductShape& shape, comm::DeviceSpan<const E> grad_output,
                      comm::DeviceSpan<const E> weight, float factor, comm::DeviceSpan<R> grad_input);

  /// The same times the derivative of gelu at pre_gelu [rows, inputs], of which the layer's input was gelu.
  void backward_input_gelu(const ProductShape& shape, comm::DeviceSpan<const E> grad_output,
                           comm::DeviceSpan<const E> weight, float factor, comm::DeviceSpan<const E> pre_gelu,
                           comm::DeviceSpan<E> grad_input);

  /// grad_weight = factor x input' grad_output, and grad_bias = the column sums of grad_output, or += with kAdd;
  /// grad_bias may be empty, and must be where the factor is not 1.
  void backward_weight(const ProductShape& shape, comm::DeviceSpan<const E> input,
                       comm::DeviceSpan<const E> grad_output, float factor, GradientMode mode,
                       comm::DeviceSpan<float> grad_weight, comm::DeviceSpan<float> grad_bias);

  /// For the program that records which algorithm each product takes.
  CublasLtProducts& library();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace droptest::models
