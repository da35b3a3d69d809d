// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "models/kernels/element_pack.cuh"
#include "models/kernels/embedding.h"
#include "models/kernels/narrow_floats.h"

namespace droptest::models {
namespace {

template <class D, int V>
__global__ void embedding_forward_kernel(const std::int32_t* tokens, std::int64_t rows, TokenRange range,
                                         const D* table, std::int64_t width, D* output) {
  for (std::int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
    const std::int64_t row = tokens[i] - range.first;
    const bool own = row >= 0 && row < range.count;
    for (std::int64_t j = threadIdx.x * V; j < width; j += blockDim.x * V) {
      Pack<D, V> pack = {};
      if (own) pack = *reinterpret_cast<const Pack<D, V>*>(table + row * width + j);
      *reinterpret_cast<Pack<D, V>*>(output + i * width + j) = pack;
    }
  }
}

template <class D, int V>
__global__ void add_positions_kernel(const D* table, std::int64_t rows, std::int64_t length, std::int64_t width,
                                     D* values) {
  for (std::int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
    const D* position = table + i % length * width;
    for (std::int64_t j = threadIdx.x * V; j < width; j += blockDim.x * V) {
      Floats<V> x = load_floats<V>(values + i * width + j);
      const Floats<V> p = load_floats<V>(position + j);
#pragma unroll
      for (int v = 0; v < V; ++v) x.at[v] += p.at[v];
      store_floats<V>(x, values + i * width + j);
    }
  }
}

template <class D, int V>
__global__ void positions_backward_kernel(const D* grad_values, std::int64_t batch, std::int64_t length,
                                          std::int64_t width, float* grad_table) {
  for (std::int64_t t = blockIdx.x; t < length; t += gridDim.x) {
    for (std::int64_t j = threadIdx.x * V; j < width; j += blockDim.x * V) {
      float* out = grad_table + t * width + j;
      Floats<V> sum = load_floats<V>(out);
      for (std::int64_t b = 0; b < batch; ++b) {
        const Floats<V> g = load_floats<V>(grad_values + (b * length + t) * width + j);
#pragma unroll
        for (int v = 0; v < V; ++v) sum.at[v] += g.at[v];
      }
      store_floats<V>(sum, out);
    }
  }
}

std::string batch_text(std::int64_t batch, std::int64_t length, std::int64_t width) {
  return std::string("[") + std::to_string(batch) + ", " + std::to_string(length) + ", " + std::to_string(width) + "]";
}

}  // namespace

template <class E>
void embedding_forward(comm::DeviceSpan<const std::int32_t> tokens, TokenRange range, comm::DeviceSpan<const E> table,
                       std::int64_t width, comm::DeviceSpan<E> output, comm::Stream& stream) {
  using D = DeviceElement<E>;
  DROPTEST_CHECK(width >= 0 && range.count >= 0 && table.size() >= static_cast<std::size_t>(range.count * width) &&
                     output.size() == tokens.size() * static_cast<std::size_t>(width),
                 "embedding_forward: " + std::to_string(tokens.size()) + " tokens, width " + std::to_string(width) +
                     ", table of " + std::to_string(table.size()) + " for " + std::to_string(range.count) +
                     " rows, output of " + std::to_string(output.size()));
  const auto rows = static_cast<std::int64_t>(tokens.size());
  const bool packs = rows_of_packs<D>(width, table.data(), output.data());
  comm::launch("embedding_forward", packs ? embedding_forward_kernel<D, kPackElems<D>> : embedding_forward_kernel<D, 1>,
               block_per_row(rows, width / (packs ? kPackElems<D> : 1)), stream, tokens.data(), rows, range,
               device_elems(table), width, device_elems(output));
}

template <class E>
void add_positions(comm::DeviceSpan<const E> table, std::int64_t batch, std::int64_t length, std::int64_t width,
                   comm::DeviceSpan<E> values, comm::Stream& stream) {
  using D = DeviceElement<E>;
  const std::int64_t rows = batch * length;
  DROPTEST_CHECK(rows >= 0 && width >= 0 && table.size() >= static_cast<std::size_t>(length * width) &&
                     values.size() == static_cast<std::size_t>(rows * width),
                 "add_positions: " + batch_text(batch, length, width) + " of " + std::to_string(values.size()) +
                     " values, table of " + std::to_string(table.size()));
  const bool packs = rows_of_packs<D>(width, table.data(), values.data());
  comm::launch("add_positions", packs ? add_positions_kernel<D, kPackElems<D>> : add_positions_kernel<D, 1>,
               block_per_row(rows, width / (packs ? kPackElems<D> : 1)), stream, device_elems(table), rows, length,
               width, device_elems(values));
}

template <class E>
void positions_backward(comm::DeviceSpan<const E> grad_values, std::int64_t batch, std::int64_t length,
                        std::int64_t width, comm::DeviceSpan<float> grad_table, comm::Stream& stream) {
  using D = DeviceElement<E>;
  DROPTEST_CHECK(batch >= 0 && length >= 0 && width >= 0 &&
                     grad_values.size() == static_cast<std::size_t>(batch * length * width) &&
                     grad_table.size() >= static_cast<std::size_t>(length * width),
                 "positions_backward: " + batch_text(batch, length, width) + " of " +
                     std::to_string(grad_values.size()) + " values, table of " + std::to_string(grad_table.size()));
  const bool packs = rows_of_packs<D>(width, grad_values.data(), grad_table.data());
  comm::launch("positions_backward",
               packs ? positions_backward_kernel<D, kPackElems<D>> : positions_backward_kernel<D, 1>,
               block_per_row(length, width / (packs ? kPackElems<D> : 1)), stream, device_elems(grad_values), batch,
               length, width, grad_table.data());
}

#define DROPTEST_EMBEDDING(E)                                                                                     \
  template void embedding_forward<E>(comm::DeviceSpan<const std::int32_t>, TokenRange, comm::DeviceSpan<const E>, \
                                     std::int64_t, comm::DeviceSpan<E>, comm::Stream&);                           \
  template void add_positions<E>(comm::DeviceSpan<const E>, std::int64_t, std::int64_t, std::int64_t,             \
                                 comm::DeviceSpan<E>, comm::Stream&);                                             \
  template void positions_backward<E>(comm::DeviceSpan<const E>, std::int64_t, std::int64_t, std::int64_t,        \
                                      comm::DeviceSpan<float>, comm::Stream&);
DROPTEST_EMBEDDING(float)
DROPTEST_EMBEDDING(Bf16)
DROPTEST_EMBEDDING(Fp16)
#undef DROPTEST_EMBEDDING

}  // namespace droptest::models
