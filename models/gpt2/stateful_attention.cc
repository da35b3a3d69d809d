// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/stateful_attention.h"

#include <algorithm>
#include <map>
#include <type_traits>
#include <utility>
#include <vector>

#include "models/gpt2/attention_views.h"
#include "models/gpt2/cached_attention.h"
#include "models/gpt2/device_attention.h"
#include "models/gpt2/device_offloaded_attention.h"
#include "models/gpt2/kernel_attention.h"
#include "models/gpt2/offloaded_attention.h"
#include "models/phase_times.h"
#include "models/sequence/dilated_attention.h"
#include "models/sequence/sequence_attention.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

std::uint64_t elems_of(const AttentionShape& s, std::int64_t tokens, std::int64_t heads) {
  return HeadShape{s.batch, tokens, heads, s.head_width}.elems();
}

/// Elements of one state and of the working memory.
struct StateSize {
  std::uint64_t state = 0;
  std::uint64_t working = 0;
};

/// Elements of tensors of tokens, and log-sum-exps, of a rank with dense attention over sequence ranks.
struct DenseSize {
  std::uint64_t tensor = 0;      ///< queries, keys, values, the output, or a gradient of theirs
  std::uint64_t statistics = 0;  ///< log-sum-exps
  std::uint64_t exchanged = 0;   ///< packed for the exchange, and on its way around a ring
};

DenseSize dense_size(const SequenceFactors& factors, const SequenceParts& parts, int rank, const AttentionShape& s) {
  const auto tokens_of = [&](int ring_rank) {
    std::int64_t tokens = 0;
    for (int u = 0; u < factors.ulysses; ++u) tokens += parts.length_of(ring_rank * factors.ulysses + u);
    return tokens;
  };
  std::int64_t most = 0;
  for (int r = 0; r < factors.ring; ++r) most = std::max(most, tokens_of(r));
  const auto heads = static_cast<std::int64_t>(comm::even_counts(
      static_cast<std::uint64_t>(s.heads), factors.ulysses)[static_cast<std::size_t>(rank % factors.ulysses)]);
  DenseSize size;
  size.tensor = elems_of(s, tokens_of(rank / factors.ulysses), heads);
  size.statistics = size.tensor / static_cast<std::uint64_t>(s.head_width);
  if (factors.ulysses > 1) size.exchanged += elems_of(s, parts.length_of(rank), s.heads);
  // Keys, values and their gradients, here and on their way, of every part.
  if (factors.ring > 1) size.exchanged += 8 * elems_of(s, most, heads);
  return size;
}

StateSize dilated_size(const AttentionOptions& options, const SequenceParts& parts, int rank, const AttentionShape& s) {
  const std::int64_t tokens = parts.length_of(rank);
  const std::uint64_t tensor = elems_of(s, tokens, s.heads);
  StateSize size{3 * tensor + tensor / static_cast<std::uint64_t>(s.head_width), 0};
  std::uint64_t most = 0;
  for (const DilatedBranch& branch : options.branches) {
    const DilatedPlan plan = dilated_plan(branch, parts, rank, 0, s.heads, Causality::kCausal);
    const std::uint64_t gathered = elems_of(s, plan.gathered_tokens, s.heads);
    size.state += 2 * gathered;
    most = std::max(most, gathered);
  }
  size.working = 4 * most + (options.gradient == BranchGradient::kStopped ? 2 * tensor : 0);
  return size;
}

StateSize size_of(const AttentionOptions& options, const SequenceParts& parts, int rank, const AttentionShape& s,
                  int threads) {
  StateSize size;
  if (options.branches.empty()) {
    const DenseSize dense = dense_size(options.sequence.factors, parts, rank, s);
    // Of the first three, the output and its log-sum-exp; gradients of the first three and of the output.
    size = {4 * dense.tensor + dense.statistics, 4 * dense.tensor + dense.exchanged};
  } else {
    size = dilated_size(options, parts, rank, s);
  }
  size.working += token_attention_scratch_elems(s.head_width, threads);
  return size;
}

