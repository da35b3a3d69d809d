// SPDX-License-Identifier: Apache-2.0
#include "models/sequence/dilated_attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/kernels/chunks.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

using RunsByHead = std::vector<TokenRun>;

/// Elements of the tokens of all heads, by rank.
std::vector<std::uint64_t> counts_of(const std::vector<RunsByHead>& by_rank, const HeadShape& shape) {
  std::vector<std::uint64_t> counts;
  for (const RunsByHead& by_head : by_rank) {
    counts.push_back(static_cast<std::uint64_t>(DilatedPlan::tokens(by_head) * shape.batch * shape.width));
  }
  return counts;
}

std::uint64_t sum(const std::vector<std::uint64_t>& counts) {
  std::uint64_t all = 0;
  for (const std::uint64_t count : counts) all += count;
  return all;
}

/// Calls f(batch, token, head) in the order in which the heads of tokens travel: by rank, head, token and sequence.
template <class F>
void for_each_travelling(const std::vector<RunsByHead>& by_rank, std::int64_t batch, const F& f) {
  for (const RunsByHead& by_head : by_rank) {
    for_travelling_heads(by_head, [&](std::int64_t token, std::int64_t head) {
      for (std::int64_t b = 0; b < batch; ++b) f(b, token, head);
    });
  }
}

template <class T>
void pack(const std::vector<RunsByHead>& by_rank, const HeadView<const T>& from, std::vector<T>& packed) {
  packed.clear();
  for_each_travelling(by_rank, from.shape.batch, [&](std::int64_t b, std::int64_t token, std::int64_t head) {
    const T* elems = from.at(b, token, head);
    packed.insert(packed.end(), elems, elems + from.shape.width);
  });
}

template <class T>
HeadView<T> view(std::vector<T>& elems, const HeadShape& shape) {
  return view_of("tokens", std::span(elems), shape, TokenLayout::kSequenceFirst);
}
template <class T>
HeadView<const T> view(const std::vector<T>& elems, const HeadShape& shape) {
  return view_of("tokens", std::span<const T>(elems), shape, TokenLayout::kSequenceFirst);
}

}  // namespace

template <class T>
DilatedAttention<T>::DilatedAttention(comm::Communicator* group, DilatedOptions options, std::int64_t heads)
    : group_(group), rank_(group == nullptr ? 0 : group->rank()), options_(std::move(options)), heads_(heads) {
  validate(options_.branches);
}

template <class T>
const std::vector<DilatedPlan>& DilatedAttention<T>::plans(const SequencePass& pass) {
  const Causality causality = pass.mask.causality();
  if (planned_ && planned_->parts == pass.parts && planned_->causality == causality) return planned_->branches;
  std::vector<DilatedPlan> branches;
  for (const DilatedBranch& branch : options_.branches) {
    branches.push_back(dilated_plan(branch, pass.parts, rank_, options_.first_head, heads_, causality));
  }
  return planned_.emplace(Planned{pass.parts, causality, std::move(branches)}).branches;
}

template <class T>
HeadShape DilatedAttention<T>::local_shape(const SequencePass& pass, const HeadShape& like) const {
  check_dilated_ranks(pass.parts, group_ == nullptr ? 1 : group_->world_size());
  return {like.batch, pass.parts.length_of(rank_), heads_, like.width};
}

template <class T>
HeadShape DilatedAttention<T>::gathered_shape(const DilatedPlan& plan, const HeadShape& local) const {
  return {local.batch, plan.gathered_tokens, local.heads, local.width};
}

template <class T>
AttentionInputs<T> DilatedAttention<T>::inputs_of(const SequencePass& pass, const SavedDilatedAttention<T>& saved,
                                                  const HeadShape& local) const {
  return {view(saved.queries, local), view(saved.keys, local), view(saved.values, local), pass.mask, {}, pass.dropout};
}

template <class T>
AttentionInputs<T> DilatedAttention<T>::inputs_of(const SequencePass& pass, const SavedDilatedAttention<T>& saved,
                                                  const HeadShape& local, const Gathered& gathered,
                                                  const HeadShape& shape) const {
  return {view(saved.queries, local),
          view(gathered.keys, shape),
          view(gathered.values, shape),
          pass.mask,
          gathered.absent,
          pass.dropout};
}

template <class T>
std::span<T> DilatedAttention<T>::scratch(std::int64_t width, const Team& team) {
  scratch_.resize(token_attention_scratch_elems(width, team.threads()));
  return scratch_;
}

