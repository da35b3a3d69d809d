// SPDX-License-Identifier: Apache-2.0
// The tokens that a rank computes, out of the sequences of its replica.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "models/attention/attention_options.h"
#include "models/attention/sequence_parts.h"
#include "models/gpt2/batch.h"

namespace droptest::models {

/// The ranks that share the tokens of the same sequences.
struct SequenceParallel {
  comm::Communicator* group = nullptr;  ///< borrowed; null: one rank has all tokens
  int stride = 1;                       ///< distance among all ranks from a rank to the next one of its group

  int ranks() const { return group == nullptr ? 1 : group->world_size(); }
  int rank() const { return group == nullptr ? 0 : group->rank(); }
};

/// The sequences of a micro-batch, and the positions of this rank's tokens.
struct Sequences {
  std::shared_ptr<const SequenceParts> parts;  ///< shared by the micro-batches of one length
  /// The positions of this rank's tokens in each sequence, in the order of the tokens.
  std::vector<PositionRange> positions;
  /// The documents of the whole sequences, [batch, length], as MicroBatch::documents.
  std::vector<std::int32_t> documents;
};

/// Cuts whole sequences into the part of one rank. Owner: one rank.
class SequenceCut {
 public:
  /// Throws: CheckError if the layout has another number of ranks.
  SequenceCut(const SequenceLayout& layout, const SequenceParallel& ranks);

  /// The shape of this rank's part of a batch; it may have no token.
  BatchShape shape(const BatchShape& whole);
  Sequences sequences(const MicroBatch& whole);
  /// This rank's part of [batch, length] numbers; valid until the next call with the same room.
  std::span<const std::int32_t> own(std::span<const std::int32_t> whole, const BatchShape& shape,
                                    std::vector<std::int32_t>& room);

 private:
  const std::shared_ptr<const SequenceParts>& parts(std::int64_t length);

  SequenceLayout layout_;
  int rank_;
  std::shared_ptr<const SequenceParts> parts_;  ///< parts of the last length; shared with Sequences
};

}  // namespace droptest::models
