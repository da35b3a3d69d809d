// SPDX-License-Identifier: Apache-2.0
// The rate of each kernel of a step on a device, at the shapes of GPT-2 124M with 16 sequences of 1,024 tokens in
// bfloat16: bytes per second, where each input is read and each output written once; operations per second of matrix
// products. Prints one JSON object; benchmarks/gpu/gpu_bench reads it.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "comm/device/device_buffer.h"
#include "comm/device/device_info.h"
#include "comm/device/device_tensor.h"
#include "comm/device/stream.h"
#include "models/kernels/adamw.h"
#include "models/kernels/attention_kernel.h"
#include "models/kernels/bf16.h"
#include "models/kernels/cross_entropy.h"
#include "models/kernels/embedding.h"
#include "models/kernels/gelu.h"
#include "models/kernels/layernorm.h"
#include "models/kernels/matrix_products.h"
#include "models/kernels/tensor_segments.h"
#include "models/ops/kernel_registry.h"
#include "models/ops/ops.h"
#include "sim/error.h"
#include "sim/random/philox.h"

namespace droptest {
namespace {

using comm::DeviceBuffer;
using comm::DeviceSpan;
using models::Bf16;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kBatch = 16;
constexpr std::int64_t kLength = 1024;
constexpr std::int64_t kRows = kBatch * kLength;
constexpr std::int64_t kWidth = 768;
constexpr std::int64_t kHeads = 12;
constexpr std::int64_t kHidden = 4 * kWidth;
constexpr std::int64_t kVocabulary = 50257;
constexpr std::int64_t kStride = 50304;
constexpr std::int64_t kLogitRows = 4096;
constexpr std::uint64_t kParameters = 124439808;

/// Numbers of mean 0 whose bits look random: products of zeros take less power, and so have a higher clock.
template <class T>
DeviceBuffer<T> randoms(std::int64_t count, comm::Stream& stream) {
  std::vector<T> values(static_cast<std::size_t>(count));
  sim::PhiloxEngine engine(1, sim::Purpose::kSyntheticInput, 0);
  std::vector<std::uint32_t> draws(std::min<std::size_t>(values.size(), std::size_t{1} << 20U));
  for (std::uint32_t& draw : draws) draw = static_cast<std::uint32_t>(engine());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto number = static_cast<float>(static_cast<std::int32_t>(draws[i % draws.size()])) * 0x1p-31F;
    if constexpr (std::is_same_v<T, Bf16>) values[i] = comm::to_bf16(number);
    if constexpr (!std::is_same_v<T, Bf16>) values[i] = number;
  }
  DeviceBuffer<T> buffer(values.size(), "benchmark");
  comm::copy_to_device(std::span<const T>(values), buffer.elems(), stream);
  stream.synchronize();
  return buffer;
}

template <class T>
DeviceBuffer<T> zeros(std::int64_t count, comm::Stream& stream) {
  DeviceBuffer<T> buffer(static_cast<std::size_t>(count), "benchmark");
  comm::zero_on_device(buffer.elems(), stream);
  return buffer;
}

/// Times kernels one after another.
class Rates {
 public:
  explicit Rates(comm::Stream& stream) : stream_(stream) {}

  void bytes(const std::string& name, double count, const std::function<void()>& body) {
    const double seconds = seconds_of(body);
    record_.push_back(
        {{"name", name}, {"microseconds", 1e6 * seconds}, {"gigabytes_per_second", count / seconds / 1e9}});
  }
  void operations(const std::string& name, double count, const std::function<void()>& body) {
    const double seconds = seconds_of(body);
    record_.push_back({{"name", name}, {"microseconds", 1e6 * seconds}, {"teraflops", count / seconds / 1e12}});
  }
  void absent(const std::string& name, const std::string& reason) {
    record_.push_back({{"name", name}, {"absence", reason}});
  }
  const nlohmann::json& record() const { return record_; }

