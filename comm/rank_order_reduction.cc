// SPDX-License-Identifier: Apache-2.0
#include "comm/rank_order_reduction.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "sim/error.h"

namespace droptest::comm {
namespace {

// Inputs that one pass over a block takes in.
constexpr std::size_t kInputsOfPass = 4;

struct Sum {
  template <class T>
  [[gnu::always_inline]] static T of(T a, T b) {
    return a + b;
  }
};

struct Maximum {
  template <class T>
  [[gnu::always_inline]] static T of(T a, T b) {
    return (a < b || b != b) ? b : a;
  }
};

// block = x_0 op x_1 op ..., or block = block op x_0 op x_1 op ... where kGoesOn. No input lies in the block.
enum class Pass { kBegins, kGoesOn };
template <class Op, Pass kPass, std::size_t kInputs, class T>
[[gnu::always_inline]] inline void fold(T* __restrict block, const std::byte* const* inputs, std::size_t offset_bytes,
                                        std::size_t elems) {
  const T* x[kInputs];
  for (std::size_t k = 0; k < kInputs; ++k) x[k] = reinterpret_cast<const T*>(inputs[k] + offset_bytes);
  constexpr std::size_t kFirst = kPass == Pass::kBegins ? 1 : 0;
  for (std::size_t i = 0; i < elems; ++i) {
    T folded = kPass == Pass::kBegins ? x[0][i] : block[i];
    for (std::size_t k = kFirst; k < kInputs; ++k) folded = Op::of(folded, x[k][i]);
    block[i] = folded;
  }
}

template <class Op, Pass kPass, class T>
[[gnu::always_inline]] inline void fold(T* block, std::span<const std::byte* const> inputs, std::size_t offset_bytes,
                                        std::size_t elems) {
  switch (inputs.size()) {
    case 1:
      return fold<Op, kPass, 1>(block, inputs.data(), offset_bytes, elems);
    case 2:
      return fold<Op, kPass, 2>(block, inputs.data(), offset_bytes, elems);
    case 3:
      return fold<Op, kPass, 3>(block, inputs.data(), offset_bytes, elems);
    default:
      return fold<Op, kPass, kInputsOfPass>(block, inputs.data(), offset_bytes, elems);
  }
}

template <class Op, class T>
[[gnu::always_inline]] inline void fold_all(T* block, std::span<const std::byte* const> inputs,
                                            std::size_t offset_bytes, std::size_t elems) {
  fold<Op, Pass::kBegins>(block, inputs.first(std::min(kInputsOfPass, inputs.size())), offset_bytes, elems);
  for (std::size_t r = kInputsOfPass; r < inputs.size(); r += kInputsOfPass) {
    const std::size_t inputs_of_pass = std::min(kInputsOfPass, inputs.size() - r);
    fold<Op, Pass::kGoesOn>(block, inputs.subspan(r, inputs_of_pass), offset_bytes, elems);
  }
}

// Into an output that is none of the inputs.
template <class Op, class T>
[[gnu::always_inline]] inline void reduce_to_one(std::span<const std::byte* const> inputs, T* output,
                                                 std::uint64_t count_elems) {
  constexpr std::size_t kBlockElems = kReductionBlockBytes / sizeof(T);
  for (std::uint64_t begin = 0; begin < count_elems; begin += kBlockElems) {
    const std::size_t elems = std::min<std::uint64_t>(kBlockElems, count_elems - begin);
    fold_all<Op>(output + begin, inputs, begin * sizeof(T), elems);
  }
}

template <class Op, class T>
[[gnu::always_inline]] inline void reduce_blocks(std::span<const std::byte* const> inputs,
                                                 std::span<std::byte* const> outputs, std::uint64_t count_elems,
                                                 const ChangeBlock* change) {
  const auto is_input = [&](const std::byte* output) { return std::ranges::find(inputs, output) != inputs.end(); };
  if (change == nullptr && outputs.size() == 1 && !is_input(outputs[0])) {
    return reduce_to_one<Op>(inputs, reinterpret_cast<T*>(outputs[0]), count_elems);
  }
  constexpr std::size_t kBlockElems = kReductionBlockBytes / sizeof(T);
  alignas(64) std::array<T, kBlockElems> block;
  for (std::uint64_t begin = 0; begin < count_elems; begin += kBlockElems) {
    const std::size_t elems = std::min<std::uint64_t>(kBlockElems, count_elems - begin);
    const std::size_t offset_bytes = begin * sizeof(T);
    fold_all<Op>(block.data(), inputs, offset_bytes, elems);
    if (change != nullptr) (*change)(begin, Tensor(std::span<T>(block.data(), elems)));
    for (std::byte* output : outputs) std::memcpy(output + offset_bytes, block.data(), elems * sizeof(T));
  }
}

// Float until all inputs are in, then rounded once.
void reduce_bfloat16(ReduceOp op, std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
                     std::uint64_t count_elems, const ChangeBlock* change) {
  constexpr std::size_t kBlockElems = kReductionBlockBytes / sizeof(float);
  alignas(64) std::array<float, kBlockElems> folded;
  std::array<Bf16, kBlockElems> block;
  for (std::uint64_t begin = 0; begin < count_elems; begin += kBlockElems) {
    const std::size_t elems = std::min<std::uint64_t>(kBlockElems, count_elems - begin);
    for (std::size_t r = 0; r < inputs.size(); ++r) {
      const Bf16* input = reinterpret_cast<const Bf16*>(inputs[r]) + begin;
      for (std::size_t i = 0; i < elems; ++i) {
        const float x = to_float(input[i]);
        folded[i] = r == 0 ? x : op == ReduceOp::kSum ? Sum::of(folded[i], x) : Maximum::of(folded[i], x);
      }
    }
    for (std::size_t i = 0; i < elems; ++i) block[i] = to_bf16(folded[i]);
    if (change != nullptr) (*change)(begin, Tensor(std::span<Bf16>(block.data(), elems)));
    for (std::byte* output : outputs) {
      std::memcpy(output + begin * sizeof(Bf16), block.data(), elems * sizeof(Bf16));
    }
  }
}

template <class T>
[[gnu::always_inline]] inline void reduce_typed(ReduceOp op, std::span<const std::byte* const> inputs,
                                                std::span<std::byte* const> outputs, std::uint64_t count_elems,
                                                const ChangeBlock* change) {
  op == ReduceOp::kSum ? reduce_blocks<Sum, T>(inputs, outputs, count_elems, change)
                       : reduce_blocks<Maximum, T>(inputs, outputs, count_elems, change);
}

template <class T>
void reduce_baseline(ReduceOp op, std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
                     std::uint64_t count_elems, const ChangeBlock* change) {
  reduce_typed<T>(op, inputs, outputs, count_elems, change);
}

#if defined(__x86_64__)
// The same loops for processors with wider vectors: each element has its own chain of operations, in the same order,
// so the results are the same.
template <class T>
[[gnu::target("avx2")]] void reduce_avx2(ReduceOp op, std::span<const std::byte* const> inputs,
                                         std::span<std::byte* const> outputs, std::uint64_t count_elems,
                                         const ChangeBlock* change) {
  reduce_typed<T>(op, inputs, outputs, count_elems, change);
}
template <class T>
[[gnu::target("avx512f")]] void reduce_avx512(ReduceOp op, std::span<const std::byte* const> inputs,
                                              std::span<std::byte* const> outputs, std::uint64_t count_elems,
                                              const ChangeBlock* change) {
  reduce_typed<T>(op, inputs, outputs, count_elems, change);
}
template <class T>
auto widest() {
  if (__builtin_cpu_supports("avx512f") != 0) return reduce_avx512<T>;
  return __builtin_cpu_supports("avx2") != 0 ? reduce_avx2<T> : reduce_baseline<T>;
}
#else
template <class T>
auto widest() {
  return reduce_baseline<T>;
}
#endif

void reduce(ReduceOp op, ElementType type, std::span<const std::byte* const> inputs,
            std::span<std::byte* const> outputs, std::uint64_t count_elems, const ChangeBlock* change) {
  DROPTEST_CHECK(!inputs.empty(), "no inputs");
  switch (type) {
    case ElementType::kFloat32:
      return widest<float>()(op, inputs, outputs, count_elems, change);
    case ElementType::kFloat64:
      return widest<double>()(op, inputs, outputs, count_elems, change);
    case ElementType::kUint64:
      return widest<std::uint64_t>()(op, inputs, outputs, count_elems, change);
    case ElementType::kBfloat16:
      return reduce_bfloat16(op, inputs, outputs, count_elems, change);
  }
}

}  // namespace

void reduce_in_rank_order(ReduceOp op, ElementType type, std::span<const std::byte* const> inputs,
                          std::span<std::byte* const> outputs, std::uint64_t count_elems) {
  if (inputs.size() == 1 && outputs.size() == 1 && inputs[0] == outputs[0]) return;
  reduce(op, type, inputs, outputs, count_elems, nullptr);
}

void reduce_in_rank_order(ReduceOp op, ElementType type, std::span<const std::byte* const> inputs,
                          std::span<std::byte* const> outputs, std::uint64_t count_elems, const ChangeBlock& change) {
  reduce(op, type, inputs, outputs, count_elems, &change);
}

}  // namespace droptest::comm
