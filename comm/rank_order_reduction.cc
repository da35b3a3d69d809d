// SPDX-License-Identifier: Apache-2.0
#include "comm/rank_order_reduction.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "comm/visit_elements.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

// Maximum number of inputs in one pass over a block: a power of two.
constexpr std::size_t kInputsOfPass = 8;

// The operations on a stretch of a block: ((x_0 op x_1) op x_2) .... Each x_r is first multiplied by its factor, if
// there are factors; the result is divided by `divisor`, rounded, and multiplied by `scale`. x_r[0] is at inputs[r] +
// offset_bytes.
struct Terms {
  std::span<const std::byte* const> inputs;
  std::span<const double> factors;
  double divisor = 1;
  double scale = 1;
  std::size_t offset_bytes = 0;
  std::size_t elems = 0;
};

// Writes a stretch; no input lies in it. Only these functions depend on the element type, operation and vector width:
// there is one for each combination.
using Fold = void (*)(std::byte* block, const Terms& terms);

struct Sum {
  template <class T>
  [[gnu::always_inline]] static T of(T a, T b) {
    return sum_of(a, b);
  }
};

struct Maximum {
  template <class T>
  [[gnu::always_inline]] static T of(T a, T b) {
    return (a < b || b != b) ? b : a;
  }
};

// block = x_0 op x_1 op ...; with kGoesOn block = block op x_0 op x_1 op ...
enum class Pass { kBegins, kGoesOn };
template <class Op, Pass kPass, std::size_t kInputs, class T>
[[gnu::always_inline]] inline std::size_t fold_inputs(T* __restrict block, const Terms& terms, std::size_t first) {
  const T* x[kInputs];
  for (std::size_t k = 0; k < kInputs; ++k) {
    x[k] = reinterpret_cast<const T*>(terms.inputs[first + k] + terms.offset_bytes);
  }
  constexpr std::size_t kFirst = kPass == Pass::kBegins ? 1 : 0;
  const std::size_t elems = terms.elems;
  for (std::size_t i = 0; i < elems; ++i) {
    T folded = kPass == Pass::kBegins ? x[0][i] : block[i];
    for (std::size_t k = kFirst; k < kInputs; ++k) folded = Op::of(folded, x[k][i]);
    block[i] = folded;
  }
  return kInputs;
}

// One pass, from input `first` on. The first pass takes all inputs up to kInputsOfPass; later passes take the largest
// power of two that is left, which saves rarely used code. Returns the number of inputs.
template <class Op, Pass kPass, class T, std::size_t kInputs = kInputsOfPass>
[[gnu::always_inline]] inline std::size_t fold_some(T* block, const Terms& terms, std::size_t first) {
  if constexpr (kInputs > 1) {
    if (terms.inputs.size() - first < kInputs) {
      return fold_some < Op, kPass, T, kPass == Pass::kBegins ? kInputs - 1 : kInputs / 2 > (block, terms, first);
    }
  }
  return fold_inputs<Op, kPass, kInputs>(block, terms, first);
}

// Folds inputs with factors, one pass each.
template <class Op, class T>
[[gnu::always_inline]] inline void fold_scaled(T* __restrict block, const Terms& terms) {
  for (std::size_t r = 0; r < terms.inputs.size(); ++r) {
    const T* x = reinterpret_cast<const T*>(terms.inputs[r] + terms.offset_bytes);
    const T factor = static_cast<T>(terms.factors[r]);
    if (r == 0) {
      for (std::size_t i = 0; i < terms.elems; ++i) block[i] = static_cast<T>(x[i] * factor);
    } else {
      for (std::size_t i = 0; i < terms.elems; ++i) block[i] = Op::of(block[i], static_cast<T>(x[i] * factor));
    }
  }
}

template <class Op, class T>
[[gnu::always_inline]] inline void fold_typed(std::byte* bytes, const Terms& terms) {
  T* const block = reinterpret_cast<T*>(bytes);
  if (terms.factors.empty()) {
    std::size_t folded = fold_some<Op, Pass::kBegins>(block, terms, 0);
    while (folded < terms.inputs.size()) folded += fold_some<Op, Pass::kGoesOn>(block, terms, folded);
  } else {
    fold_scaled<Op>(block, terms);
  }
  if (terms.divisor != 1) {
    const T divisor = static_cast<T>(terms.divisor);
    for (std::size_t i = 0; i < terms.elems; ++i) block[i] = static_cast<T>(block[i] / divisor);
  }
  if (terms.scale == 1) return;
  const T scale = static_cast<T>(terms.scale);
  for (std::size_t i = 0; i < terms.elems; ++i) block[i] = static_cast<T>(block[i] * scale);
}

// Sums in float until all inputs are added, then rounds once.
template <class Op, class T>
void fold_narrow(std::byte* bytes, const Terms& terms) {
  T* const block = reinterpret_cast<T*>(bytes);
  alignas(64) std::array<float, kReductionBlockBytes / sizeof(T)> folded;
  for (std::size_t r = 0; r < terms.inputs.size(); ++r) {
    const T* input = reinterpret_cast<const T*>(terms.inputs[r] + terms.offset_bytes);
    const float factor = terms.factors.empty() ? 1 : static_cast<float>(terms.factors[r]);
    for (std::size_t i = 0; i < terms.elems; ++i) {
      const float x = terms.factors.empty() ? to_float(input[i]) : to_float(narrowed<T>(to_float(input[i]) * factor));
      folded[i] = r == 0 ? x : Op::of(folded[i], x);
    }
  }
  const auto divisor = static_cast<float>(terms.divisor);
  for (std::size_t i = 0; i < terms.elems; ++i) block[i] = narrowed<T>(folded[i] / divisor);
  if (terms.scale == 1) return;
  const auto scale = static_cast<float>(terms.scale);
  for (std::size_t i = 0; i < terms.elems; ++i) block[i] = narrowed<T>(to_float(block[i]) * scale);
}

