// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <type_traits>

#include "models/kernels/attention.h"
#include "models/kernels/attention_forms.cuh"
#include "models/kernels/attention_plain.h"
#include "models/kernels/block_reduction.cuh"
#include "models/kernels/element_pack.cuh"
#include "models/kernels/narrow_floats.h"

namespace droptest::models {
namespace {

constexpr std::int64_t kMostHeadWidth = 256;

/// delta[b, h, t] = the sum over d of grad_output x output, which is also the sum over keys of probability times its
/// gradient. A warp has one (row, head).
template <class D>
__global__ void attention_delta_kernel(const D* grad_output, const D* output, AttentionShape shape, float* delta) {
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (blockDim.x / kWarp);
  const std::int64_t count = shape.batch * shape.length * shape.heads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp; i < count;
       i += warps) {
    const D* dy = grad_output + i * shape.head_width;
    const D* y = output + i * shape.head_width;
    float own = 0;
    for (std::int64_t d = threadIdx.x % kWarp; d < shape.head_width; d += kWarp)
      own += as_float(dy[d]) * as_float(y[d]);
    const float sum = warp_sum(own);
    const std::int64_t row = i / shape.heads;
    const std::int64_t head = i % shape.heads;
    if (threadIdx.x % kWarp == 0) {
      delta[(row / shape.length * shape.heads + head) * shape.length + row % shape.length] = sum;
    }
  }
}

/// Checks the shape, and returns the number of elements of the output.
std::size_t checked_elems(const char* operation, const AttentionShape& shape) {
  DROPTEST_CHECK(shape.batch >= 0 && shape.length >= 0 && shape.heads >= 0 && shape.head_width >= 1 &&
                     shape.head_width <= kMostHeadWidth,
                 std::string(operation) + ": B " + std::to_string(shape.batch) + ", T " + std::to_string(shape.length) +
                     ", NH " + std::to_string(shape.heads) + ", D " + std::to_string(shape.head_width) +
                     ", want D of 1 to " + std::to_string(kMostHeadWidth));
  return static_cast<std::size_t>(shape.batch * shape.length * shape.heads * shape.head_width);
}

/// Whether tensor cores can be used: they must support the width, and rows must be aligned to 16 bytes.
template <class D, class... Pointers>
bool uses_tensor_cores(const AttentionShape& shape, const Pointers*... pointers) {
  return std::is_same_v<D, __nv_bfloat16> && tensor_cores_take_width(shape.head_width) && packs_fit(pointers...);
}

enum class Arithmetic : std::uint8_t { kFastest, kPlain };

template <class E>
void forward(const char* operation, Arithmetic arithmetic, comm::DeviceSpan<const E> qkv, const AttentionShape& shape,
             comm::DeviceSpan<float> log_sum_exp, comm::DeviceSpan<E> output, comm::Stream& stream,
             const DropoutMask& dropout) {
  using D = DeviceElement<E>;
  const std::size_t elems = checked_elems(operation, shape);
  DROPTEST_CHECK(qkv.size() >= 3 * elems && output.size() >= elems &&
                     log_sum_exp.size() >= elems / static_cast<std::size_t>(shape.head_width),
                 std::string(operation) + ": qkv of " + std::to_string(qkv.size()) + ", output of " +
                     std::to_string(output.size()) + ", log_sum_exp of " + std::to_string(log_sum_exp.size()) +
                     " for an output of " + std::to_string(elems));
  const AttentionForward<D> work{shape, device_elems(qkv), log_sum_exp.data(), device_elems(output)};
  if constexpr (std::is_same_v<D, __nv_bfloat16>) {
    if (arithmetic == Arithmetic::kFastest && !dropout.is_on() && uses_tensor_cores<D>(shape, work.qkv, work.output)) {
      launch_tensor_core_attention_forward(work, stream);
      return;
    }
  }
  launch_plain_attention_forward(work, dropout, stream);
}

template <class E>
void backward(const char* operation, Arithmetic arithmetic, comm::DeviceSpan<const E> grad_output,
              comm::DeviceSpan<const E> qkv, comm::DeviceSpan<const E> output,
              comm::DeviceSpan<const float> log_sum_exp, const AttentionShape& shape, comm::DeviceSpan<E> grad_qkv,
              comm::DeviceSpan<float> scratch, comm::Stream& stream, const DropoutMask& dropout) {
  using D = DeviceElement<E>;
  const std::size_t elems = checked_elems(operation, shape);
  const std::size_t rows = elems / static_cast<std::size_t>(shape.head_width);
  DROPTEST_CHECK(grad_output.size() >= elems && qkv.size() >= 3 * elems && output.size() >= elems &&
                     log_sum_exp.size() >= rows && grad_qkv.size() >= 3 * elems && scratch.size() >= rows,
                 std::string(operation) + ": grad_output of " + std::to_string(grad_output.size()) + ", qkv of " +
                     std::to_string(qkv.size()) + ", output of " + std::to_string(output.size()) + ", log_sum_exp of " +
                     std::to_string(log_sum_exp.size()) + ", grad_qkv of " + std::to_string(grad_qkv.size()) +
                     ", scratch of " + std::to_string(scratch.size()) + " for an output of " + std::to_string(elems));
  comm::launch("attention_delta", attention_delta_kernel<D>, comm::cover(rows * kWarp), stream,
               device_elems(grad_output), device_elems(output), shape, scratch.data());
  const AttentionBackward<D> work{shape,          device_elems(grad_output), device_elems(qkv), log_sum_exp.data(),
                                  scratch.data(), device_elems(grad_qkv)};
  if constexpr (std::is_same_v<D, __nv_bfloat16>) {
    if (arithmetic == Arithmetic::kFastest && !dropout.is_on() &&
        uses_tensor_cores<D>(shape, work.grad_output, work.qkv, work.grad_qkv)) {
      launch_tensor_core_attention_backward(work, stream);
      return;
    }
  }
  launch_plain_attention_backward(work, dropout, stream);
}

}  // namespace

