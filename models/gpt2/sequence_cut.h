// SPDX-License-Identifier: Apache-2.0
// Which tokens of its replica's sequences a rank computes.
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

/// The ranks that have other tokens of the same sequences.
struct SequenceParallel {
  comm::Communicator* group = nullptr;  ///< borrowed; null: one rank has all tokens
  int stride = 1;                       ///< among all ranks: from a rank to the next one of its group

  int ranks() const { return group == nullptr ? 1 : group->world_size(); }
  int rank() const { return group == nullptr ? 0 : group->rank(); }
};

/// The sequences of a micro-batch, of which this rank has some tokens.
struct Sequences {
  std::shared_ptr<const SequenceParts> parts;  ///< shared by the micro-batches of one length
  /// Positions of this rank's tokens of each sequence, in their order.
  std::vector<PositionRange> positions;
  /// [batch, length] of the whole sequences, as MicroBatch::documents.
  std::vector<std::int32_t> documents;
};

/// Cuts whole sequences into the part of one rank. Owner: one rank.
class SequenceCut {
 public:
  /// Throws: CheckError for a layout of another number of ranks.
  SequenceCut(const SequenceLayout& layout, const SequenceParallel& ranks);

  /// This rank's part of each sequence; it may have no token.
  BatchShape shape(const BatchShape& whole);
  Sequences sequences(const MicroBatch& whole);
  /// The rank's part of [batch, length] numbers, until the next call with the same room.
  std::span<const std::int32_t> own(std::span<const std::int32_t> whole, const BatchShape& shape,
                                    std::vector<std::int32_t>& room);

 private:
  const std::shared_ptr<const SequenceParts>& parts(std::int64_t length);

  SequenceLayout layout_;
  int rank_;
  std::shared_ptr<const SequenceParts> parts_;  ///< of the last length; shared with the sequences of micro-batches
};

}  // namespace droptest::models
