// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/matrix_products.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>

#include "comm/device/device_buffer.h"
#include "models/kernels/cublaslt_products.h"
#include "models/kernels/gelu.h"
#include "models/kernels/residual.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

/// The check of extents and ranges that each GEMM makes.
struct Extents {
  std::int64_t stride;
  std::size_t input;
  std::size_t weight;
  std::size_t output;
};

/// `input`, `weight` and `output` are the sizes of the tensors or of their gradients.
Extents checked_extents(const char* operation, const ProductShape& shape, std::size_t input, std::size_t weight,
                        std::size_t output) {
  const std::int64_t stride = shape.output_stride == 0 ? shape.outputs : shape.output_stride;
  DROPTEST_CHECK(shape.rows >= 0 && shape.inputs >= 0 && shape.outputs >= 0 && stride >= shape.outputs,
                 std::string(operation) + ": rows " + std::to_string(shape.rows) + ", inputs " +
                     std::to_string(shape.inputs) + ", outputs " + std::to_string(shape.outputs) + ", output stride " +
                     std::to_string(shape.output_stride));
  const std::int64_t elems = shape.rows == 0 || shape.outputs == 0 ? 0 : (shape.rows - 1) * stride + shape.outputs;
  const Extents want{stride, static_cast<std::size_t>(shape.rows * shape.inputs),
                     static_cast<std::size_t>(shape.inputs * shape.outputs), static_cast<std::size_t>(elems)};
  DROPTEST_CHECK(input >= want.input && weight >= want.weight && output >= want.output,
                 std::string(operation) + ": got inputs, weights and outputs of " + std::to_string(input) + ", " +
                     std::to_string(weight) + " and " + std::to_string(output) + " elements, want at least " +
                     std::to_string(want.input) + ", " + std::to_string(want.weight) + " and " +
                     std::to_string(want.output));
  return want;
}

/// The weight [inputs, outputs], or its gradient, in the library's column-major form, and the operation that makes it
/// [outputs, inputs] there.
template <class T>
std::pair<Stored, cublasOperation_t> weight_of(const ProductShape& shape, const T* data) {
  if (shape.layout == WeightLayout::kInputsByOutputs) {
    return {stored(data, shape.outputs, shape.inputs, shape.outputs), CUBLAS_OP_N};
  }
  return {stored(data, shape.inputs, shape.outputs, shape.inputs), CUBLAS_OP_T};
}

cublasOperation_t other(cublasOperation_t op) { return op == CUBLAS_OP_N ? CUBLAS_OP_T : CUBLAS_OP_N; }

/// The library requires an alignment of 16 bytes for a bias and for the argument of GELU.
bool is_aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }
bool fits_gelu_epilogue(const Stored& result, const void* pre_gelu) {
  return result.stride % 8 == 0 && is_aligned(result.data) && is_aligned(pre_gelu);
}

/// The number of outputs of the main GEMM; a second GEMM computes the rest.
template <class E>
std::int64_t outputs_of_one_product(const ProductShape& shape, std::int64_t stride) {
  const bool cuts = sizeof(E) == 2 && shape.layout == WeightLayout::kOutputsByInputs && stride % kOutputsTogether == 0;
  return cuts ? shape.outputs - left_over_outputs(shape.outputs) : shape.outputs;
}

ProductShape with_outputs(ProductShape shape, std::int64_t outputs) {
  shape.outputs = outputs;
  return shape;
}

/// output' = W' input'.
template <class E, class R>
CublasLtProduct forward_product(const ProductShape& shape, const E* input, const E* weight, std::int64_t stride,
                                const R* output) {
  const auto [matrix, op] = weight_of(shape, weight);
  return {op,
          matrix,
          CUBLAS_OP_N,
          stored(input, shape.inputs, shape.rows, shape.inputs),
          stored(output, shape.outputs, shape.rows, stride),
          1.0F,
          0.0F};
}

/// grad_input' = W grad_output'.
template <class E, class R>
CublasLtProduct input_product(const ProductShape& shape, const E* grad_output, std::int64_t stride, const E* weight,
                              float factor, const R* grad_input) {
  const auto [matrix, op] = weight_of(shape, weight);
  return {other(op),
          matrix,
          CUBLAS_OP_N,
          stored(grad_output, shape.outputs, shape.rows, stride),
          stored(grad_input, shape.inputs, shape.rows, shape.inputs),
          factor,
          0.0F};
}

