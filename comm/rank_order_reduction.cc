// SPDX-License-Identifier: Apache-2.0
#include "comm/rank_order_reduction.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "sim/error.h"

namespace droptest::comm {
namespace {

// Inputs that one pass over a block takes in.
constexpr std::size_t kInputsOfPass = 8;

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
    case 4:
      return fold<Op, kPass, 4>(block, inputs.data(), offset_bytes, elems);
    case 5:
      return fold<Op, kPass, 5>(block, inputs.data(), offset_bytes, elems);
    case 6:
      return fold<Op, kPass, 6>(block, inputs.data(), offset_bytes, elems);
    case 7:
      return fold<Op, kPass, 7>(block, inputs.data(), offset_bytes, elems);
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

// The same of inputs that are multiplied first, one pass each.
template <class Op, class T>
[[gnu::always_inline]] inline void fold_scaled(T* __restrict block, std::span<const std::byte* const> inputs,
                                               std::span<const double> factors, std::size_t offset_bytes,
                                               std::size_t elems) {
  for (std::size_t r = 0; r < inputs.size(); ++r) {
    const T* x = reinterpret_cast<const T*>(inputs[r] + offset_bytes);
    const T factor = static_cast<T>(factors[r]);
    if (r == 0) {
      for (std::size_t i = 0; i < elems; ++i) block[i] = x[i] * factor;
    } else {
      for (std::size_t i = 0; i < elems; ++i) block[i] = Op::of(block[i], static_cast<T>(x[i] * factor));
    }
  }
}

// What a reduction does to a stretch of a block: `fold` inputs into it, and `scale` the result.
template <class Op, class T>
struct SameType {
  using Element = T;
  [[gnu::always_inline]] static inline void fold(T* block, std::span<const std::byte* const> inputs,
                                                 std::span<const double> factors, std::size_t offset_bytes,
                                                 std::size_t elems) {
    factors.empty() ? fold_all<Op>(block, inputs, offset_bytes, elems)
                    : fold_scaled<Op>(block, inputs, factors, offset_bytes, elems);
  }
  [[gnu::always_inline]] static inline void scale(T* block, double factor, std::size_t elems) {
    const T f = static_cast<T>(factor);
    for (std::size_t i = 0; i < elems; ++i) block[i] *= f;
  }
};

// Float until all inputs are in, then rounded once.
template <class Op>
struct ThroughFloat {
  using Element = Bf16;
  static void fold(Bf16* block, std::span<const std::byte* const> inputs, std::span<const double> factors,
                   std::size_t offset_bytes, std::size_t elems) {
    alignas(64) std::array<float, kReductionBlockBytes / sizeof(Bf16)> folded;
    for (std::size_t r = 0; r < inputs.size(); ++r) {
      const Bf16* input = reinterpret_cast<const Bf16*>(inputs[r] + offset_bytes);
      const float factor = factors.empty() ? 1 : static_cast<float>(factors[r]);
      for (std::size_t i = 0; i < elems; ++i) {
        const float x = factors.empty() ? to_float(input[i]) : to_float(to_bf16(to_float(input[i]) * factor));
        folded[i] = r == 0 ? x : Op::of(folded[i], x);
      }
    }
    for (std::size_t i = 0; i < elems; ++i) block[i] = to_bf16(folded[i]);
  }
  static void scale(Bf16* block, double factor, std::size_t elems) {
    const auto f = static_cast<float>(factor);
    for (std::size_t i = 0; i < elems; ++i) block[i] = to_bf16(to_float(block[i]) * f);
  }
};

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

// In place a gap's inputs are outputs, which the cache does not have when they are not read.
inline void fetch_for_writing(std::span<const std::byte* const> places, std::size_t offset_bytes, std::size_t bytes) {
  constexpr std::size_t kCacheLineBytes = 64;
  for (const std::byte* place : places) {
    for (std::size_t line = 0; line < bytes; line += kCacheLineBytes) {
      __builtin_prefetch(place + offset_bytes + line, 1);
    }
  }
}

// What a reduction has still to do with its gaps; without gaps, nothing.
struct GapsAhead {
  explicit GapsAhead(ReductionGaps* g) : gaps(g) {
    if (gaps == nullptr) return;
    factors = gaps->factors();
    input = gaps->next_input_gap();
    output = gaps->next_output_gap();
  }
  ReductionGaps* gaps;
  std::span<const double> factors;
  const ReductionGap* input = nullptr;  // the first one that is not over
  const OutputGap* output = nullptr;
};

// Elements [begin, end) with the gaps among them.
template <class Kernel>
[[gnu::always_inline]] inline void reduce_block(typename Kernel::Element* block,
                                                std::span<const std::byte* const> inputs, GapsAhead& ahead,
                                                std::uint64_t begin, std::uint64_t end) {
  constexpr std::size_t kSize = sizeof(typename Kernel::Element);
  for (std::uint64_t at = begin; at < end;) {
    const ReductionGap* gap = ahead.input;
    if (gap == nullptr || gap->begin > at) {
      const std::uint64_t stop = gap == nullptr ? end : std::min(end, gap->begin);
      Kernel::fold(block + (at - begin), inputs, ahead.factors, at * kSize, stop - at);
      at = stop;
      continue;
    }
    const std::uint64_t stop = std::min(end, gap->end);
    const std::size_t offset_bytes = (at - gap->begin) * kSize;
    fetch_for_writing(gap->absent, offset_bytes, (stop - at) * kSize);
    Kernel::fold(block + (at - begin), gap->present, gap->factors, offset_bytes, stop - at);
    if (gap->scale != 1) Kernel::scale(block + (at - begin), gap->scale, stop - at);
    if (stop == gap->end) ahead.input = ahead.gaps->next_input_gap();
    at = stop;
  }
}

// Sets to zero what an output has of a gap in elements [begin, end).
void clear(std::byte* output, const OutputGap& gap, std::uint64_t begin, std::uint64_t end, std::size_t element_size) {
  const std::uint64_t from = std::max(begin, gap.begin);
  const std::uint64_t to = std::min(end, gap.end);
  std::memset(output + from * element_size, 0, (to - from) * element_size);
}

// Copies elements [begin, end) to the outputs, but for their gaps. Those of the first gap are cleared while the first
// cache has the output, which is nearly all of them unless many packets are lost.
void copy_out(const std::byte* block, std::span<std::byte* const> outputs, GapsAhead& ahead, std::uint64_t begin,
              std::uint64_t end, std::size_t element_size) {
  const bool any = ahead.output != nullptr && ahead.output->begin < end;
  std::span<const std::size_t> with_gap = any ? ahead.output->outputs : std::span<const std::size_t>{};
  for (std::size_t number = 0; number < outputs.size(); ++number) {
    std::memcpy(outputs[number] + begin * element_size, block, (end - begin) * element_size);
    if (with_gap.empty() || with_gap.front() != number) continue;
    clear(outputs[number], *ahead.output, begin, end, element_size);
    with_gap = with_gap.subspan(1);
  }
  while (ahead.output != nullptr && ahead.output->end <= end) {
    ahead.output = ahead.gaps->next_output_gap();
    if (ahead.output == nullptr || ahead.output->begin >= end) return;
    for (const std::size_t number : ahead.output->outputs) {
      clear(outputs[number], *ahead.output, begin, end, element_size);
    }
  }
}

template <class Kernel>
[[gnu::always_inline]] inline void reduce_blocks(std::span<const std::byte* const> inputs,
                                                 std::span<std::byte* const> outputs, std::uint64_t count_elems,
                                                 ReductionGaps* gaps) {
  using Element = typename Kernel::Element;
  constexpr std::size_t kBlockElems = kReductionBlockBytes / sizeof(Element);
  alignas(64) std::array<Element, kBlockElems> block;
  GapsAhead ahead(gaps);
  for (std::uint64_t begin = 0; begin < count_elems; begin += kBlockElems) {
    const std::uint64_t end = std::min(begin + kBlockElems, count_elems);
    reduce_block<Kernel>(block.data(), inputs, ahead, begin, end);
    copy_out(reinterpret_cast<const std::byte*>(block.data()), outputs, ahead, begin, end, sizeof(Element));
  }
}

template <class Op, class T>
[[gnu::always_inline]] inline void reduce_typed(std::span<const std::byte* const> inputs,
                                                std::span<std::byte* const> outputs, std::uint64_t count_elems,
                                                ReductionGaps* gaps) {
  const auto is_input = [&](const std::byte* output) { return std::ranges::find(inputs, output) != inputs.end(); };
  if (gaps == nullptr && outputs.size() == 1 && !is_input(outputs[0])) {
    return reduce_to_one<Op>(inputs, reinterpret_cast<T*>(outputs[0]), count_elems);
  }
  reduce_blocks<SameType<Op, T>>(inputs, outputs, count_elems, gaps);
}

template <class T>
[[gnu::always_inline]] inline void reduce_typed(ReduceOp op, std::span<const std::byte* const> inputs,
                                                std::span<std::byte* const> outputs, std::uint64_t count_elems,
                                                ReductionGaps* gaps) {
  op == ReduceOp::kSum ? reduce_typed<Sum, T>(inputs, outputs, count_elems, gaps)
                       : reduce_typed<Maximum, T>(inputs, outputs, count_elems, gaps);
}

template <class T>
void reduce_baseline(ReduceOp op, std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
                     std::uint64_t count_elems, ReductionGaps* gaps) {
  reduce_typed<T>(op, inputs, outputs, count_elems, gaps);
}

void reduce_bfloat16(ReduceOp op, std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
                     std::uint64_t count_elems, ReductionGaps* gaps) {
  op == ReduceOp::kSum ? reduce_blocks<ThroughFloat<Sum>>(inputs, outputs, count_elems, gaps)
                       : reduce_blocks<ThroughFloat<Maximum>>(inputs, outputs, count_elems, gaps);
}

#if defined(__x86_64__)
// The same loops for processors with wider vectors: each element has its own chain of operations, in the same order,
// so the results are the same.
template <class T>
[[gnu::target("avx2")]] void reduce_avx2(ReduceOp op, std::span<const std::byte* const> inputs,
                                         std::span<std::byte* const> outputs, std::uint64_t count_elems,
                                         ReductionGaps* gaps) {
  reduce_typed<T>(op, inputs, outputs, count_elems, gaps);
}
template <class T>
[[gnu::target("avx512f")]] void reduce_avx512(ReduceOp op, std::span<const std::byte* const> inputs,
                                              std::span<std::byte* const> outputs, std::uint64_t count_elems,
                                              ReductionGaps* gaps) {
  reduce_typed<T>(op, inputs, outputs, count_elems, gaps);
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
            std::span<std::byte* const> outputs, std::uint64_t count_elems, ReductionGaps* gaps) {
  DROPTEST_CHECK(!inputs.empty(), "no inputs");
  switch (type) {
    case ElementType::kFloat32:
      return widest<float>()(op, inputs, outputs, count_elems, gaps);
    case ElementType::kFloat64:
      return widest<double>()(op, inputs, outputs, count_elems, gaps);
    case ElementType::kUint64:
      return widest<std::uint64_t>()(op, inputs, outputs, count_elems, gaps);
    case ElementType::kBfloat16:
      return reduce_bfloat16(op, inputs, outputs, count_elems, gaps);
  }
}

}  // namespace

void reduce_in_rank_order(ReduceOp op, ElementType type, std::span<const std::byte* const> inputs,
                          std::span<std::byte* const> outputs, std::uint64_t count_elems) {
  if (inputs.size() == 1 && outputs.size() == 1 && inputs[0] == outputs[0]) return;
  reduce(op, type, inputs, outputs, count_elems, nullptr);
}

void reduce_in_rank_order(ReduceOp op, ElementType type, std::span<const std::byte* const> inputs,
                          std::span<std::byte* const> outputs, std::uint64_t count_elems, ReductionGaps& gaps) {
  reduce(op, type, inputs, outputs, count_elems, &gaps);
}

}  // namespace droptest::comm