template <class Op, class T>
void fold_baseline(std::byte* block, const Terms& terms) {
  fold_typed<Op, T>(block, terms);
}

#if defined(__x86_64__)
// The same loops for processors with wider vectors: each element has its own chain of operations, in the same order,
// so the results are the same.
template <class Op, class T>
[[gnu::target("avx2")]] void fold_avx2(std::byte* block, const Terms& terms) {
  fold_typed<Op, T>(block, terms);
}
template <class Op, class T>
[[gnu::target("avx512f")]] void fold_avx512(std::byte* block, const Terms& terms) {
  fold_typed<Op, T>(block, terms);
}
template <class Op, class T>
Fold widest() {
  if (__builtin_cpu_supports("avx512f") != 0) return fold_avx512<Op, T>;
  return __builtin_cpu_supports("avx2") != 0 ? fold_avx2<Op, T> : fold_baseline<Op, T>;
}
#else
template <class Op, class T>
Fold widest() {
  return fold_baseline<Op, T>;
}
#endif

template <class Op>
Fold fold_of(ElementType type) {
  return visit_elements(type, []<class T>(std::type_identity<T>) -> Fold {
    if constexpr (kIsNarrowFloat<T>) {
      return fold_narrow<Op, T>;
    } else {
      return widest<Op, T>();
    }
  });
}

// Absent inputs of a gap are outputs if the reduction is in place. They are not in the cache, because the reduction
// does not read them.
inline void fetch_for_writing(std::span<const std::byte* const> places, std::size_t offset_bytes, std::size_t bytes) {
  constexpr std::size_t kCacheLineBytes = 64;
  for (const std::byte* place : places) {
    for (std::size_t line = 0; line < bytes; line += kCacheLineBytes) {
      __builtin_prefetch(place + offset_bytes + line, 1);
    }
  }
}

// The next gaps of a reduction; none for a reduction without gaps.
struct GapsAhead {
  explicit GapsAhead(ReductionGaps* g) : gaps(g) {
    if (gaps == nullptr) return;
    factors = gaps->factors();
    input = gaps->next_input_gap();
    output = gaps->next_output_gap();
  }
  ReductionGaps* gaps;
  std::span<const double> factors;
  const ReductionGap* input = nullptr;  // the first one that has not ended
  const OutputGap* output = nullptr;
};

// Reduces elements [begin, end) with the gaps among them.
void reduce_block(Fold fold, double divisor, std::size_t element_size, std::byte* block,
                  std::span<const std::byte* const> inputs, GapsAhead& ahead, std::uint64_t begin, std::uint64_t end) {
  for (std::uint64_t at = begin; at < end;) {
    std::byte* const stretch = block + (at - begin) * element_size;
    const ReductionGap* gap = ahead.input;
    if (gap == nullptr || gap->begin > at) {
      const std::uint64_t stop = gap == nullptr ? end : std::min(end, gap->begin);
      fold(stretch, {inputs, ahead.factors, divisor, 1, at * element_size, stop - at});
      at = stop;
      continue;
    }
    const std::uint64_t stop = std::min(end, gap->end);
    const std::size_t offset_bytes = (at - gap->begin) * element_size;
    fetch_for_writing(gap->absent, offset_bytes, (stop - at) * element_size);
    fold(stretch, {gap->present, gap->factors, gap->divisor, gap->scale, offset_bytes, stop - at});
    if (stop == gap->end) ahead.input = ahead.gaps->next_input_gap();
    at = stop;
  }
}

// Sets the elements of an output that lie both in `gap` and in [begin, end) to zero.
void clear(std::byte* output, const OutputGap& gap, std::uint64_t begin, std::uint64_t end, std::size_t element_size) {
  const std::uint64_t from = std::max(begin, gap.begin);
  const std::uint64_t to = std::min(end, gap.end);
  std::memset(output + from * element_size, 0, (to - from) * element_size);
}

// Copies elements [begin, end) to the outputs, except their gaps. The first gap is cleared while the output is in the
// first-level cache. Nearly all gaps are first ones, unless many packets are lost.
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

void reduce(ReduceOp op, ElementType type, std::span<const std::byte* const> inputs,
            std::span<std::byte* const> outputs, std::uint64_t count_elems, ReductionGaps* gaps) {
  DROPTEST_CHECK(!inputs.empty(), "no inputs");
  const Fold fold = op == ReduceOp::kMax ? fold_of<Maximum>(type) : fold_of<Sum>(type);
  const double divisor = op == ReduceOp::kMean ? static_cast<double>(inputs.size()) : 1;
  const std::size_t element_size = element_bytes(type);
  const std::uint64_t block_elems = kReductionBlockBytes / element_size;
  const bool is_input = std::ranges::find(inputs, outputs.empty() ? nullptr : outputs[0]) != inputs.end();
  // An output that is no input is written at once; any other is copied from a block that stays in the cache.
  const bool to_one = gaps == nullptr && outputs.size() == 1 && !is_input;
  alignas(64) std::array<std::byte, kReductionBlockBytes> block;
  GapsAhead ahead(gaps);
  for (std::uint64_t begin = 0; begin < count_elems; begin += block_elems) {
    const std::uint64_t end = std::min(begin + block_elems, count_elems);
    if (to_one) {
      fold(outputs[0] + begin * element_size, {inputs, {}, divisor, 1, begin * element_size, end - begin});
      continue;
    }
    reduce_block(fold, divisor, element_size, block.data(), inputs, ahead, begin, end);
    copy_out(block.data(), outputs, ahead, begin, end, element_size);
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