 private:
  /// Of one call, from as many as take a twentieth of a second.
  double seconds_of(const std::function<void()>& body) {
    for (int i = 0; i < 3; ++i) body();
    const double one = seconds_of(body, 3);
    return seconds_of(body, std::max(5, static_cast<int>(0.05 / one)));
  }
  double seconds_of(const std::function<void()>& body, int calls) {
    stream_.synchronize();
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < calls; ++i) body();
    stream_.synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count() / calls;
  }

  comm::Stream& stream_;
  nlohmann::json record_ = nlohmann::json::array();
};

void row_kernels(comm::Stream& stream, Rates& rates) {
  const double row_bytes = static_cast<double>(kRows * kWidth) * sizeof(Bf16);
  auto a = randoms<Bf16>(kRows * kWidth, stream);
  auto b = randoms<Bf16>(kRows * kWidth, stream);
  auto c = randoms<Bf16>(kRows * kWidth, stream);
  auto d = randoms<Bf16>(kRows * kWidth, stream);
  auto gain = randoms<Bf16>(kWidth, stream);
  auto mean = randoms<float>(kRows, stream);
  auto deviation = zeros<float>(kRows, stream);
  auto grads = randoms<float>(3 * kWidth, stream);
  auto scratch = randoms<float>(static_cast<std::int64_t>(models::layernorm_scratch_elems(kRows, kWidth)), stream);
  const auto tensor = [&stream](auto& buffer) { return comm::device_tensor(buffer.elems(), stream); };
  const comm::Tensor g = tensor(gain);
  rates.bytes("copy (yardstick)", 2 * row_bytes,
              [&] { comm::copy_on_device(DeviceSpan<const Bf16>(a.elems()), b.elems(), stream); });
  rates.bytes("layernorm_forward", 2 * row_bytes, [&] {
    models::layernorm_forward<Bf16>(
        {tensor(a), {}, {}, g, g, kRows, kWidth, {}, tensor(b), tensor(mean), tensor(deviation)}, stream);
  });
  rates.bytes("residual_layernorm_forward", 4 * row_bytes, [&] {
    models::layernorm_forward<Bf16>(
        {tensor(a), tensor(b), g, g, g, kRows, kWidth, tensor(c), tensor(d), tensor(mean), tensor(deviation)}, stream);
  });
  rates.bytes("layernorm_backward", 4 * row_bytes, [&] {
    const auto part = [&](std::int64_t i) { return models::elements(tensor(grads), i * kWidth, kWidth); };
    models::layernorm_backward<Bf16>(
        {tensor(a), tensor(b), tensor(mean), tensor(deviation), g, kRows, kWidth, tensor(c), tensor(d), part(0),
         part(1), part(2), models::GradientMode::kSet, tensor(scratch)},
        stream);
  });
  auto tokens = zeros<std::int32_t>(kRows, stream);
  auto table = randoms<Bf16>(kVocabulary * kWidth, stream);
  rates.bytes("embedding_forward", 2 * row_bytes, [&] {
    models::embedding_forward<Bf16>(tokens.elems(), {0, kVocabulary}, table.elems(), kWidth, a.elems(), stream);
  });
  rates.bytes("add_positions", 2 * row_bytes,
              [&] { models::add_positions<Bf16>(table.elems(), kBatch, kLength, kWidth, a.elems(), stream); });
  auto positions = randoms<float>(kLength * kWidth, stream);
  rates.bytes("positions_backward", row_bytes,
              [&] { models::positions_backward<Bf16>(a.elems(), kBatch, kLength, kWidth, positions.elems(), stream); });
}