template <class T>
void DilatedAttention<T>::gather(const DilatedPlan& plan, const HeadView<const T>& from, const HeadView<T>& to,
                                 Absences* absent, LostElements* stopped, const comm::Message& about) {
  if (group_ == nullptr) return;
  const std::vector<std::uint64_t> send = counts_of(plan.sent, from.shape);
  const std::vector<std::uint64_t> receive = counts_of(plan.received, from.shape);
  pack(plan.sent, from, sent_);
  received_.resize(sum(receive));
  std::vector<sim::ElementRange> lost;
  comm::Message message = about;
  if (absent != nullptr || stopped != nullptr) message.lost = &lost;
  group_->all_to_all(std::span<const T>(sent_), send, std::span(received_), receive, message);
  Absences as_received(received_.size() / static_cast<std::size_t>(from.shape.width));
  if (absent != nullptr) mark_absent(lost, from.shape.width, as_received);
  if (stopped != nullptr) *stopped = std::move(lost);
  std::size_t index = 0;
  for_each_travelling(plan.received, to.shape.batch, [&](std::int64_t b, std::int64_t token, std::int64_t head) {
    std::copy_n(received_.data() + index * static_cast<std::size_t>(to.shape.width), to.shape.width,
                to.at(b, token, head));
    if (as_received[index] != 0)
      (*absent)[static_cast<std::size_t>((token * to.shape.batch + b) * to.shape.heads + head)] = 1;
    ++index;
  });
}

template <class T>
void DilatedAttention<T>::scatter(const DilatedPlan& plan, const HeadView<const T>& from, const HeadView<T>& to,
                                  const LostElements& stopped, const comm::Message& message) {
  if (group_ == nullptr) return;
  const std::vector<std::uint64_t> send = counts_of(plan.received, from.shape);
  const std::vector<std::uint64_t> receive = counts_of(plan.sent, from.shape);
  pack(plan.received, from, sent_);
  zero_lost(stopped, std::span(sent_));
  received_.resize(sum(receive));
  group_->all_to_all(std::span<const T>(sent_), send, std::span(received_), receive, message);
  const T* elems = received_.data();
  for_each_travelling(plan.sent, to.shape.batch, [&](std::int64_t b, std::int64_t token, std::int64_t head) {
    T* sum = to.at(b, token, head);
    for (std::int64_t d = 0; d < to.shape.width; ++d) sum[d] += *elems++;
  });
}

template <class T>
void DilatedAttention<T>::attend_branch(const DilatedPlan& plan, const SequencePass& pass,
                                        const SavedDilatedAttention<T>& saved, const HeadShape& local,
                                        const Gathered& gathered, const HeadView<T>& output, std::span<T> log_sum_exp,
                                        const Team& team) {
  const std::span<T> room = scratch(local.width, team);
  attend(inputs_of(pass, saved, local), plan.local, output, log_sum_exp, room, team);
  if (plan.gathered_tokens == 0) return;
  attend(inputs_of(pass, saved, local, gathered, gathered_shape(plan, local)), plan.gathered, output, log_sum_exp, room,
         team);
}

template <class T>
void DilatedAttention<T>::forward(const SequencePass& pass, const HeadView<const T>& queries,
                                  const HeadView<const T>& keys, const HeadView<const T>& values,
                                  const HeadView<T>& output, SavedDilatedAttention<T>& saved, const Team& team) {
  const SingleThreadedLibraries single_threaded;
  const HeadShape local = local_shape(pass, queries.shape);
  check_shape("queries", queries.shape, local, TokenLayout::kBatchFirst);
  check_shape("keys", keys.shape, local, TokenLayout::kBatchFirst);
  check_shape("values", values.shape, local, TokenLayout::kBatchFirst);
  check_shape("output", output.shape, local, TokenLayout::kBatchFirst);
  pass.mask.check_covers(local.batch, pass.parts.length());
  const auto save = [&](const HeadView<const T>& from, std::vector<T>& to) {
    to.resize(local.elems());
    copy_heads(from, view(to, local));
  };
  save(queries, saved.queries);
  save(keys, saved.keys);
  save(values, saved.values);
  saved.output.resize(local.elems());
  saved.log_sum_exp.resize(static_cast<std::size_t>(local.batch * local.heads * local.tokens));
  begin_attention(view(saved.output, local), std::span(saved.log_sum_exp));
  saved.gathered.resize(options_.branches.size());
  const bool leaves_out = group_ != nullptr && group_->leaves_lost_out(sim::TrafficClass::kSequenceForward);
  const bool stops =
      !leaves_out && group_ != nullptr && group_->stops_lost_gradients(sim::TrafficClass::kSequenceForward);
  for (std::size_t branch = 0; branch < options_.branches.size(); ++branch) {
    const DilatedPlan& of_branch = plans(pass)[branch];
    const HeadShape shape = gathered_shape(of_branch, local);
    Gathered& gathered = saved.gathered[branch];
    gathered.keys.assign(shape.elems(), T(0));
    gathered.values.assign(shape.elems(), T(0));
    gathered.absent.assign(leaves_out ? static_cast<std::size_t>(shape.tokens * shape.batch * shape.heads) : 0, 0);
    gathered.lost_keys.clear();
    gathered.lost_values.clear();
    Absences* const absent = leaves_out ? &gathered.absent : nullptr;
    const std::string of_keys = dilated_message(branch, "keys");
    const std::string of_values = dilated_message(branch, "values");
    gather(of_branch, keys, view(gathered.keys, shape), absent, stops ? &gathered.lost_keys : nullptr,
           {sim::TrafficClass::kSequenceForward, of_keys, pass.layer});
    gather(of_branch, values, view(gathered.values, shape), absent, stops ? &gathered.lost_values : nullptr,
           {sim::TrafficClass::kSequenceForward, of_values, pass.layer});
    attend_branch(of_branch, pass, saved, local, gathered, view(saved.output, local), saved.log_sum_exp, team);
  }
  copy_heads(view(std::as_const(saved.output), local), output);
}

