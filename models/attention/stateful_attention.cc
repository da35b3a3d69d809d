// SPDX-License-Identifier: Apache-2.0
#include "models/attention/stateful_attention.h"

#include <cstddef>
#include <vector>

#include "comm/dry_communicator.h"
#include "models/attention/attention_views.h"
#include "models/attention/block_attention.h"
#include "models/attention/cached_attention.h"
#include "models/attention/device_attention.h"
#include "models/attention/dilated_attention.h"
#include "models/attention/planned_heads.h"
#include "models/attention/sequence_attention.h"
#include "models/attention/stateful_attention_of.h"

namespace droptest::models {
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
                                            std::uint64_t states, const OpsForm& form) {
  if (!options.is_stateful() || options.past == AttentionOptions::Past::kCached) return {};
  std::vector<comm::DryCall> calls;
  comm::DryCommunicator alone(1, 0, calls);
  comm::DryCommunicator group(options.sequence.ranks(), rank, calls);
  const std::unique_ptr<PlannerOps> ops = make_planner_ops(form, alone);
  SequenceParallel ranks;
  if (options.sequence.ranks() > 1) ranks.group = &group;
  SequenceCut cut(options.sequence, ranks);
  std::vector<std::int32_t> documents;
  // A device has a copy of the document numbers. Their values change no size.
  if (options.within == AttentionOptions::Within::kDocument && form.device() == KernelDevice::kCuda) {
    documents.resize(static_cast<std::size_t>(whole.batch * whole.length));
  }
  const Sequences sequences = cut.sequences({{}, {}, {whole.batch, whole.length}, documents});
  AttentionShape own = whole;
  own.length = sequences.parts->length_of(rank);
  const std::uint64_t bytes = HeadShape{own.batch, own.length, own.heads, own.head_width}.elems() *
                              comm::element_bytes(form.types().activations);
  const auto tensor = [&](std::uint64_t parts) {
    return comm::Tensor{form.types().activations,
                        {ops->reserve(parts * bytes), static_cast<std::size_t>(parts * bytes)}};
  };
  const comm::Tensor qkv = tensor(3);
  const comm::Tensor grad_qkv = tensor(3);
  const comm::Tensor output = tensor(1);
  const comm::Tensor grad_output = tensor(1);
  const std::unique_ptr<StatefulAttention> attention = make_stateful_attention(options, ranks, 0, whole.heads, *ops);
  attention->forward({0, AttentionPlace::kEvaluation}, sequences, own, qkv, output);
  const auto pass = [&](int state) {
    const AttentionPlace at{state, 0};
    attention->forward(at, sequences, own, qkv, output);
    attention->backward(at, sequences, own, output, grad_output, grad_qkv);
    return StatefulAttentionUse{attention->bytes(), ops->stored_bytes()};
  };
  if (states == 0) return {attention->bytes(), 0};
  // The buffers of a ring alternate: after two passes, each buffer has had each part.
  pass(0);
  StatefulAttentionUse use = pass(0);
  if (states == 1) return use;
  const StatefulAttentionUse with_another = pass(1);
  use.memory += (states - 1) * (with_another.memory - use.memory);
  use.stored += (states - 1) * (with_another.stored - use.stored);
  return use;
}

}  // namespace droptest::models
