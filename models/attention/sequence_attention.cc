// SPDX-License-Identifier: Apache-2.0
#include "models/attention/sequence_attention.h"

#include <string>

#include "sim/error.h"

namespace droptest::models {

void check_rank_shape(const SequenceParts& parts, const SequenceFactors& factors, int rank, std::int64_t heads,
                      std::string_view tensor, const HeadShape& got, const HeadShape& like) {
  if (parts.ranks() != factors.ulysses * factors.ring) {
    throw ConfigError("sequence: got parts of " + std::to_string(parts.ranks()) + " ranks, want " +
                      std::to_string(factors.ulysses * factors.ring));
  }
  check_shape(tensor, got, {like.batch, parts.length_of(rank), heads, like.width}, TokenLayout::kBatchFirst);
}

template class SequenceAttentionOf<HostHeads<float>>;
template class SequenceAttentionOf<HostHeads<double>>;

}  // namespace droptest::models
