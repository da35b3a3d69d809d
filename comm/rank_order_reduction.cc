// SPDX-License-Identifier: Apache-2.0
#include "comm/rank_order_reduction.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "sim/error.h"

namespace droptest::comm {
namespace {

// A block of the sum stays in the first-level cache while every rank's input streams by once.
constexpr std::size_t kBlockBytes = 8192;

template <class T>
T larger(T a, T b) {
  return (a < b || b != b) ? b : a;
}

template <class T>
void reduce_block(ReduceOp op, std::span<T> sum, const T* next) {
  if (op == ReduceOp::kSum) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += next[i];
  } else {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = larger(sum[i], next[i]);
  }
}

template <class T>
void reduce_typed(ReduceOp op, std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
                  std::uint64_t count_elems) {
  constexpr std::size_t kBlockElems = kBlockBytes / sizeof(T);
  std::array<T, kBlockElems> block;
  for (std::uint64_t begin = 0; begin < count_elems; begin += kBlockElems) {
    const std::size_t elems = std::min<std::uint64_t>(kBlockElems, count_elems - begin);
    const std::span<T> sum(block.data(), elems);
    const std::size_t offset_bytes = begin * sizeof(T);
    std::memcpy(sum.data(), inputs[0] + offset_bytes, sum.size_bytes());
    for (std::size_t r = 1; r < inputs.size(); ++r) {
      reduce_block(op, sum, reinterpret_cast<const T*>(inputs[r] + offset_bytes));
    }
    for (std::byte* output : outputs) std::memcpy(output + offset_bytes, sum.data(), sum.size_bytes());
  }
}

}  // namespace

void reduce_in_rank_order(ReduceOp op, ElementType type, std::span<const std::byte* const> inputs,
                          std::span<std::byte* const> outputs, std::uint64_t count_elems) {
  DROPTEST_CHECK(!inputs.empty(), "no inputs");
  switch (type) {
    case ElementType::kFloat32:
      return reduce_typed<float>(op, inputs, outputs, count_elems);
    case ElementType::kFloat64:
      return reduce_typed<double>(op, inputs, outputs, count_elems);
    case ElementType::kUint64:
      return reduce_typed<std::uint64_t>(op, inputs, outputs, count_elems);
  }
}

}  // namespace droptest::comm
