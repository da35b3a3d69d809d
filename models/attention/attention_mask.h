// SPDX-License-Identifier: Apache-2.0
// Which keys a query may attend to: any combination of masks, applied as one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/tensor.h"
#include "models/kernels/matmul.h"

namespace droptest::models {

/// The positions first, first + step, first + 2 step, ... of the whole sequence.
struct PositionSteps {
  std::int64_t first = 0;
  std::int64_t step = 1;
};

/// One array of a mask over the positions of the whole sequence. uint8 values other than 0 allow attention. float32 and
/// float64 values are added to the scaled scores; minus infinity forbids attention. Borrowed.
struct MaskArray {
  enum class Axes : std::uint8_t {
    kKeys,              ///< [batch, keys]: padding
    kQueriesKeys,       ///< [queries, keys]
    kBatchQueriesKeys,  ///< [batch, queries, keys]
  };
  Axes axes = Axes::kKeys;
  comm::ConstTensor values;
};

/// Whether a query sees only the keys up to its own position.
enum class Causality : std::uint8_t { kAny, kCausal };

/// The number of sequences and positions that the arrays of a mask cover.
struct MaskExtents {
  std::int64_t batch = 0;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
};

/// A combination of masks: a key is visible if all of them allow it, and added values add up. A query that sees no key
/// has the attention output 0, the log-sum-exp minus infinity, and no gradient. Positions are those of the whole
/// sequence, so all ranks use the same mask, whichever tokens they have.
class AttentionMask {
 public:
  /// A mask with causality only.
  explicit AttentionMask(Causality causality) : causality_(causality) {}
  /// `documents` [batch, positions] has the number of the document that each token belongs to: attention stays within a
  /// document. A token with a negative number is padding: it is not attended to, and sees nothing. Empty: one document.
  /// All spans are borrowed and outlive the mask. Throws: ConfigError that names the array and the axis for a wrong
  /// number of elements, for another element type than uint8, float32 or float64, for added values that are NaN or plus
  /// infinity, and for documents with unequal numbers of queries and keys.
  AttentionMask(Causality causality, const MaskExtents& extents, std::vector<MaskArray> arrays,
                std::span<const std::int32_t> documents = {});

  Causality causality() const { return causality_; }
  /// Whether arrays or documents limit the visible keys in addition to causality.
  bool has_values() const { return !arrays_.empty() || !documents_.empty(); }
  /// Throws: ConfigError unless the arrays cover `batch` sequences of `length` positions.
  void check_covers(std::int64_t batch, std::int64_t length) const;

  /// Applies the arrays and the documents, but not causality, to the scores [queries, keys] of a sequence. Forbidden
  /// scores become minus infinity.
  template <class T>
  void add_to(std::int64_t batch, const PositionSteps& queries, const PositionSteps& keys,
              const Matrix<T>& scores) const;

  /// Whether the documents of these queries and keys do not overlap, so that no query sees any key. False does not mean
  /// that some key is visible.
  bool hides(std::int64_t batch, const PositionSteps& queries, std::int64_t query_count, const PositionSteps& keys,
             std::int64_t key_count) const;

  /// The number of leading keys, of `count` keys at the positions `keys`, that causality lets the query at position
  /// `query` see.
  std::int64_t visible(std::int64_t query, const PositionSteps& keys, std::int64_t count) const {
    if (causality_ == Causality::kAny) return count;
    if (query < keys.first) return 0;
    const std::int64_t seen = (query - keys.first) / keys.step + 1;
    return seen < count ? seen : count;
  }

 private:
  Causality causality_;
  MaskExtents extents_;
  std::vector<MaskArray> arrays_;
  std::span<const std::int32_t> documents_;
};

/// The whole mask as an array [batch, queries, keys] that a caller's own attention adds to scaled scores. `queries` and
/// `keys` are the positions of the tokens, in the order of the array.
template <class T>
std::vector<T> combined_mask(const AttentionMask& mask, std::int64_t batch, std::span<const std::int64_t> queries,
                             std::span<const std::int64_t> keys);

}  // namespace droptest::models
