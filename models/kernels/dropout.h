// SPDX-License-Identifier: Apache-2.0
// Dropout: elements that a training step sets to zero, each with the same probability, while the others are scaled by
// 1 / (1 - probability). Source: Srivastava et al. 2014; GPT-2 has it in three places.
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
  double attention = 0;    ///< of each attention probability, after the softmax
  double residual = 0;     ///< of each element of a sublayer output with its bias, before the residual stream
  double embedding = 0;    ///< of each element of the sum of token and position embeddings
  std::uint64_t seed = 1;  ///< key of all draws

  bool is_on() const { return attention > 0 || residual > 0 || embedding > 0; }
};

/// The mask of one tensor of a micro-batch: a pure function of the numbers below and of an element's sample, position,
/// head and column in the whole batch. So the layout of ranks has no part in it, nothing is saved for the backward
/// pass, and a pass that is computed again draws the same mask. Rows are tokens, sequence after sequence.
struct DropoutMask {
  double probability = 0;
  std::uint64_t seed = 1;
  sim::Purpose purpose = sim::Purpose::kResidualDropout;
  std::uint64_t step = 0;           ///< modulo 2^32
  int place = 0;                    ///< which of the model's tensors of that purpose: 0 to 65535
  std::int64_t first_sample = 0;    ///< number, in the step's global batch, of the first sequence
  std::int64_t first_head = 0;      ///< number, in the model, of the first head here; of attention
  std::int64_t length = 1;          ///< tokens of a sequence here
  std::int64_t first_position = 0;  ///< of each sequence's first token here
  std::int64_t first_row = 0;       ///< number, in [batch, length], of the tensor's first row
  /// Tokens of a sequence here before a gap of so many positions, which other ranks have. Attention has no gap.
  std::int64_t tokens_before_gap = 0;
  std::int64_t gap = 0;

  /// Draws have 32 bits.
  bool is_on() const { return probability >= sim::kSmallestProbability; }
};

/// The draws of one row of a mask: the columns of a token, or the keys of a query of a head. Element 64 g + 16 k + j
/// has word k of Philox block 16 g + j, so that 16 blocks fill one vector register after the other. Key: words 0 and 1
/// of the block of the seed at the counter (sample, step, place << 16 | head, purpose << 16). Counter: (block,
/// position, 0, purpose << 16).
class DropoutRow {
 public:
  static constexpr std::int64_t kGroup = 64;

  DropoutRow(const DropoutMask& mask, std::int64_t sample, std::int64_t head, std::int64_t position);
  /// That of row `row` of the tensor.
  static DropoutRow of_row(const DropoutMask& mask, std::int64_t row);

  /// to[i] = 0 or 1 / (1 - probability), of the element 64 x group + i.
  template <class T>
  void factors(std::int64_t group, T (&to)[kGroup]) const;

 private:
  std::uint64_t key_;
  std::uint32_t position_;
  std::uint32_t last_word_;
  std::uint32_t largest_lost_;  ///< the largest draw of an element that becomes zero
  double scale_;
};

/// Calls body(i, factor) for the elements first + i step of a row, i from 0 to count - 1, in order. The loop
/// vectorises for a step of 1.
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

/// to = from with the mask. The two may be one range. Shapes: [rows, width].
template <class T>
void drop_elements(const T* from, const DropoutMask& mask, std::int64_t rows, std::int64_t width, T* to,
                   const Team& team);

/// On a device, for E float, Bf16 or Fp16, with the same masks.
template <class E>
void drop_elements(comm::DeviceSpan<const E> from, const DropoutMask& mask, std::int64_t rows, std::int64_t width,
                   comm::DeviceSpan<E> to, comm::Stream& stream);

}  // namespace droptest::models
