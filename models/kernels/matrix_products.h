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

/// How a device multiplies float operands: exactly, or only their upper 19 bits (TF32) on tensor cores. Other types are
/// multiplied exactly.
enum class FloatProducts : std::uint8_t { kExact, kTf32 };

/// E is float (all arithmetic in float), Bf16 or Fp16 (16-bit operands, sums in float). Owned by one rank and used by
/// one thread; all work is put on the constructor's stream. The algorithm of a shape is chosen at its first GEMM, from
/// the recorded choices (models/kernels/product_choices.h) or by the library. Any extent may be zero. Determinism:
/// results depend on shapes, alignments and values. Throws: CheckError if a tensor does not fit the shape; DeviceError.
template <class E>
class MatrixProducts {
 public:
  /// How biases are added and GELU is computed: by the library within the GEMM if it can, or always by kernels of
  /// droptest.
  enum class Epilogues : std::uint8_t { kFused, kOwnKernels };
  /// The stream is borrowed. Throws: DeviceError.
  explicit MatrixProducts(comm::Stream& stream, Epilogues epilogues = Epilogues::kFused,
                          FloatProducts floats = FloatProducts::kExact);
  ~MatrixProducts();

  /// output = input W + bias. The bias [outputs] may be empty, and must be empty if rows of the output have gaps or the
  /// output is not of type E. R is E, or float for a 16-bit E: then the sums are not rounded.
  template <class R>
  void forward(const ProductShape& shape, comm::DeviceSpan<const E> input, comm::DeviceSpan<const E> weight,
               comm::DeviceSpan<const E> bias, comm::DeviceSpan<R> output);

  /// pre_gelu = input W + bias, and output = gelu(pre_gelu), both without gaps between rows.
  void forward_gelu(const ProductShape& shape, comm::DeviceSpan<const E> input, comm::DeviceSpan<const E> weight,
                    comm::DeviceSpan<const E> bias, comm::DeviceSpan<E> pre_gelu, comm::DeviceSpan<E> output);

  /// grad_input = factor x grad_output W'. R is E, or float for a 16-bit E. A 16-bit result is rounded twice if
  /// left_over_outputs() is not 0: the part of these outputs is computed first.
  template <class R>
  void backward_input(const ProductShape& shape, comm::DeviceSpan<const E> grad_output,
                      comm::DeviceSpan<const E> weight, float factor, comm::DeviceSpan<R> grad_input);

  /// backward_input() multiplied by the derivative of GELU at pre_gelu [rows, inputs], for a layer with the input
  /// gelu(pre_gelu).
  void backward_input_gelu(const ProductShape& shape, comm::DeviceSpan<const E> grad_output,
                           comm::DeviceSpan<const E> weight, float factor, comm::DeviceSpan<const E> pre_gelu,
                           comm::DeviceSpan<E> grad_input);

  /// Sets grad_weight = factor x input' grad_output and grad_bias = the column sums of grad_output, or adds to them
  /// with kAdd. grad_bias may be empty, and must be empty if the factor is not 1.
  void backward_weight(const ProductShape& shape, comm::DeviceSpan<const E> input,
                       comm::DeviceSpan<const E> grad_output, float factor, GradientMode mode,
                       comm::DeviceSpan<float> grad_weight, comm::DeviceSpan<float> grad_bias);

  /// Access for the program that records the algorithm of each GEMM.
  CublasLtProducts& library();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace droptest::models
