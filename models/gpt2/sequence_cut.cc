// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/sequence_cut.h"

#include <string>

#include "sim/error.h"

namespace droptest::models {

SequenceCut::SequenceCut(const SequenceLayout& layout, const SequenceParallel& ranks)
    : layout_(layout), rank_(ranks.rank()) {
  DROPTEST_CHECK(layout.ranks() == ranks.ranks(), "a sequence layout of " + std::to_string(layout.ranks()) +
                                                      " ranks for a group of " + std::to_string(ranks.ranks()));
}

const std::shared_ptr<const SequenceParts>& SequenceCut::parts(std::int64_t length) {
  if (parts_ == nullptr || parts_->length() != length) {
    parts_ = std::make_shared<const SequenceParts>(layout_.parts(length));
  }
  return parts_;
}

BatchShape SequenceCut::shape(const BatchShape& whole) {
  BatchShape own = whole;
  own.length = parts(whole.length)->length_of(rank_);
  return own;
}

Sequences SequenceCut::sequences(const MicroBatch& whole) {
  Sequences sequences{parts(whole.shape.length), {}, {whole.documents.begin(), whole.documents.end()}};
  for (PositionRange range : sequences.parts->ranges(rank_)) {
    range.begin += whole.shape.first_position;
    sequences.positions.push_back(range);
  }
  return sequences;
}

std::span<const std::int32_t> SequenceCut::own(std::span<const std::int32_t> whole, const BatchShape& shape,
                                               std::vector<std::int32_t>& room) {
  if (layout_.ranks() == 1) return whole;
  room.clear();
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    const auto sequence =
        whole.subspan(static_cast<std::size_t>(b * shape.length), static_cast<std::size_t>(shape.length));
    for (const PositionRange& range : parts(shape.length)->ranges(rank_)) {
      const auto part = sequence.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.count));
      room.insert(room.end(), part.begin(), part.end());
    }
  }
  return room;
}

}  // namespace droptest::models
