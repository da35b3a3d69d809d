// SPDX-License-Identifier: Apache-2.0
#include "models/attention/stateful_attention.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "models/attention/attention_chunks.h"
#include "models/attention/attention_views.h"
#include "models/attention/block_attention.h"
#include "models/attention/cached_attention.h"
#include "models/attention/device_attention.h"
#include "models/attention/dilated_attention.h"
#include "models/attention/planned_heads.h"
#include "models/attention/sequence_attention.h"
#include "models/attention/stateful_attention_of.h"

namespace droptest::models {
namespace {

std::uint64_t elems_of(const AttentionShape& s, std::int64_t tokens, std::int64_t heads) {
  return HeadShape{s.batch, tokens, heads, s.head_width}.elems();
}

/// Elements of one state and of the working memory, but for documents, the scratch of kernels, and what passes on its
/// way to chunks and back.
struct StateSize {
  std::uint64_t tensors = 0;     ///< saved
  std::uint64_t largest = 0;     ///< of the largest of them
  std::uint64_t statistics = 0;  ///< log-sum-exps of a state
  std::uint64_t resident = 0;    ///< of the saved tensors, in memory at once with chunks
  std::uint64_t working = 0;
  std::uint64_t working_statistics = 0;
  std::uint64_t statistics_at_once = 0;  ///< of a call of the kernel
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
  const std::uint64_t tensor = elems_of(s, parts.length_of(rank), s.heads);
  StateSize size{3 * tensor, tensor, tensor / static_cast<std::uint64_t>(s.head_width)};
  size.statistics_at_once = size.statistics;
  if (options.gradient == BranchGradient::kStopped) {
    size.working = 2 * tensor;
    size.working_statistics = size.statistics;
  }
  std::uint64_t most_gathered = 0;
  std::uint64_t most_packed = 0;
  for (const DilatedBranch& branch : options.branches) {
    const DilatedPlan plan = dilated_plan(branch, parts, rank, 0, s.heads, Causality::kCausal);
    const std::uint64_t gathered = elems_of(s, plan.gathered_tokens, s.heads);
    size.tensors += 2 * gathered;
    most_gathered = std::max(most_gathered, gathered);
    for (const auto* by_rank : {&plan.sent, &plan.received}) {
      std::int64_t tokens = 0;
      for (const std::vector<TokenRun>& by_head : *by_rank) tokens += DilatedPlan::tokens(by_head);
      most_packed = std::max(most_packed, elems_of(s, tokens, 1));
    }
  }
  size.largest = std::max(size.largest, most_gathered);
  size.resident = size.tensors;
  // Gradients of gathered keys and values; what is sent, and what is received.
  size.working += 2 * (most_gathered + most_packed);
  return size;
}

/// The output is the block's, and gradients go where the caller wants them.
StateSize whole_size(const AttentionOptions& options, const AttentionShape& s) {
  const std::int64_t tokens = options.chunk_tokens > 0 ? std::min(options.chunk_tokens, s.length) : s.length;
  const std::uint64_t tensor = elems_of(s, s.length, s.heads);
  StateSize size{3 * tensor, tensor, tensor / static_cast<std::uint64_t>(s.head_width)};
  size.resident = 3 * elems_of(s, tokens, s.heads);
  size.statistics_at_once = static_cast<std::uint64_t>(s.batch * s.heads * tokens);
  return size;
}

StateSize size_of(const AttentionOptions& options, int rank, const AttentionShape& whole) {
  if (options.is_whole()) return whole_size(options, whole);
  const SequenceParts parts = options.sequence.parts(whole.length);
  if (!options.branches.empty()) return dilated_size(options, parts, rank, whole);
  const DenseSize dense = dense_size(options.sequence.factors, parts, rank, whole);
  // Queries, keys, values and the output; the gradients of the first three and of the output.
  StateSize size{4 * dense.tensor, dense.tensor, dense.statistics, 4 * dense.tensor};
  size.working = 4 * dense.tensor + dense.exchanged;
  size.statistics_at_once = dense.statistics;
  return size;
}

/// Buffers of pieces on their way, at most. On the host, whole sequences are read in chunks of three kinds at once,
/// after they are written; other attention writes and reads two pieces at once.
std::uint64_t passages(const AttentionOptions& options, KernelDevice device) {
  if (device == KernelDevice::kCuda) return kDevicePassages;
  return options.is_whole() ? kChunkKinds.size() : kResidentPieces;
}

}  // namespace

std::unique_ptr<StatefulAttention> make_stateful_attention(const AttentionOptions& options,
                                                           const SequenceParallel& ranks, std::int64_t first_head,
                                                           std::int64_t heads, Ops& ops) {
  if (!options.is_stateful()) return nullptr;
  if (options.past == AttentionOptions::Past::kCached) return make_cached_attention(ops);
  if (dynamic_cast<PlannerOps*>(&ops) != nullptr) {
    return stateful_attention_of<PlannedBlocks>(options, ranks, first_head, heads, ops);
  }
  if (ops.team() == nullptr) return make_device_attention(options, ranks, first_head, heads, ops);
  if (ops.form().types().activations == comm::ElementType::kFloat64) {
    return stateful_attention_of<HostBlocks<double>>(options, ranks, first_head, heads, ops);
  }
  return stateful_attention_of<HostBlocks<float>>(options, ranks, first_head, heads, ops);
}

StatefulAttentionUse stateful_attention_use(const AttentionOptions& options, int rank, const AttentionShape& whole,
                                            comm::ElementType type, std::uint64_t states,
                                            const AttentionProcessor& processor) {
  if (!options.is_stateful() || options.past == AttentionOptions::Past::kCached) return {};
  const bool is_on_device = processor.device == KernelDevice::kCuda;
  const std::uint64_t elem = comm::element_bytes(type);
  // The host's log-sum-exps are of the type of elements, and its documents are those of the sequences.
  const std::uint64_t statistic = is_on_device ? sizeof(float) : elem;
  StateSize size = size_of(options, rank, whole);
  std::uint64_t stored = 0;
  if (options.chunk_tokens > 0) {
    stored = std::exchange(size.tensors, 0);
    const std::uint64_t piece =
        std::min(elems_of(whole, std::min(options.chunk_tokens, whole.length), whole.heads), size.largest);
    size.working += size.resident + passages(options, processor.device) * piece;
  }
  // An evaluation of whole sequences needs no copy of its queries, keys and values.
  const std::uint64_t tensors = size.tensors * (options.is_whole() ? states - 1 : states);
  std::uint64_t state = size.statistics * statistic;
  std::uint64_t working = size.working * elem + size.working_statistics * statistic;
  if (is_on_device) {
    const bool has_documents = options.within == AttentionOptions::Within::kDocument;
    state += has_documents ? static_cast<std::uint64_t>(whole.batch * whole.length) * sizeof(std::int32_t) : 0;
    working += size.statistics_at_once * statistic;  // of a backward pass
  } else {
    working += token_attention_scratch_elems(whole.head_width, processor.threads) * elem;
  }
  return {tensors * elem + states * state + working, elem * (states - 1) * stored};
}

}  // namespace droptest::models
