// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include "models/attention/device_heads.h"
#include "models/attention/device_view.cuh"
#include "models/kernels/block_reduction.cuh"
#include "models/kernels/element_pack.cuh"

namespace droptest::models {
namespace {

enum class Combine : std::uint8_t { kCopy, kAdd };

template <Combine kCombine, class D>
__device__ void combine(D& element, D value) {
  element = kCombine == Combine::kCopy ? value : from_float<D>(as_float(element) + as_float(value));
}

__device__ std::int64_t first_item() { return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ std::int64_t item_step() { return static_cast<std::int64_t>(gridDim.x) * blockDim.x; }

template <Combine kCombine, class D>
__global__ void combine_heads_kernel(View<const D> from, View<D> to, HeadShape shape) {
  const std::int64_t count = shape.batch * shape.heads * shape.tokens * shape.width;
  for (std::int64_t i = first_item(); i < count; i += item_step()) {
    const std::int64_t d = i % shape.width;
    const std::int64_t head = i / shape.width % shape.heads;
    const std::int64_t token = i / shape.width / shape.heads % shape.tokens;
    const std::int64_t batch = i / shape.width / shape.heads / shape.tokens;
    combine<kCombine>(to.at(batch, token, head)[d], from.at(batch, token, head)[d]);
  }
}

// Element i of the packed rows is element d of sequence b of row r.
template <class D>
__device__ std::int64_t offset_of(const View<D>& view, const TokenHead* rows, const HeadShape& shape, std::int64_t i) {
  const std::int64_t d = i % shape.width;
  const std::int64_t b = i / shape.width % shape.batch;
  const TokenHead& row = rows[i / shape.width / shape.batch];
  return view.at(b, row.token, row.head) + d - view.data;
}

template <class D>
__global__ void pack_rows_kernel(View<const D> from, const TokenHead* rows, std::int64_t count, HeadShape shape,
                                 D* packed) {
  for (std::int64_t i = first_item(); i < count * shape.batch * shape.width; i += item_step()) {
    packed[i] = from.data[offset_of(from, rows, shape, i)];
  }
}

template <Combine kCombine, class D>
__global__ void unpack_rows_kernel(const D* packed, const TokenHead* rows, std::int64_t count, HeadShape shape,
                                   View<D> to) {
  for (std::int64_t i = first_item(); i < count * shape.batch * shape.width; i += item_step()) {
    combine<kCombine>(to.data[offset_of(to, rows, shape, i)], packed[i]);
  }
}

template <class D>
__global__ void weigh_branch_kernel(View<const D> from, const float* log_sum_exp, const float* of_all, HeadShape shape,
                                    View<D> to) {
  const std::int64_t count = shape.batch * shape.heads * shape.tokens * shape.width;
  for (std::int64_t i = first_item(); i < count; i += item_step()) {
    const std::int64_t d = i % shape.width;
    const std::int64_t query = i / shape.width;
    const std::int64_t token = query % shape.tokens;
    const std::int64_t head = query / shape.tokens % shape.heads;
    const std::int64_t batch = query / shape.tokens / shape.heads;
    const float weight = log_sum_exp[query] == kMinusInfinity ? 0.0F : expf(log_sum_exp[query] - of_all[query]);
    to.at(batch, token, head)[d] = from_float<D>(weight * as_float(from.at(batch, token, head)[d]));
  }
}

template <Combine kCombine, class E>
void combine_heads(const DeviceHeadView<const E>& from, const DeviceHeadView<E>& to, comm::Stream& stream) {
  DROPTEST_CHECK(from.shape == to.shape, "views of different shapes");
  comm::launch("combine_heads", combine_heads_kernel<kCombine, DeviceElement<E>>, comm::cover(from.shape.elems()),
               stream, view_in_kernel(from, "source"), view_in_kernel(to, "destination"), from.shape);
}

std::uint64_t packed_elems(comm::DeviceSpan<const TokenHead> rows, const HeadShape& shape, std::size_t packed) {
  const std::uint64_t elems = rows.size() * static_cast<std::uint64_t>(shape.batch * shape.width);
  DROPTEST_CHECK(packed >= elems,
                 "packed rows: got " + std::to_string(packed) + " elements, want " + std::to_string(elems));
  return elems;
}

template <Combine kCombine, class E>
void combine_rows(comm::DeviceSpan<const E> packed, comm::DeviceSpan<const TokenHead> rows, const DeviceHeadView<E>& to,
                  comm::Stream& stream) {
  comm::launch("unpack_rows", unpack_rows_kernel<kCombine, DeviceElement<E>>,
               comm::cover(packed_elems(rows, to.shape, packed.size())), stream, device_elems(packed), rows.data(),
               static_cast<std::int64_t>(rows.size()), to.shape, view_in_kernel(to, "destination"));
}

}  // namespace

template <class E>
void copy_heads(const DeviceHeadView<const E>& from, const DeviceHeadView<E>& to, comm::Stream& stream) {
  combine_heads<Combine::kCopy>(from, to, stream);
}

template <class E>
void add_heads(const DeviceHeadView<const E>& from, const DeviceHeadView<E>& to, comm::Stream& stream) {
  combine_heads<Combine::kAdd>(from, to, stream);
}

template <class E>
void pack_rows(const DeviceHeadView<const E>& from, comm::DeviceSpan<const TokenHead> rows, comm::DeviceSpan<E> packed,
               comm::Stream& stream) {
  comm::launch("pack_rows", pack_rows_kernel<DeviceElement<E>>,
               comm::cover(packed_elems(rows, from.shape, packed.size())), stream, view_in_kernel(from, "source"),
               rows.data(), static_cast<std::int64_t>(rows.size()), from.shape, device_elems(packed));
}

template <class E>
void unpack_rows(comm::DeviceSpan<const E> packed, comm::DeviceSpan<const TokenHead> rows, const DeviceHeadView<E>& to,
                 comm::Stream& stream) {
  combine_rows<Combine::kCopy>(packed, rows, to, stream);
}

template <class E>
void add_rows(comm::DeviceSpan<const E> packed, comm::DeviceSpan<const TokenHead> rows, const DeviceHeadView<E>& to,
              comm::Stream& stream) {
  combine_rows<Combine::kAdd>(packed, rows, to, stream);
}

template <class E>
void weigh_branch(const DeviceHeadView<const E>& from, comm::DeviceSpan<const float> log_sum_exp,
                  comm::DeviceSpan<const float> of_all, const DeviceHeadView<E>& to, comm::Stream& stream) {
  DROPTEST_CHECK(from.shape == to.shape, "views of different shapes");
  comm::launch("weigh_branch", weigh_branch_kernel<DeviceElement<E>>, comm::cover(from.shape.elems()), stream,
               view_in_kernel(from, "source"), log_sum_exp.data(), of_all.data(), from.shape,
               view_in_kernel(to, "destination"));
}

#define DROPTEST_DEVICE_HEADS(E)                                                                                    \
  template void copy_heads(const DeviceHeadView<const E>&, const DeviceHeadView<E>&, comm::Stream&);                \
  template void add_heads(const DeviceHeadView<const E>&, const DeviceHeadView<E>&, comm::Stream&);                 \
  template void pack_rows(const DeviceHeadView<const E>&, comm::DeviceSpan<const TokenHead>, comm::DeviceSpan<E>,   \
                          comm::Stream&);                                                                           \
  template void unpack_rows(comm::DeviceSpan<const E>, comm::DeviceSpan<const TokenHead>, const DeviceHeadView<E>&, \
                            comm::Stream&);                                                                         \
  template void add_rows(comm::DeviceSpan<const E>, comm::DeviceSpan<const TokenHead>, const DeviceHeadView<E>&,    \
                         comm::Stream&);                                                                            \
  template void weigh_branch(const DeviceHeadView<const E>&, comm::DeviceSpan<const float>,                         \
                             comm::DeviceSpan<const float>, const DeviceHeadView<E>&, comm::Stream&);
DROPTEST_DEVICE_HEADS(float)
DROPTEST_DEVICE_HEADS(comm::Bf16)
DROPTEST_DEVICE_HEADS(comm::Fp16)
#undef DROPTEST_DEVICE_HEADS

}  // namespace droptest::models