void parameter_kernels(comm::Stream& stream, Rates& rates) {
  const auto count = static_cast<std::int64_t>(kParameters);
  auto value = randoms<float>(count, stream);
  auto gradient = randoms<float>(count, stream);
  auto first = randoms<float>(count, stream);
  auto second = zeros<float>(count, stream);
  auto rounded = randoms<Bf16>(count, stream);
  const std::vector<models::ParameterRange> whole = {{0, kParameters, models::Decay::kDecays}};
  const models::TensorSegments segments(whole, stream);
  auto partial = zeros<double>(static_cast<std::int64_t>(segments.chunks().size()), stream);
  auto sum = zeros<double>(1, stream);
  models::AdamWStep update;
  update.learning_rate = 1e-3;
  update.beta1 = 0.9;
  update.beta2 = 0.95;
  update.epsilon = 1e-8;
  rates.bytes("adamw_update", 30.0 * static_cast<double>(kParameters), [&] {
    models::adamw_update<Bf16>(segments, value.elems(), gradient.elems(), first.elems(), second.elems(),
                               rounded.elems(), update, {}, stream);
  });
  rates.bytes("sum_of_squares", 4.0 * static_cast<double>(kParameters), [&] {
    models::squares_of_chunks(segments, gradient.elems(), partial.elems(), stream);
    models::add_in_order(partial.elems(), sum.elems(), stream);
  });
  rates.bytes("convert", 6.0 * static_cast<double>(kParameters),
              [&] { models::convert<Bf16, float>(value.elems(), rounded.elems(), stream); });
}

void attention_kernels(comm::Stream& stream, Rates& rates) {
  const models::AttentionShape shape{kBatch, kLength, kHeads, kWidth / kHeads};
  auto qkv = randoms<Bf16>(3 * kRows * kWidth, stream);
  auto grad_qkv = randoms<Bf16>(3 * kRows * kWidth, stream);
  auto output = randoms<Bf16>(kRows * kWidth, stream);
  auto gradient = randoms<Bf16>(kRows * kWidth, stream);
  auto rows = randoms<float>(kRows * kHeads, stream);
  // Two products of the unmasked half of the scores forward, five backward.
  const double product = static_cast<double>(kBatch * kLength * kLength * kWidth);
  const auto tensor = [&stream](auto& buffer) { return comm::device_tensor(buffer.elems(), stream); };
  const models::KernelTarget target{.stream = &stream};
  for (const std::string& name : models::kernel_names("attention", models::KernelDevice::kCuda)) {
    const auto kernel = models::make_attention({{"attention", {name}}}, models::KernelDevice::kCuda);
    auto forward_scratch = zeros<Bf16>(static_cast<std::int64_t>(kernel->forward_scratch_elems(shape, 0)), stream);
    auto backward_scratch = zeros<float>(static_cast<std::int64_t>(kernel->backward_scratch_elems(shape, 0)), stream);
    try {
      kernel->prepare(shape, comm::ElementType::kBfloat16, models::AttentionKernel::Passes::kBoth);
    } catch (const ConfigError& error) {
      rates.absent("attention " + name, error.what());
      continue;
    }
    rates.operations("attention " + name + " forward", 2 * product, [&] {
      kernel->forward({tensor(qkv), tensor(rows), tensor(output), tensor(forward_scratch)}, shape, target);
    });
    rates.operations("attention " + name + " backward", 5 * product, [&] {
      kernel->backward(
          {tensor(gradient), tensor(qkv), tensor(output), tensor(rows), tensor(grad_qkv), tensor(backward_scratch)},
          shape, target);
    });
  }
}