/// grad_weight' (+)= grad_output' input. The layout of the weight decides whether the outputs are the library's rows.
template <class E>
CublasLtProduct gradient_product(const ProductShape& shape, const E* input, const E* grad_output, std::int64_t stride,
                                 float factor, float keep, const float* grad_weight) {
  const bool by_outputs = shape.layout == WeightLayout::kInputsByOutputs;
  const Stored x = stored(input, shape.inputs, shape.rows, shape.inputs);
  const Stored dy = stored(grad_output, shape.outputs, shape.rows, stride);
  return {
      CUBLAS_OP_N, by_outputs ? dy : x, CUBLAS_OP_T, by_outputs ? x : dy, weight_of(shape, grad_weight).first, factor,
      keep};
}

}  // namespace

template <class E>
class MatrixProducts<E>::Impl {
 public:
  Impl(comm::Stream& stream, Epilogues epilogues, FloatProducts floats)
      : library(stream, floats), stream_(stream), fuses_(epilogues == Epilogues::kFused) {}

  bool fuses() const { return fuses_; }
  comm::Stream& stream() { return stream_; }

  /// Room for the partial sums of a bias' gradient.
  comm::DeviceSpan<float> scratch(std::uint64_t elems) {
    if (scratch_.elems().size() < elems) {
      stream_.synchronize();  // the smaller buffer may be in use
      scratch_ = comm::DeviceBuffer<float>(elems, "partial sums of biases' gradients");
    }
    return scratch_.elems();
  }

  CublasLtProducts library;

 private:
  comm::Stream& stream_;
  bool fuses_;
  comm::DeviceBuffer<float> scratch_;
};

template <class E>
MatrixProducts<E>::MatrixProducts(comm::Stream& stream, Epilogues epilogues, FloatProducts floats)
    : impl_(std::make_unique<Impl>(stream, epilogues, floats)) {}
template <class E>
MatrixProducts<E>::~MatrixProducts() = default;

template <class E>
CublasLtProducts& MatrixProducts<E>::library() {
  return impl_->library;
}

template <class E>
template <class R>
void MatrixProducts<E>::forward(const ProductShape& shape, comm::DeviceSpan<const E> input,
                                comm::DeviceSpan<const E> weight, comm::DeviceSpan<const E> bias,
                                comm::DeviceSpan<R> output) {
  constexpr const char* kName = "forward product";
  const Extents extents = checked_extents(kName, shape, input.size(), weight.size(), output.size());
  DROPTEST_CHECK(bias.empty() || (bias.size() == static_cast<std::size_t>(shape.outputs) &&
                                  extents.stride == shape.outputs && std::is_same_v<E, R>),
                 "forward product: a bias of " + std::to_string(bias.size()) + " for " + std::to_string(shape.outputs) +
                     " outputs in rows of " + std::to_string(extents.stride));
  if (extents.output == 0) return;
  const comm::DeviceSpan<R> result = output.first(extents.output);
  if (shape.inputs == 0) {
    comm::zero_on_device(result, impl_->stream());
  } else {
    CublasLtProduct product = forward_product(shape, input.data(), weight.data(), extents.stride, output.data());
    if (!bias.empty() && impl_->fuses() && is_aligned(bias.data())) {
      CublasLtProduct with_bias = product;
      with_bias.epilogue = CUBLASLT_EPILOGUE_BIAS;
      with_bias.bias = bias.data();
      if (impl_->library.multiply_if_possible(with_bias)) return;
    }
    const std::int64_t first = outputs_of_one_product<E>(shape, extents.stride);
    if (first < shape.outputs) {
      product = forward_product(with_outputs(shape, first), input.data(), weight.data(), extents.stride, output.data());
      impl_->library.multiply(
          kName, forward_product(with_outputs(shape, shape.outputs - first), input.data(),
                                 weight.data() + first * shape.inputs, extents.stride, output.data() + first));
    }
    impl_->library.multiply(kName, product);
  }
  if constexpr (std::is_same_v<E, R>) {
    if (!bias.empty()) add_bias<E>(bias, shape.rows, result, impl_->stream());
  }
}

