// SPDX-License-Identifier: Apache-2.0
#include "models/attention/attention_options.h"

#include <string>

#include "sim/error.h"

namespace droptest::models {

SequenceParts SequenceLayout::parts(std::int64_t length) const {
  if (order == Order::kZigzag) return SequenceParts::zigzag(length, factors.ring, factors.ulysses);
  return SequenceParts::even(length, ranks());
}

void validate(const AttentionOptions& options, int heads) {
  const SequenceFactors& factors = options.sequence.factors;
  AttentionOptions other = options;
  other.past = AttentionOptions::Past::kForgotten;
  if (options.past == AttentionOptions::Past::kCached && other.is_stateful()) {
    throw ConfigError(
        "GPT-2: cached keys and values: got sequence ranks, documents, dilated attention or attention in chunks, want "
        "dense attention");
  }
  if (factors.ulysses < 1 || factors.ring < 1) {
    throw ConfigError("GPT-2: sequence: got ulysses " + std::to_string(factors.ulysses) + " x ring " +
                      std::to_string(factors.ring) + ", want at least 1 rank of each");
  }
  if (heads < factors.ulysses) {
    throw ConfigError("GPT-2: sequence: got " + std::to_string(heads) +
                      " attention heads of a tensor-parallel rank for " + std::to_string(factors.ulysses) +
                      " Ulysses ranks, want at least one head for each: fewer ranks, or a ring");
  }
  if (options.chunk_tokens < 0) {
    throw ConfigError("GPT-2: attention in chunks of " + std::to_string(options.chunk_tokens) +
                      " tokens: got fewer than 0");
  }
  if (options.branches.empty()) return;
  validate(options.branches);
  if (factors.ulysses > 1 || options.sequence.order != SequenceLayout::Order::kConsecutive) {
    throw ConfigError(
        "GPT-2: dilated attention: got ulysses or zigzag ranks, want the kind \"ring\": ranks with consecutive parts");
  }
}

}  // namespace droptest::models