template <class E>
void attention_forward(comm::DeviceSpan<const E> qkv, const AttentionShape& shape, comm::DeviceSpan<float> log_sum_exp,
                       comm::DeviceSpan<E> output, comm::Stream& stream, const DropoutMask& dropout) {
  forward<E>("attention_forward", Arithmetic::kFastest, qkv, shape, log_sum_exp, output, stream, dropout);
}

template <class E>
void attention_backward(comm::DeviceSpan<const E> grad_output, comm::DeviceSpan<const E> qkv,
                        comm::DeviceSpan<const E> output, comm::DeviceSpan<const float> log_sum_exp,
                        const AttentionShape& shape, comm::DeviceSpan<E> grad_qkv, comm::DeviceSpan<float> scratch,
                        comm::Stream& stream, const DropoutMask& dropout) {
  backward<E>("attention_backward", Arithmetic::kFastest, grad_output, qkv, output, log_sum_exp, shape, grad_qkv,
              scratch, stream, dropout);
}

template <class E>
void plain_attention_forward(comm::DeviceSpan<const E> qkv, const AttentionShape& shape,
                             comm::DeviceSpan<float> log_sum_exp, comm::DeviceSpan<E> output, comm::Stream& stream,
                             const DropoutMask& dropout) {
  forward<E>("plain_attention_forward", Arithmetic::kPlain, qkv, shape, log_sum_exp, output, stream, dropout);
}

template <class E>
void plain_attention_backward(comm::DeviceSpan<const E> grad_output, comm::DeviceSpan<const E> qkv,
                              comm::DeviceSpan<const E> output, comm::DeviceSpan<const float> log_sum_exp,
                              const AttentionShape& shape, comm::DeviceSpan<E> grad_qkv,
                              comm::DeviceSpan<float> scratch, comm::Stream& stream, const DropoutMask& dropout) {
  backward<E>("plain_attention_backward", Arithmetic::kPlain, grad_output, qkv, output, log_sum_exp, shape, grad_qkv,
              scratch, stream, dropout);
}

#define DROPTEST_ATTENTION(E)                                                                                          \
  template void attention_forward<E>(comm::DeviceSpan<const E>, const AttentionShape&, comm::DeviceSpan<float>,        \
                                     comm::DeviceSpan<E>, comm::Stream&, const DropoutMask&);                          \
  template void attention_backward<E>(comm::DeviceSpan<const E>, comm::DeviceSpan<const E>, comm::DeviceSpan<const E>, \
                                      comm::DeviceSpan<const float>, const AttentionShape&, comm::DeviceSpan<E>,       \
                                      comm::DeviceSpan<float>, comm::Stream&, const DropoutMask&);                     \
  template void plain_attention_forward<E>(comm::DeviceSpan<const E>, const AttentionShape&, comm::DeviceSpan<float>,  \
                                           comm::DeviceSpan<E>, comm::Stream&, const DropoutMask&);                    \
  template void plain_attention_backward<E>(                                                                           \
      comm::DeviceSpan<const E>, comm::DeviceSpan<const E>, comm::DeviceSpan<const E>, comm::DeviceSpan<const float>,  \
      const AttentionShape&, comm::DeviceSpan<E>, comm::DeviceSpan<float>, comm::Stream&, const DropoutMask&);
DROPTEST_ATTENTION(float)
DROPTEST_ATTENTION(Bf16)
DROPTEST_ATTENTION(Fp16)
#undef DROPTEST_ATTENTION

}  // namespace droptest::models
