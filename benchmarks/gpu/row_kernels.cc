// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "benchmarks/gpu/kernel_rates.h"
#include "benchmarks/gpu/step_kernels.h"
#include "comm/device/device_buffer.h"
#include "comm/device/tensor_operations.h"
#include "models/kernels/adamw.h"
#include "models/kernels/embedding.h"
#include "models/kernels/layernorm.h"
#include "models/kernels/narrow_floats.h"
#include "models/kernels/tensor_segments.h"
#include "models/kernels/token_groups.h"
#include "models/ops/ops.h"

namespace droptest {

using comm::DeviceBuffer;
using comm::DeviceSpan;
using models::Bf16;
using models::GradientMode;

void norm_kernels(const StepShape& shape, comm::Stream& stream, KernelRates& rates) {
  const std::int64_t rows = shape.rows();
  const std::int64_t width = shape.width;
  const double row_bytes = static_cast<double>(rows * width) * sizeof(Bf16);
  auto a = random_numbers<Bf16>(rows * width, stream);
  auto b = random_numbers<Bf16>(rows * width, stream);
  auto c = random_numbers<Bf16>(rows * width, stream);
  auto d = random_numbers<Bf16>(rows * width, stream);
  auto gain = random_numbers<Bf16>(width, stream);
  auto mean = random_numbers<float>(rows, stream);
  auto deviation = zeros<float>(rows, stream);
  auto grads = random_numbers<float>(3 * width, stream);
  auto scratch = random_numbers<float>(static_cast<std::int64_t>(models::layernorm_scratch_elems(rows, width)), stream);
  const comm::Tensor g = tensor(gain, stream);
  const comm::Tensor means = tensor(mean, stream);
  const comm::Tensor deviations = tensor(deviation, stream);
  // The norms of a step: two in each block, and the last one. The first norm has no branch to add.
  const auto blocks = static_cast<double>(shape.layers);
  const std::string forward = "layer norm, forward";
  rates.bytes("copy (yardstick)", 2 * row_bytes,
              [&] { comm::copy_on_device(DeviceSpan<const Bf16>(a.elems()), b.elems(), stream); });
  rates.bytes(
      "layernorm_forward", 2 * row_bytes,
      [&] {
        models::layernorm_forward<Bf16>(
            {tensor(a, stream), {}, {}, g, g, rows, width, {}, tensor(b, stream), means, deviations}, stream);
      },
      InStep{1, forward, "layer_norm"});
  rates.bytes(
      "residual_layernorm_forward", 4 * row_bytes,
      [&] {
        models::layernorm_forward<Bf16>({tensor(a, stream), tensor(b, stream), g, g, g, rows, width, tensor(c, stream),
                                         tensor(d, stream), means, deviations},
                                        stream);
      },
      InStep{2 * blocks, forward, "layer_norm"});
  rates.bytes(
      "layernorm_backward", 4 * row_bytes,
      [&] {
        const auto part = [&](std::int64_t i) { return models::elements(tensor(grads, stream), i * width, width); };
        models::layernorm_backward<Bf16>(
            {tensor(a, stream), tensor(b, stream), means, deviations, g, rows, width, tensor(c, stream),
             tensor(d, stream), part(0), part(1), part(2), GradientMode::kSet, tensor(scratch, stream)},
            stream);
      },
      InStep{2 * blocks + 1, "layer norm, backward", "layer_norm"});
}

void embedding_kernels(const StepShape& shape, comm::Stream& stream, KernelRates& rates) {
  const std::int64_t rows = shape.rows();
  const std::int64_t width = shape.width;
  const double row_bytes = static_cast<double>(rows * width) * sizeof(Bf16);
  const InStep once{1, "embedding", "embedding"};
  const std::vector<std::int32_t> chosen = random_tokens(rows, shape.vocabulary);
  auto tokens = on_device(chosen, stream);
  auto table = random_numbers<Bf16>(shape.vocabulary * width, stream);
  auto values = random_numbers<Bf16>(rows * width, stream);
  auto grad_table = zeros<float>(shape.vocabulary * width, stream);
  auto grad_positions = zeros<float>(shape.length * width, stream);
  auto positions = random_numbers<Bf16>(shape.length * width, stream);
  const models::TokenRange whole{0, shape.vocabulary};
  rates.bytes(
      "embedding_forward", 2 * row_bytes,
      [&] { models::embedding_forward<Bf16>(tokens.elems(), whole, table.elems(), width, values.elems(), stream); },
      once);
  rates.bytes(
      "add_positions", 2 * row_bytes,
      [&] { models::add_positions<Bf16>(positions.elems(), shape.batch, shape.length, width, values.elems(), stream); },
      once);
  rates.bytes(
      "positions_backward", row_bytes,
      [&] {
        models::positions_backward<Bf16>(values.elems(), shape.batch, shape.length, width, grad_positions.elems(),
                                         stream);
      },
      once);
  models::TokenGroups groups(whole, chosen.size());
  groups.group(chosen, stream);
  const double table_bytes =
      2.0 * sizeof(float) * static_cast<double>(groups.rows().size()) * static_cast<double>(width);
  rates.bytes(
      "embedding_backward", row_bytes + table_bytes,
      [&] { models::embedding_backward<Bf16>(groups, values.elems(), width, grad_table.elems(), stream); }, once);
}

void parameter_kernels(const StepShape& shape, comm::Stream& stream, KernelRates& rates) {
  const std::int64_t count = shape.parameters();
  const auto elems = static_cast<double>(count);
  auto value = random_numbers<float>(count, stream);
  auto gradient = random_numbers<float>(count, stream);
  auto first_moment = random_numbers<float>(count, stream);
  auto second_moment = zeros<float>(count, stream);
  auto rounded = random_numbers<Bf16>(count, stream);
  const std::vector<models::ParameterRange> whole = {{0, static_cast<std::uint64_t>(count), models::Decay::kDecays}};
  const models::TensorSegments segments(whole, stream);
  auto partial = zeros<double>(static_cast<std::int64_t>(segments.chunks().size()), stream);
  auto sum = zeros<double>(1, stream);
  models::AdamWStep update;
  update.learning_rate = 1e-3;
  update.beta1 = 0.9;
  update.beta2 = 0.95;
  update.epsilon = 1e-8;
  rates.bytes(
      "adamw_update", 30 * elems,
      [&] {
        models::adamw_update<Bf16>(segments, value.elems(), gradient.elems(), first_moment.elems(),
                                   second_moment.elems(), rounded.elems(), update, {}, stream);
      },
      InStep{1, "optimizer", "optimizer"});
  rates.bytes(
      "sum_of_squares", 4 * elems,
      [&] {
        models::squares_of_chunks(segments, gradient.elems(), partial.elems(), stream);
        models::add_in_order(partial.elems(), sum.elems(), stream);
      },
      InStep{1, "gradient norm", "gradient_norm"});
}

/// The kernels of sums over four ranks on one card: the sum itself, and conversions to 16-bit messages.
void message_kernels(const StepShape& shape, comm::Stream& stream, KernelRates& rates) {
  constexpr std::size_t kRanks = 4;
  const std::int64_t count = shape.rows() * shape.width;
  const auto elems = static_cast<double>(count);
  std::vector<DeviceBuffer<float>> buffers;
  std::array<const std::byte*, kRanks> inputs{};
  std::array<std::byte*, kRanks> outputs{};
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    buffers.push_back(random_numbers<float>(count, stream));
    outputs[rank] = reinterpret_cast<std::byte*>(buffers.back().elems().data());
    inputs[rank] = outputs[rank];
  }
  auto message = random_numbers<Bf16>(count, stream);
  const auto sum_of = [&](comm::ElementType type) {
    comm::reduce_on_device(comm::ReduceOp::kSum, type, inputs, outputs, static_cast<std::uint64_t>(count), stream);
  };
  rates.bytes("sum of four ranks' messages, float32", 2.0 * kRanks * sizeof(float) * elems,
              [&] { sum_of(comm::ElementType::kFloat32); });
  rates.bytes("sum of four ranks' messages, bfloat16", 2.0 * kRanks * sizeof(Bf16) * elems,
              [&] { sum_of(comm::ElementType::kBfloat16); });
  rates.bytes("convert float32 to bfloat16", 6 * elems,
              [&] { models::convert<Bf16, float>(buffers.front().elems(), message.elems(), stream); });
}

}  // namespace droptest