template <class E>
void MatrixProducts<E>::forward_gelu(const ProductShape& shape, comm::DeviceSpan<const E> input,
                                     comm::DeviceSpan<const E> weight, comm::DeviceSpan<const E> bias,
                                     comm::DeviceSpan<E> pre_gelu, comm::DeviceSpan<E> output) {
  constexpr const char* kName = "forward product with GELU";
  const Extents extents =
      checked_extents(kName, shape, input.size(), weight.size(), std::min(pre_gelu.size(), output.size()));
  DROPTEST_CHECK(bias.size() == static_cast<std::size_t>(shape.outputs) && extents.stride == shape.outputs,
                 "forward product with GELU: a bias of " + std::to_string(bias.size()) + " for " +
                     std::to_string(shape.outputs) + " outputs in rows of " + std::to_string(extents.stride));
  if (extents.output == 0) return;
  if (shape.inputs == 0) {
    comm::zero_on_device(pre_gelu.first(extents.output), impl_->stream());
  } else {
    CublasLtProduct fused = forward_product(shape, input.data(), weight.data(), extents.stride, output.data());
    if (impl_->fuses() && is_aligned(bias.data()) && fits_gelu_epilogue(fused.result, pre_gelu.data())) {
      fused.epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
      fused.bias = bias.data();
      fused.pre_gelu = pre_gelu.data();
      fused.pre_gelu_stride = shape.outputs;
      if (impl_->library.multiply_if_possible(fused)) return;
    }
    impl_->library.multiply(kName,
                            forward_product(shape, input.data(), weight.data(), extents.stride, pre_gelu.data()));
  }
  bias_gelu<E>(bias, shape.rows, pre_gelu, output, impl_->stream());
}

template <class E>
template <class R>
void MatrixProducts<E>::backward_input(const ProductShape& shape, comm::DeviceSpan<const E> grad_output,
                                       comm::DeviceSpan<const E> weight, float factor, comm::DeviceSpan<R> grad_input) {
  constexpr const char* kName = "product for an input's gradient";
  const Extents extents = checked_extents(kName, shape, grad_input.size(), weight.size(), grad_output.size());
  if (extents.input == 0) return;
  if (shape.outputs == 0) {
    comm::zero_on_device(grad_input.first(extents.input), impl_->stream());
    return;
  }
  const std::int64_t first = outputs_of_one_product<E>(shape, extents.stride);
  CublasLtProduct product = input_product(with_outputs(shape, first), grad_output.data(), extents.stride, weight.data(),
                                          factor, grad_input.data());
  if (first < shape.outputs) {  // the few remaining outputs first: only their sum is rounded once more
    impl_->library.multiply(
        kName, input_product(with_outputs(shape, shape.outputs - first), grad_output.data() + first, extents.stride,
                             weight.data() + first * shape.inputs, factor, grad_input.data()));
    product.keep = 1.0F;
  }
  impl_->library.multiply(kName, product);
}

template <class E>
void MatrixProducts<E>::backward_input_gelu(const ProductShape& shape, comm::DeviceSpan<const E> grad_output,
                                            comm::DeviceSpan<const E> weight, float factor,
                                            comm::DeviceSpan<const E> pre_gelu, comm::DeviceSpan<E> grad_input) {
  const Extents extents =
      checked_extents("product for an input's gradient with GELU", shape, std::min(pre_gelu.size(), grad_input.size()),
                      weight.size(), grad_output.size());
  if (extents.input == 0) return;
  // The library's derivative of GELU has the accuracy of 16-bit numbers, not of float.
  if (shape.outputs > 0 && impl_->fuses() && sizeof(E) == 2) {
    CublasLtProduct fused =
        input_product(shape, grad_output.data(), extents.stride, weight.data(), factor, grad_input.data());
    if (fits_gelu_epilogue(fused.result, pre_gelu.data())) {
      fused.epilogue = CUBLASLT_EPILOGUE_DGELU;
      fused.pre_gelu = pre_gelu.data();
      fused.pre_gelu_stride = shape.inputs;
      if (impl_->library.multiply_if_possible(fused)) return;
    }
  }
  backward_input(shape, grad_output, weight, factor, grad_input);
  gelu_backward<E>(pre_gelu.first(extents.input), grad_input.first(extents.input), impl_->stream());
}

