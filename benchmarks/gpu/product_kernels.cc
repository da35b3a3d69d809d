// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>

#include "benchmarks/gpu/kernel_rates.h"
#include "benchmarks/gpu/step_kernels.h"
#include "comm/device/device_span.h"
#include "models/kernels/cross_entropy.h"
#include "models/kernels/cublaslt_products.h"
#include "models/kernels/gelu.h"
#include "models/kernels/matrix_products.h"
#include "models/kernels/narrow_floats.h"
#include "models/kernels/residual.h"
#include "models/ops/cuda_ops.h"
#include "models/ops/ops_form.h"

namespace droptest {

using comm::DeviceSpan;
using models::Bf16;
using models::GradientMode;
using Products = models::MatrixProducts<Bf16>;

void linear_kernels(const StepShape& model, comm::Stream& stream, KernelRates& rates) {
  Products products(stream);
  rates.record_choices(products.library(), models::FloatProducts::kExact);
  Products unfused(stream, Products::Epilogues::kOwnKernels);
  const std::int64_t rows = model.rows();
  const std::int64_t width = model.width;
  const std::int64_t hidden = model.hidden();
  auto narrow = random_numbers<Bf16>(rows * width, stream);
  auto wide = random_numbers<Bf16>(rows * hidden, stream);
  auto before_gelu = random_numbers<Bf16>(rows * hidden, stream);
  auto weight = random_numbers<Bf16>(width * hidden, stream);
  auto bias = random_numbers<Bf16>(hidden, stream);
  // Results are no input of other GEMMs, because the numbers would grow from one to the next.
  auto narrow_result = random_numbers<Bf16>(rows * width, stream);
  auto wide_result = random_numbers<Bf16>(rows * hidden, stream);
  auto saved = random_numbers<Bf16>(rows * hidden, stream);
  auto grad_weight = random_numbers<float>(width * hidden, stream);
  auto grad_bias = random_numbers<float>(hidden, stream);

  const models::ProductShape up{rows, width, hidden};
  const models::ProductShape down{rows, hidden, width};
  const models::ProductShape qkv{rows, width, 3 * width};
  const models::ProductShape square{rows, width, width};
  const double up_operations = 2.0 * static_cast<double>(rows * width * hidden);
  const double qkv_operations = 0.75 * up_operations;
  const double square_operations = 0.25 * up_operations;
  const InStep forward = model.in_each_block("GEMMs, forward", "products");
  const InStep input_gradient = model.in_each_block("GEMMs, input gradients", "products");
  const InStep weight_gradient = model.in_each_block("GEMMs, weight gradients", "products");
  const InStep bias_gradient = model.in_each_block("bias gradients", "products");

  rates.operations(
      "c_attn forward with bias", qkv_operations,
      [&] {
        products.forward(qkv, narrow.elems(), first(weight, 3 * width * width), first(bias, 3 * width),
                         first(wide_result, rows * 3 * width));
      },
      forward);
  rates.operations(
      "attention c_proj forward", square_operations,
      [&] { products.forward(square, narrow.elems(), first(weight, width * width), {}, narrow_result.elems()); },
      forward);
  const auto gelu_forward = [&](Products& form) {
    form.forward_gelu(up, narrow.elems(), weight.elems(), bias.elems(), saved.elems(), wide_result.elems());
  };
  rates.epilogue({"c_fc forward with bias", "GELU of c_fc, forward", up_operations,
                  [&] { products.forward(up, narrow.elems(), weight.elems(), bias.elems(), wide_result.elems()); },
                  [&] { gelu_forward(products); }, [&] { gelu_forward(unfused); }, forward,
                  model.in_each_block("GELU, forward", "products")});
  rates.operations(
      "MLP c_proj forward", up_operations,
      [&] { products.forward(down, wide.elems(), weight.elems(), {}, narrow_result.elems()); }, forward);

  rates.operations(
      "c_attn input gradient", qkv_operations,
      [&] {
        products.backward_input(qkv, first(wide, rows * 3 * width), first(weight, 3 * width * width), 1.0F,
                                narrow_result.elems());
      },
      input_gradient);
  rates.operations(
      "attention c_proj input gradient", square_operations,
      [&] {
        products.backward_input(square, narrow.elems(), first(weight, width * width), 1.0F, narrow_result.elems());
      },
      input_gradient);
  rates.operations(
      "c_fc input gradient", up_operations,
      [&] { products.backward_input(up, wide.elems(), weight.elems(), 1.0F, narrow_result.elems()); }, input_gradient);
  const auto gelu_backward = [&](Products& form) {
    form.backward_input_gelu(down, narrow.elems(), weight.elems(), 1.0F, before_gelu.elems(), wide_result.elems());
  };
  rates.epilogue({"MLP c_proj input gradient", "GELU of c_fc, backward", up_operations,
                  [&] { products.backward_input(down, narrow.elems(), weight.elems(), 1.0F, wide_result.elems()); },
                  [&] { gelu_backward(products); }, [&] { gelu_backward(unfused); }, input_gradient,
                  model.in_each_block("GELU, backward", "products")});

  const auto qkv_gradient = [&](Products& form, DeviceSpan<float> of_bias) {
    form.backward_weight(qkv, narrow.elems(), first(wide, rows * 3 * width), 1.0F, GradientMode::kSet,
                         first(grad_weight, 3 * width * width), of_bias);
  };
  rates.epilogue({"c_attn weight gradient", "bias gradient of c_attn", qkv_operations,
                  [&] { qkv_gradient(products, {}); }, [&] { qkv_gradient(products, first(grad_bias, 3 * width)); },
                  [&] { qkv_gradient(unfused, first(grad_bias, 3 * width)); }, weight_gradient, bias_gradient});
  rates.operations(
      "attention c_proj weight gradient", square_operations,
      [&] {
        products.backward_weight(square, narrow.elems(), narrow_result.elems(), 1.0F, GradientMode::kSet,
                                 first(grad_weight, width * width), {});
      },
      weight_gradient);
  const auto up_gradient = [&](Products& form, DeviceSpan<float> of_bias) {
    form.backward_weight(up, narrow.elems(), wide.elems(), 1.0F, GradientMode::kSet, grad_weight.elems(), of_bias);
  };
  rates.epilogue({"c_fc weight gradient", "bias gradient of c_fc", up_operations, [&] { up_gradient(products, {}); },
                  [&] { up_gradient(products, grad_bias.elems()); }, [&] { up_gradient(unfused, grad_bias.elems()); },
                  weight_gradient, bias_gradient});
  rates.operations(
      "MLP c_proj weight gradient", up_operations,
      [&] {
        products.backward_weight(down, wide.elems(), narrow.elems(), 1.0F, GradientMode::kSet, grad_weight.elems(), {});
      },
      weight_gradient);

  // Droptest's own kernels without a GEMM.
  const double wide_bytes = static_cast<double>(rows * hidden) * sizeof(Bf16);
  const models::RowShape hidden_rows{rows, hidden, hidden};
  auto sums = zeros<float>(static_cast<std::int64_t>(models::column_sums_scratch_elems(hidden_rows)), stream);
  rates.bytes("column_sums of c_fc", wide_bytes, [&] {
    models::column_sums<Bf16>(wide.elems(), hidden_rows, GradientMode::kSet, grad_bias.elems(), sums.elems(), stream);
  });

  // The bias gradient of c_fc, computed in the GEMM that produces its values: that of the gradient before GELU.
  auto rounded_sums = zeros<Bf16>(hidden, stream);
  models::CublasLtProducts& library = products.library();
  models::CublasLtProduct gradient{.op_a = CUBLAS_OP_T,
                                   .a = models::stored(weight.elems().data(), width, hidden, width),
                                   .op_b = CUBLAS_OP_N,
                                   .b = models::stored(narrow.elems().data(), width, rows, width),
                                   .result = models::stored(wide_result.elems().data(), hidden, rows, hidden),
                                   .factor = 1.0F,
                                   .keep = 0.0F,
                                   .epilogue = CUBLASLT_EPILOGUE_DGELU,
                                   .pre_gelu = before_gelu.elems().data(),
                                   .pre_gelu_stride = hidden};
  models::CublasLtProduct with_sums = gradient;
  with_sums.epilogue = CUBLASLT_EPILOGUE_DGELU_BGRAD;
  with_sums.bias = rounded_sums.elems().data();
  const auto plain = [&] {
    if (!library.multiply_if_possible(gradient)) gelu_backward(products);
  };
  const auto with_own_sums = [&] {
    plain();
    models::column_sums<Bf16>(wide_result.elems(), hidden_rows, GradientMode::kSet, grad_bias.elems(), sums.elems(),
                              stream);
  };
  const auto with_sums_in_gemm = [&] {
    if (!library.multiply_if_possible(with_sums)) with_own_sums();
  };
  rates.compare({"MLP c_proj input gradient with GELU",
                 "bias gradient of c_fc, in the GEMM before",
                 up_operations,
                 plain,
                 with_sums_in_gemm,
                 with_own_sums,
                 {},
                 {}});
  rates.bytes("bias_gelu", 3 * wide_bytes,
              [&] { models::bias_gelu<Bf16>(bias.elems(), rows, saved.elems(), wide_result.elems(), stream); });
  rates.bytes("gelu_backward", 3 * wide_bytes,
              [&] { models::gelu_backward<Bf16>(before_gelu.elems(), wide_result.elems(), stream); });
}

/// One chunk of rows, with the size that a step uses.
void head_kernels(const StepShape& model, comm::Stream& stream, KernelRates& rates) {
  models::CudaOpsOptions options;
  options.precision.compute = models::Precision::kBfloat16;
  const models::LogitChunks chunks =
      models::cuda_ops_form(options, 1)->logit_chunks(model.rows(), model.vocabulary, model.vocabulary);
  const std::int64_t rows = chunks.rows;
  const std::int64_t width = model.width;
  Products products(stream);
  rates.record_choices(products.library(), models::FloatProducts::kExact);
  auto normalized = random_numbers<Bf16>(rows * width, stream);
  auto wte = random_numbers<Bf16>(model.vocabulary * width, stream);
  auto logits = random_numbers<Bf16>(rows * chunks.stride, stream);
  auto gradients = random_numbers<Bf16>(rows * chunks.stride, stream);
  auto grad_normalized = random_numbers<Bf16>(rows * width, stream);
  auto grad_wte = random_numbers<float>(model.vocabulary * width, stream);
  auto targets = on_device(random_tokens(rows, model.vocabulary), stream);
  auto losses = random_numbers<float>(rows, stream);
  const models::ProductShape shape{rows, width, model.vocabulary, models::WeightLayout::kOutputsByInputs,
                                   chunks.stride};
  models::LogitBlock block;
  block.logits = tensor(logits, stream);
  block.rows = rows;
  block.stride = chunks.stride;
  block.range = {0, model.vocabulary};
  block.targets = {targets.elems().data(), targets.elems().size()};
  block.losses = tensor(losses, stream);
  const double operations = 2.0 * static_cast<double>(rows) * static_cast<double>(width * model.vocabulary);
  const auto in_step = [&](const char* group, const char* phase) {
    return InStep{static_cast<double>(model.rows()) / static_cast<double>(rows), group, phase};
  };
  rates.operations(
      "head forward", operations, [&] { products.forward(shape, normalized.elems(), wte.elems(), {}, logits.elems()); },
      in_step("head, logits", "products"));
  rates.bytes(
      "cross_entropy", 2.0 * static_cast<double>(rows * chunks.stride) * sizeof(Bf16),
      [&] { models::cross_entropy<Bf16>(block, models::Logits::kToGradient, stream); },
      in_step("cross entropy", "cross_entropy"));
  rates.operations(
      "head input gradient", operations,
      [&] { products.backward_input(shape, gradients.elems(), wte.elems(), 1.0F, grad_normalized.elems()); },
      in_step("head, input gradient", "products"));
  // Only the first chunk of a step sets the gradient.
  rates.operations(
      "head weight gradient", operations,
      [&] {
        products.backward_weight(shape, normalized.elems(), gradients.elems(), 1.0F, GradientMode::kAdd,
                                 grad_wte.elems(), {});
      },
      in_step("head, weight gradient", "products"));
}

}  // namespace droptest