void linear_kernels(comm::Stream& stream, Rates& rates) {
  models::MatrixProducts<Bf16> products(stream);
  auto narrow = randoms<Bf16>(kRows * kWidth, stream);
  auto wide = randoms<Bf16>(kRows * kHidden, stream);
  auto before_gelu = randoms<Bf16>(kRows * kHidden, stream);
  auto weight = randoms<Bf16>(kWidth * kHidden, stream);
  auto bias = randoms<Bf16>(kHidden, stream);
  auto grad_weight = randoms<float>(kWidth * kHidden, stream);
  auto grad_bias = randoms<float>(kHidden, stream);
  const models::ProductShape up{kRows, kWidth, kHidden};
  const models::ProductShape down{kRows, kHidden, kWidth};
  const models::ProductShape qkv{kRows, kWidth, 3 * kWidth};
  const double up_operations = 2.0 * static_cast<double>(kRows * kWidth * kHidden);
  const auto first = [](auto& buffer, std::int64_t count) {
    return buffer.elems().first(static_cast<std::size_t>(count));
  };
  rates.operations("c_attn forward with bias", 0.75 * up_operations, [&] {
    products.forward(qkv, narrow.elems(), first(weight, kWidth * 3 * kWidth), first(bias, 3 * kWidth),
                     first(wide, kRows * 3 * kWidth));
  });
  rates.operations("c_fc forward with bias and GELU", up_operations, [&] {
    products.forward_gelu(up, narrow.elems(), weight.elems(), bias.elems(), before_gelu.elems(), wide.elems());
  });
  rates.operations("c_proj forward", up_operations,
                   [&] { products.forward(down, wide.elems(), weight.elems(), {}, narrow.elems()); });
  rates.operations("c_proj input gradient with GELU", up_operations, [&] {
    products.backward_input_gelu(down, narrow.elems(), weight.elems(), 1.0F, before_gelu.elems(), wide.elems());
  });
  rates.operations("c_fc input gradient", up_operations,
                   [&] { products.backward_input(up, wide.elems(), weight.elems(), 1.0F, narrow.elems()); });
  rates.operations("c_fc weight and bias gradient", up_operations, [&] {
    products.backward_weight(up, narrow.elems(), wide.elems(), 1.0F, models::GradientMode::kSet, grad_weight.elems(),
                             grad_bias.elems());
  });
}

void head_kernels(comm::Stream& stream, Rates& rates) {
  models::MatrixProducts<Bf16> products(stream);
  auto normalized = randoms<Bf16>(kLogitRows * kWidth, stream);
  auto wte = randoms<Bf16>(kVocabulary * kWidth, stream);
  auto logits = randoms<Bf16>(kLogitRows * kStride, stream);
  auto grad_wte = randoms<float>(kVocabulary * kWidth, stream);
  auto targets = zeros<std::int32_t>(kLogitRows, stream);
  auto losses = randoms<float>(kLogitRows, stream);
  const models::ProductShape shape{kLogitRows, kWidth, kVocabulary, models::WeightLayout::kOutputsByInputs, kStride};
  models::LogitBlock block;
  block.logits = comm::device_tensor(logits.elems(), stream);
  block.rows = kLogitRows;
  block.stride = kStride;
  block.range = {0, kVocabulary};
  block.targets = {targets.elems().data(), targets.elems().size()};
  block.losses = comm::device_tensor(losses.elems(), stream);
  const double operations = 2.0 * static_cast<double>(kLogitRows * kWidth * kVocabulary);
  rates.operations("head forward", operations,
                   [&] { products.forward(shape, normalized.elems(), wte.elems(), {}, logits.elems()); });
  rates.bytes("cross_entropy_forward_backward", 2.0 * static_cast<double>(kLogitRows * kStride) * sizeof(Bf16),
              [&] { models::cross_entropy<Bf16>(block, models::Logits::kToGradient, stream); });
  rates.operations("head input gradient", operations,
                   [&] { products.backward_input(shape, logits.elems(), wte.elems(), 1.0F, normalized.elems()); });
  rates.operations("head weight gradient", operations, [&] {
    products.backward_weight(shape, normalized.elems(), logits.elems(), 1.0F, models::GradientMode::kSet,
                             grad_wte.elems(), {});
  });
}

}  // namespace
}  // namespace droptest

int main() {
  try {
    droptest::comm::require_device(0);
    droptest::comm::Stream stream(0);
    droptest::Rates rates(stream);
    droptest::row_kernels(stream, rates);
    droptest::parameter_kernels(stream, rates);
    droptest::attention_kernels(stream, rates);
    droptest::linear_kernels(stream, rates);
    droptest::head_kernels(stream, rates);
    const auto devices = droptest::comm::survey_devices().devices;
    std::cout << nlohmann::json{{"device", droptest::comm::describe(devices.at(0))}, {"kernels", rates.record()}}.dump()
              << "\n";
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "device_rates: error: " << error.what() << "\n";
    return 1;
  }
}