template <class E>
void MatrixProducts<E>::backward_weight(const ProductShape& shape, comm::DeviceSpan<const E> input,
                                        comm::DeviceSpan<const E> grad_output, float factor, GradientMode mode,
                                        comm::DeviceSpan<float> grad_weight, comm::DeviceSpan<float> grad_bias) {
  constexpr const char* kName = "product for a weight's gradient";
  const Extents extents = checked_extents(kName, shape, input.size(), grad_weight.size(), grad_output.size());
  DROPTEST_CHECK(grad_bias.empty() || (grad_bias.size() == static_cast<std::size_t>(shape.outputs) && factor == 1.0F),
                 "product for a weight's gradient: a bias' gradient of " + std::to_string(grad_bias.size()) + " for " +
                     std::to_string(shape.outputs) + " outputs, factor " + std::to_string(factor));
  const bool sets = mode == GradientMode::kSet;
  if (extents.weight > 0 && shape.rows > 0) {
    const bool by_outputs = shape.layout == WeightLayout::kInputsByOutputs;
    const float keep = sets ? 0.0F : 1.0F;
    const std::int64_t first = outputs_of_one_product<E>(shape, extents.stride);
    const CublasLtProduct product = gradient_product(with_outputs(shape, first), input.data(), grad_output.data(),
                                                     extents.stride, factor, keep, grad_weight.data());
    if (first < shape.outputs) {
      impl_->library.multiply(
          kName, gradient_product(with_outputs(shape, shape.outputs - first), input.data(), grad_output.data() + first,
                                  extents.stride, factor, keep, grad_weight.data() + first * shape.inputs));
    }
    if (!grad_bias.empty() && sets && by_outputs && impl_->fuses() && is_aligned(grad_bias.data())) {
      CublasLtProduct with_bias = product;
      with_bias.epilogue = CUBLASLT_EPILOGUE_BGRADA;
      with_bias.bias = grad_bias.data();
      if (impl_->library.multiply_if_possible(with_bias)) return;
    }
    impl_->library.multiply(kName, product);
  } else if (sets) {
    comm::zero_on_device(grad_weight.first(extents.weight), impl_->stream());
  }
  if (grad_bias.empty()) return;
  const RowShape rows{shape.rows, shape.outputs, extents.stride};
  column_sums<E>(grad_output, rows, mode, grad_bias, impl_->scratch(column_sums_scratch_elems(rows)), impl_->stream());
}

template class MatrixProducts<float>;
template void MatrixProducts<float>::forward(const ProductShape&, comm::DeviceSpan<const float>,
                                             comm::DeviceSpan<const float>, comm::DeviceSpan<const float>,
                                             comm::DeviceSpan<float>);
template void MatrixProducts<float>::backward_input(const ProductShape&, comm::DeviceSpan<const float>,
                                                    comm::DeviceSpan<const float>, float, comm::DeviceSpan<float>);
template class MatrixProducts<Bf16>;
template class MatrixProducts<Fp16>;
template void MatrixProducts<Bf16>::forward(const ProductShape&, comm::DeviceSpan<const Bf16>,
                                            comm::DeviceSpan<const Bf16>, comm::DeviceSpan<const Bf16>,
                                            comm::DeviceSpan<Bf16>);
template void MatrixProducts<Fp16>::forward(const ProductShape&, comm::DeviceSpan<const Fp16>,
                                            comm::DeviceSpan<const Fp16>, comm::DeviceSpan<const Fp16>,
                                            comm::DeviceSpan<Fp16>);
template void MatrixProducts<Bf16>::forward(const ProductShape&, comm::DeviceSpan<const Bf16>,
                                            comm::DeviceSpan<const Bf16>, comm::DeviceSpan<const Bf16>,
                                            comm::DeviceSpan<float>);
template void MatrixProducts<Fp16>::forward(const ProductShape&, comm::DeviceSpan<const Fp16>,
                                            comm::DeviceSpan<const Fp16>, comm::DeviceSpan<const Fp16>,
                                            comm::DeviceSpan<float>);
template void MatrixProducts<Bf16>::backward_input(const ProductShape&, comm::DeviceSpan<const Bf16>,
                                                   comm::DeviceSpan<const Bf16>, float, comm::DeviceSpan<Bf16>);
template void MatrixProducts<Fp16>::backward_input(const ProductShape&, comm::DeviceSpan<const Fp16>,
                                                   comm::DeviceSpan<const Fp16>, float, comm::DeviceSpan<Fp16>);
template void MatrixProducts<Bf16>::backward_input(const ProductShape&, comm::DeviceSpan<const Bf16>,
                                                   comm::DeviceSpan<const Bf16>, float, comm::DeviceSpan<float>);
template void MatrixProducts<Fp16>::backward_input(const ProductShape&, comm::DeviceSpan<const Fp16>,
                                                   comm::DeviceSpan<const Fp16>, float, comm::DeviceSpan<float>);

}  // namespace droptest::models
