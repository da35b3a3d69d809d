// SPDX-License-Identifier: Apache-2.0
// The messages of attention over sequence ranks, known without ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "models/attention/attention_options.h"
#include "models/kernels/attention.h"

namespace droptest::models {

/// A message between two ranks of a sequence group, not empty.
struct SequenceMessage {
  int source = 0;
  int destination = 0;
  std::uint64_t elems = 0;
};

enum class PassDirection : std::uint8_t { kForward, kBackward };

/// Of a block's attention over `whole` sequences with the heads of a tensor-parallel rank, from number `first_head` on.
/// Without flags of absent keys and lost elements, which are control traffic.
std::vector<SequenceMessage> sequence_messages(const AttentionOptions& options, const AttentionShape& whole,
                                               std::int64_t first_head, PassDirection direction);

}  // namespace droptest::models