template <class T>
void DilatedAttention<T>::backward(const SequencePass& pass, const HeadView<const T>& grad_output,
                                   const SavedDilatedAttention<T>& saved, const AttentionGradients<T>& gradients,
                                   const Team& team) {
  const SingleThreadedLibraries single_threaded;
  const HeadShape local = local_shape(pass, grad_output.shape);
  check_shape("grad_output", grad_output.shape, local, TokenLayout::kBatchFirst);
  check_shape("gradient of queries", gradients.queries.shape, local, TokenLayout::kBatchFirst);
  check_shape("gradient of keys", gradients.keys.shape, local, TokenLayout::kBatchFirst);
  check_shape("gradient of values", gradients.values.shape, local, TokenLayout::kBatchFirst);
  for (const HeadView<T>& gradient : {gradients.queries, gradients.keys, gradients.values}) {
    for (std::int64_t b = 0; b < local.batch; ++b) {
      for (std::int64_t t = 0; t < local.tokens; ++t) {
        for (std::int64_t h = 0; h < heads_; ++h) std::fill_n(gradient.at(b, t, h), local.width, T(0));
      }
    }
  }
  const std::span<T> room = scratch(local.width, team);
  // Of one branch, where the gradient through the weights is stopped.
  std::vector<T> output;
  std::vector<T> log_sum_exp;
  std::vector<T> weighted_grad;
  for (std::size_t branch = 0; branch < options_.branches.size(); ++branch) {
    const DilatedPlan& of_branch = plans(pass)[branch];
    const HeadShape shape = gathered_shape(of_branch, local);
    const Gathered& gathered = saved.gathered[branch];
    AttentionResults<T> results{view(saved.output, local), saved.log_sum_exp, grad_output};
    if (options_.gradient == BranchGradient::kStopped) {
      output.resize(saved.output.size());
      log_sum_exp.resize(saved.log_sum_exp.size());
      weighted_grad.resize(saved.output.size());
      begin_attention(view(output, local), std::span(log_sum_exp));
      attend_branch(of_branch, pass, saved, local, gathered, view(output, local), log_sum_exp, team);
      const HeadView<T> weighted = view(weighted_grad, local);
      copy_heads(grad_output, weighted);
      for (std::int64_t i = 0; i < local.batch * local.heads * local.tokens; ++i) {
        const auto statistic = static_cast<std::size_t>(i);
        const T all = saved.log_sum_exp[statistic];
        const T weight = std::isinf(log_sum_exp[statistic]) ? T(0) : std::exp(log_sum_exp[statistic] - all);
        T* elems = weighted.at(i / local.tokens / local.heads, i % local.tokens, i / local.tokens % local.heads);
        for (std::int64_t d = 0; d < local.width; ++d) elems[d] *= weight;
      }
      results = {view(std::as_const(output), local), log_sum_exp, view(std::as_const(weighted_grad), local)};
    }
    attend_backward(inputs_of(pass, saved, local), of_branch.local, results, gradients, room, team);
    std::vector<T> grad_keys(shape.elems());
    std::vector<T> grad_values(shape.elems());
    if (of_branch.gathered_tokens > 0) {
      attend_backward(inputs_of(pass, saved, local, gathered, shape), of_branch.gathered, results,
                      {gradients.queries, view(grad_keys, shape), view(grad_values, shape)}, room, team);
    }
    const std::string of_keys = dilated_message(branch, "keys.grad");
    const std::string of_values = dilated_message(branch, "values.grad");
    scatter(of_branch, view(std::as_const(grad_keys), shape), gradients.keys, gathered.lost_keys,
            {sim::TrafficClass::kSequenceBackward, of_keys, pass.layer});
    scatter(of_branch, view(std::as_const(grad_values), shape), gradients.values, gathered.lost_values,
            {sim::TrafficClass::kSequenceBackward, of_values, pass.layer});
  }
}

template <class T>
SequenceTraffic DilatedAttention<T>::traffic(const SequenceParts& parts, Causality causality, std::int64_t batch,
                                             std::int64_t width) const {
  const HeadShape shape{batch, 0, heads_, width};
  SequenceTraffic traffic;
  for (const DilatedBranch& branch : options_.branches) {
    const DilatedPlan plan = dilated_plan(branch, parts, rank_, options_.first_head, heads_, causality);
    traffic.forward_elems += 2 * sum(counts_of(plan.sent, shape));
    traffic.backward_elems += 2 * sum(counts_of(plan.received, shape));
  }
  return traffic;
}

template class DilatedAttention<float>;
template class DilatedAttention<double>;

}  // namespace droptest::models