/// Bytes of dilated attention on a device, but for documents.
StateSize dilated_device_bytes(const AttentionOptions& options, const SequenceParts& parts, int rank,
                               const AttentionShape& s, std::uint64_t elem) {
  const std::uint64_t tensor = elems_of(s, parts.length_of(rank), s.heads);
  const std::uint64_t statistics = tensor / static_cast<std::uint64_t>(s.head_width) * sizeof(float);
  StateSize size{3 * tensor * elem + statistics, statistics};
  if (options.gradient == BranchGradient::kStopped) size.working += 2 * tensor * elem + statistics;
  std::uint64_t most_gathered = 0;
  std::uint64_t most_packed = 0;
  for (const DilatedBranch& branch : options.branches) {
    const DilatedPlan plan = dilated_plan(branch, parts, rank, 0, s.heads, Causality::kCausal);
    const std::uint64_t gathered = elems_of(s, plan.gathered_tokens, s.heads);
    size.state += 2 * gathered * elem;
    most_gathered = std::max(most_gathered, gathered);
    for (const auto* by_rank : {&plan.sent, &plan.received}) {
      std::int64_t tokens = 0;
      for (const std::vector<TokenRun>& by_head : *by_rank) tokens += DilatedPlan::tokens(by_head);
      most_packed = std::max(most_packed, elems_of(s, tokens, 1));
    }
  }
  // Gradients of gathered keys and values; what is sent, and what is received.
  size.working += 2 * (most_gathered + most_packed) * elem;
  return size;
}

/// Bytes on a device, whose log-sum-exps are floats. Dilated attention and one rank take the output from the block.
StateSize device_bytes(const AttentionOptions& options, int rank, const AttentionShape& whole, std::uint64_t elem) {
  const SequenceParts parts = options.sequence.parts(whole.length);
  const bool has_documents = options.within == AttentionOptions::Within::kDocument;
  const std::uint64_t documents =
      has_documents ? static_cast<std::uint64_t>(whole.batch * whole.length) * sizeof(std::int32_t) : 0;
  if (!options.branches.empty()) {
    StateSize size = dilated_device_bytes(options, parts, rank, whole, elem);
    size.state += documents;
    return size;
  }
  const DenseSize dense = dense_size(options.sequence.factors, parts, rank, whole);
  const std::uint64_t statistics = dense.statistics * sizeof(float);
  if (options.chunk_tokens > 0) {
    const std::int64_t tokens = std::min(options.chunk_tokens, whole.length);
    const std::uint64_t of_chunk = static_cast<std::uint64_t>(whole.batch * whole.heads * tokens) * sizeof(float);
    return {statistics + documents, kDeviceResidentChunks * elems_of(whole, tokens, whole.heads) * elem + of_chunk};
  }
  if (parts.ranks() == 1) return {3 * dense.tensor * elem + statistics + documents, statistics};
  return {4 * dense.tensor * elem + statistics + documents, (4 * dense.tensor + dense.exchanged) * elem + statistics};
}

}  // namespace

std::unique_ptr<StatefulAttention> make_stateful_attention(const AttentionOptions& options,
                                                           const SequenceParallel& ranks, std::int64_t first_head,
                                                           std::int64_t heads, Ops& ops) {
  if (!options.is_stateful()) return nullptr;
  if (options.past == AttentionOptions::Past::kCached) return make_cached_attention(ops);
  if (ops.team() == nullptr) return make_device_attention(options, ranks, first_head, heads, ops);
  if (options.chunk_tokens > 0) return make_offloaded_attention(options, ops);
  if (ops.form().types().activations == comm::ElementType::kFloat64) {
    return make_kernel_attention<HostBlocks<double>>(options, ranks, first_head, heads, ops);
  }
  return make_kernel_attention<HostBlocks<float>>(options, ranks, first_head, heads, ops);
}

StatefulAttentionUse stateful_attention_use(const AttentionOptions& options, int rank, const AttentionShape& whole,
                                            comm::ElementType type, std::uint64_t states,
                                            const AttentionProcessor& processor) {
  if (!options.is_stateful() || options.past == AttentionOptions::Past::kCached) return {};
  const std::uint64_t bytes = comm::element_bytes(type);
  if (processor.device == KernelDevice::kCuda) {
    const StateSize size = device_bytes(options, rank, whole, bytes);
    const std::uint64_t stored = options.chunk_tokens > 0 ? 3 * elems_of(whole, whole.length, whole.heads) : 0;
    return {states * size.state + size.working, bytes * (states - 1) * stored};
  }
  const int threads = processor.threads;
  if (options.chunk_tokens > 0) {
    const OffloadedAttentionSize size = offloaded_attention_size(options.chunk_tokens, whole, threads);
    return {bytes * (states * size.state + size.working), bytes * (states - 1) * size.stored};
  }
  const StateSize size = size_of(options, options.sequence.parts(whole.length), rank, whole, threads);
  return {bytes * (states * size.state + size.working), 0};
}

}  // namespace droptest::models
