// SPDX-License-Identifier: Apache-2.0
// Dropout: a training step sets each element to zero with the same probability, and multiplies the others by 1 / (1 -
// probability). Source: Srivastava et al. 2014; GPT-2 has it in three places.
#pragma once

#include <cstdint>

#include "comm/device/device_span.h"
#include "comm/device/stream.h"
#include "models/team.h"
#include "sim/random/philox.h"
#include "sim/random/threshold.h"

namespace droptest::models {

/// The probabilities of GPT-2's three kinds of dropout, in [0, 1); 0: none. Hugging Face calls them attn_pdrop,
/// resid_pdrop and embd_pdrop. Evaluations have no dropout.
struct DropoutConfig {
  double attention = 0;    ///< drops attention probabilities, after the softmax
  double residual = 0;     ///< drops elements of a sublayer output with its bias, before the residual sum
  double embedding = 0;    ///< drops elements of the sum of token and position embeddings
  std::uint64_t seed = 1;  ///< key of all draws

  /// The members by their names in a spec.
  void visit_members(const auto& visit) {
    visit("attention", attention);
    visit("residual", residual);
    visit("embedding", embedding);
  }
  bool is_on() const { return attention > 0 || residual > 0 || embedding > 0; }
};

/// The mask of one tensor of a micro-batch: a pure function of the members below and of an element's sample, position,
/// head and column in the whole batch. So the mask does not depend on the layout of ranks, nothing is saved for the
/// backward pass, and recomputation draws the same mask. Rows are tokens, one sequence after the other.
struct DropoutMask {
  double probability = 0;
  std::uint64_t seed = 1;
  sim::Purpose purpose = sim::Purpose::kResidualDropout;
  std::uint64_t step = 0;           ///< the training step, modulo 2^32
  int place = 0;                    ///< the number of the tensor among the model's tensors of that purpose: 0 to 65535
  std::int64_t first_sample = 0;    ///< number of the first sequence in the step's global batch
  std::int64_t first_head = 0;      ///< number of the first head in the model, for attention
  std::int64_t length = 1;          ///< tokens of each sequence in this tensor
  std::int64_t first_position = 0;  ///< position of each sequence's first token in this tensor
  std::int64_t first_row = 0;       ///< number of the tensor's first row among the rows [batch, length]
  /// A zigzag rank has two runs of positions of each sequence: the number of tokens in the first run, and the number of
  /// positions between the runs, which other ranks have. Attention has no gap.
  std::int64_t tokens_before_gap = 0;
  std::int64_t gap = 0;

  /// A probability below the resolution of 32-bit draws counts as 0.
  bool is_on() const { return probability >= sim::kSmallestProbability; }
};

/// The draws of one row of a mask: the columns of a token, or the keys that a query of a head sees. Element 64 g + 16 k
/// + j uses word k of Philox block 16 g + j, so that word k of 16 blocks gives 16 consecutive elements: one vector
/// register. Key: words 0 and 1 of the block of the seed at the counter (sample, step, place << 16 | head, purpose <<
/// 16). Counter: (block, position, 0, purpose << 16).
class DropoutRow {
 public:
  static constexpr std::int64_t kGroup = 64;

  DropoutRow(const DropoutMask& mask, std::int64_t sample, std::int64_t head, std::int64_t position);
  /// The draws of the tensor's row number `row`.
  static DropoutRow of_row(const DropoutMask& mask, std::int64_t row);

  /// Sets to[i] to 0 or 1 / (1 - probability), the factor of element 64 x group + i.
  template <class T>
  void factors(std::int64_t group, T (&to)[kGroup]) const;

 private:
  std::uint64_t key_;
  std::uint32_t position_;
  std::uint32_t last_word_;
  std::uint32_t largest_lost_;  ///< an element becomes zero if its draw is at most this
  double scale_;
};

/// Calls body(i, factor) for the elements first + i x step of a row, with i from 0 to count - 1, in order. The loop
/// vectorises if step is 1.
template <class T, class Body>
[[gnu::always_inline]] inline void for_dropped_row(const DropoutRow& row, std::int64_t first, std::int64_t count,
                                                   const Body& body, std::int64_t step = 1) {
  constexpr std::int64_t kGroup = DropoutRow::kGroup;
  T factors[kGroup];
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t element = first + done * step;
    const std::int64_t skipped = element % kGroup;
    row.factors(element / kGroup, factors);
    const std::int64_t in_group = (kGroup - skipped + step - 1) / step;
    const std::int64_t elems = count - done < in_group ? count - done : in_group;
    if (step == 1) {
      for (std::int64_t i = 0; i < elems; ++i) body(done + i, factors[skipped + i]);
    } else {
      for (std::int64_t i = 0; i < elems; ++i) body(done + i, factors[skipped + i * step]);
    }
    done += elems;
  }
}

/// Sets `to` to `from`, multiplied by the factors of the mask. Both may be the same range. Shapes: [rows, width].
template <class T>
void drop_elements(const T* from, const DropoutMask& mask, std::int64_t rows, std::int64_t width, T* to,
                   const Team& team);

/// The device version, with the same masks: E is float, Bf16 or Fp16.
template <class E>
void drop_elements(comm::DeviceSpan<const E> from, const DropoutMask& mask, std::int64_t rows, std::int64_t width,
                   comm::DeviceSpan<E> to, comm::Stream& stream);

}  // namespace droptest::models
