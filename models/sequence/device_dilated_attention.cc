// SPDX-License-Identifier: Apache-2.0
#include "models/sequence/device_dilated_attention.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/bfloat16.h"
#include "comm/device/device_tensor.h"
#include "comm/device/tensor_operations.h"
#include "comm/float16.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

std::uint64_t sum(const std::vector<std::uint64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

}  // namespace

template <class E>
std::uint64_t DeviceSavedDilatedAttention<E>::bytes() const {
  std::uint64_t bytes = queries.bytes() + keys.bytes() + values.bytes() + log_sum_exp.bytes();
  for (const Gathered& of_branch : gathered) bytes += of_branch.keys.bytes() + of_branch.values.bytes();
  return bytes;
}

template <class E>
std::uint64_t DeviceDilatedAttention<E>::bytes() const {
  return sent_.bytes() + received_.bytes() + grad_keys_.bytes() + grad_values_.bytes() + delta_.bytes() +
         absent_.bytes() + output_.bytes() + weighted_grad_.bytes() + log_sum_exp_.bytes();
}

template <class E>
std::vector<std::uint64_t> DeviceDilatedAttention<E>::Travelling::elems(const HeadShape& shape) const {
  std::vector<std::uint64_t> counts = rows_of;
  for (std::uint64_t& count : counts) count *= static_cast<std::uint64_t>(shape.batch * shape.width);
  return counts;
}

template <class E>
DeviceDilatedAttention<E>::DeviceDilatedAttention(comm::Communicator* group, DilatedOptions options, std::int64_t heads,
                                                  comm::Stream& stream)
    : group_(group),
      stream_(stream),
      rank_(group == nullptr ? 0 : group->rank()),
      options_(std::move(options)),
      heads_(heads) {
  validate(options_.branches);
}

template <class E>
auto DeviceDilatedAttention<E>::travelling(const std::vector<std::vector<TokenRun>>& by_rank) -> Travelling {
  Travelling result;
  for (const std::vector<TokenRun>& by_head : by_rank) {
    const std::size_t before = result.rows.size();
    for_travelling_heads(by_head, [&](std::int64_t token, std::int64_t head) { result.rows.push_back({token, head}); });
    result.rows_of.push_back(result.rows.size() - before);
  }
  result.on_device = comm::DeviceBuffer<TokenHead>(result.rows.size(), "tokens that travel");
  comm::copy_to_device(std::as_bytes(std::span(result.rows)),
                       reinterpret_cast<std::byte*>(result.on_device.elems().data()), stream_);
  return result;
}

template <class E>
auto DeviceDilatedAttention<E>::plan(const SequenceParts& parts, std::int64_t width) -> const std::vector<Branch>& {
  if (planned_ && planned_->parts == parts && planned_->width == width) return planned_->branches;
  if (planned_) stream_.synchronize();  // earlier work may use the old plans
  std::vector<Branch> branches;
  for (const DilatedBranch& branch : options_.branches) {
    const DilatedPlan of_branch = dilated_plan(branch, parts, rank_, options_.first_head, heads_, Causality::kCausal);
    branches.push_back({DeviceAttentionPattern(of_branch.local, heads_, width, stream_),
                        DeviceAttentionPattern(of_branch.gathered, heads_, width, stream_), travelling(of_branch.sent),
                        travelling(of_branch.received), of_branch.gathered_tokens});
  }
  planned_.emplace(Planned{parts, width, std::move(branches)});
  stream_.synchronize();  // the rows are in place
  return planned_->branches;
}

template <class E>
HeadShape DeviceDilatedAttention<E>::local_shape(const DeviceSequencePass& pass, const HeadShape& like) const {
  check_dilated_ranks(pass.parts, group_ == nullptr ? 1 : group_->world_size());
  return {like.batch, pass.parts.length_of(rank_), heads_, like.width};
}

template <class E>
HeadShape DeviceDilatedAttention<E>::gathered_shape(const Branch& branch, const HeadShape& local) {
  return {local.batch, branch.gathered_tokens, local.heads, local.width};
}

template <class E>
DeviceAttentionInputs<E> DeviceDilatedAttention<E>::local_inputs(const DeviceSequencePass& pass, const Saved& saved,
                                                                 const HeadShape& local) {
  return {sequence_first(saved.queries.elems(), local),
          sequence_first(saved.keys.elems(), local),
          sequence_first(saved.values.elems(), local),
          {Causality::kCausal, pass.parts.length(), pass.documents},
          {},
          pass.dropout};
}

template <class E>
DeviceAttentionInputs<E> DeviceDilatedAttention<E>::gathered_inputs(const DeviceSequencePass& pass, const Saved& saved,
                                                                    const HeadShape& local, const Gathered& gathered,
                                                                    const HeadShape& shape) {
  DeviceAttentionInputs<E> inputs = local_inputs(pass, saved, local);
  inputs.keys = sequence_first(gathered.keys.elems(), shape);
  inputs.values = sequence_first(gathered.values.elems(), shape);
  if (gathered.absent.empty()) return inputs;
  const comm::DeviceSpan<std::uint8_t> flags = room(absent_, gathered.absent.size());
  comm::copy_to_device(std::span<const std::uint8_t>(gathered.absent), flags, stream_);
  inputs.absent = flags;
  return inputs;
}

template <class E>
void DeviceDilatedAttention<E>::gather(const Branch& branch, const DeviceHeadView<const E>& from,
                                       const DeviceHeadView<E>& to, Absences* absent, LostElements* stopped,
                                       const comm::Message& about) {
  if (group_ == nullptr) return;
  const std::vector<std::uint64_t> send = branch.sent.elems(from.shape);
  const std::vector<std::uint64_t> receive = branch.received.elems(from.shape);
  const comm::DeviceSpan<E> sent = room(sent_, sum(send));
  const comm::DeviceSpan<E> received = room(received_, sum(receive));
  pack_rows(from, branch.sent.on_device.elems(), sent, stream_);
  std::vector<sim::ElementRange> lost;
  comm::Message message = about;
  if (absent != nullptr || stopped != nullptr) message.lost = &lost;
  group_->all_to_all(comm::device_tensor(sent, stream_), send, comm::device_tensor(received, stream_), receive,
                     message);
  unpack_rows<E>(received, branch.received.on_device.elems(), to, stream_);
  if (stopped != nullptr) *stopped = std::move(lost);
  if (absent == nullptr) return;
  const auto batch = static_cast<std::size_t>(to.shape.batch);
  Absences as_received(branch.received.rows.size() * batch);
  mark_absent(lost, to.shape.width, as_received);
  for (std::size_t i = 0; i < as_received.size(); ++i) {
    const TokenHead& row = branch.received.rows[i / batch];
    const auto token = static_cast<std::size_t>(row.token) * batch + i % batch;
    if (as_received[i] != 0)
      (*absent)[token * static_cast<std::size_t>(to.shape.heads) + static_cast<std::size_t>(row.head)] = 1;
  }
}

template <class E>
void DeviceDilatedAttention<E>::scatter(const Branch& branch, const DeviceHeadView<const E>& from,
                                        const DeviceHeadView<E>& to, const LostElements& stopped,
                                        const comm::Message& about) {
  if (group_ == nullptr) return;
  const std::vector<std::uint64_t> send = branch.received.elems(from.shape);
  const std::vector<std::uint64_t> receive = branch.sent.elems(from.shape);
  const comm::DeviceSpan<E> sent = room(sent_, sum(send));
  const comm::DeviceSpan<E> received = room(received_, sum(receive));
  pack_rows(from, branch.received.on_device.elems(), sent, stream_);
  comm::zero_ranges_on_device(comm::device_tensor(sent, stream_), stopped);
  group_->all_to_all(comm::device_tensor(sent, stream_), send, comm::device_tensor(received, stream_), receive, about);
  // A token may have gone to several ranks, so that each of them is a sum of its own.
  std::size_t row = 0;
  std::size_t elem = 0;
  for (std::size_t rank = 0; rank < receive.size(); ++rank) {
    const std::uint64_t rows = branch.sent.rows_of[rank];
    add_rows<E>(received.subspan(elem, receive[rank]), branch.sent.on_device.elems().subspan(row, rows), to, stream_);
    row += rows;
    elem += receive[rank];
  }
}

template <class E>
void DeviceDilatedAttention<E>::attend_branch(const Branch& branch, const DeviceSequencePass& pass, const Saved& saved,
                                              const HeadShape& local, const Gathered& gathered,
                                              const DeviceHeadView<E>& output, comm::DeviceSpan<float> log_sum_exp) {
  attend(local_inputs(pass, saved, local), branch.local, output, log_sum_exp, stream_);
  if (branch.gathered_tokens == 0) return;
  attend(gathered_inputs(pass, saved, local, gathered, gathered_shape(branch, local)), branch.gathered, output,
         log_sum_exp, stream_);
}

template <class E>
void DeviceDilatedAttention<E>::forward(const DeviceSequencePass& pass, const DeviceHeadView<const E>& queries,
                                        const DeviceHeadView<const E>& keys, const DeviceHeadView<const E>& values,
                                        const DeviceHeadView<E>& output, Saved& saved) {
  const HeadShape local = local_shape(pass, queries.shape);
  check_shape("queries", queries.shape, local, TokenLayout::kBatchFirst);
  check_shape("keys", keys.shape, local, TokenLayout::kBatchFirst);
  check_shape("values", values.shape, local, TokenLayout::kBatchFirst);
  check_shape("output", output.shape, local, TokenLayout::kBatchFirst);
  copy_heads<E>(queries, sequence_first(room(saved.queries, local.elems()), local), stream_);
  copy_heads<E>(keys, sequence_first(room(saved.keys, local.elems()), local), stream_);
  copy_heads<E>(values, sequence_first(room(saved.values, local.elems()), local), stream_);
  const comm::DeviceSpan<float> log_sum_exp =
      room(saved.log_sum_exp, static_cast<std::uint64_t>(local.batch * local.heads * local.tokens));
  begin_attention(output, log_sum_exp, stream_);
  saved.gathered.resize(options_.branches.size());
  const bool leaves_out = group_ != nullptr && group_->leaves_lost_out(sim::TrafficClass::kSequenceForward);
  const bool stops =
      !leaves_out && group_ != nullptr && group_->stops_lost_gradients(sim::TrafficClass::kSequenceForward);
  const std::vector<Branch>& branches = plan(pass.parts, local.width);
  for (std::size_t i = 0; i < branches.size(); ++i) {
    const HeadShape shape = gathered_shape(branches[i], local);
    Gathered& gathered = saved.gathered[i];
    gathered.absent.assign(leaves_out ? static_cast<std::size_t>(shape.tokens * shape.batch * shape.heads) : 0, 0);
    Absences* const absent = leaves_out ? &gathered.absent : nullptr;
    gathered.lost_keys.clear();
    gathered.lost_values.clear();
    const std::string of_keys = dilated_message(i, "keys");
    const std::string of_values = dilated_message(i, "values");
    gather(branches[i], keys, sequence_first(room(gathered.keys, shape.elems()), shape), absent,
           stops ? &gathered.lost_keys : nullptr, {sim::TrafficClass::kSequenceForward, of_keys, pass.layer});
    gather(branches[i], values, sequence_first(room(gathered.values, shape.elems()), shape), absent,
           stops ? &gathered.lost_values : nullptr, {sim::TrafficClass::kSequenceForward, of_values, pass.layer});
    attend_branch(branches[i], pass, saved, local, gathered, output, log_sum_exp);
  }
}

template <class E>
void DeviceDilatedAttention<E>::backward(const DeviceSequencePass& pass, const DeviceHeadView<const E>& output,
                                         const DeviceHeadView<const E>& grad_output, const Saved& saved,
                                         const DeviceAttentionGradients<E>& gradients) {
  const HeadShape local = local_shape(pass, grad_output.shape);
  check_shape("output", output.shape, local, TokenLayout::kBatchFirst);
  check_shape("grad_output", grad_output.shape, local, TokenLayout::kBatchFirst);
  check_shape("gradient of queries", gradients.queries.shape, local, TokenLayout::kBatchFirst);
  check_shape("gradient of keys", gradients.keys.shape, local, TokenLayout::kBatchFirst);
  check_shape("gradient of values", gradients.values.shape, local, TokenLayout::kBatchFirst);
  const auto statistics = static_cast<std::uint64_t>(local.batch * local.heads * local.tokens);
  const comm::DeviceSpan<float> delta = room(delta_, statistics);
  const comm::DeviceSpan<const float> of_all = saved.log_sum_exp.elems().first(statistics);
  const std::vector<Branch>& branches = plan(pass.parts, local.width);
  for (std::size_t i = 0; i < branches.size(); ++i) {
    const HeadShape shape = gathered_shape(branches[i], local);
    const Gathered& gathered = saved.gathered[i];
    DeviceAttentionResults<E> results{output, of_all, grad_output};
    if (options_.gradient == BranchGradient::kStopped) {
      const DeviceHeadView<E> of_branch = sequence_first(room(output_, local.elems()), local);
      const comm::DeviceSpan<float> log_sum_exp = room(log_sum_exp_, statistics);
      const DeviceHeadView<E> weighted = sequence_first(room(weighted_grad_, local.elems()), local);
      begin_attention(of_branch, log_sum_exp, stream_);
      attend_branch(branches[i], pass, saved, local, gathered, of_branch, log_sum_exp);
      weigh_branch<E>(grad_output, log_sum_exp, of_all, weighted, stream_);
      results = {of_branch, log_sum_exp, weighted};
    }
    attend_backward(local_inputs(pass, saved, local), branches[i].local, results, gradients, delta, stream_);
    const comm::DeviceSpan<E> grad_keys = room(grad_keys_, shape.elems());
    const comm::DeviceSpan<E> grad_values = room(grad_values_, shape.elems());
    const DeviceHeadView<E> keys = sequence_first(grad_keys, shape);
    const DeviceHeadView<E> values = sequence_first(grad_values, shape);
    if (branches[i].gathered_tokens > 0) {
      comm::zero_on_device(grad_keys, stream_);
      comm::zero_on_device(grad_values, stream_);
      attend_backward(gathered_inputs(pass, saved, local, gathered, shape), branches[i].gathered, results,
                      {gradients.queries, keys, values}, delta, stream_);
    }
    const std::string of_keys = dilated_message(i, "keys.grad");
    const std::string of_values = dilated_message(i, "values.grad");
    scatter(branches[i], keys, gradients.keys, gathered.lost_keys,
            {sim::TrafficClass::kSequenceBackward, of_keys, pass.layer});
    scatter(branches[i], values, gradients.values, gathered.lost_values,
            {sim::TrafficClass::kSequenceBackward, of_values, pass.layer});
  }
}

template struct DeviceSavedDilatedAttention<float>;
template struct DeviceSavedDilatedAttention<comm::Bf16>;
template struct DeviceSavedDilatedAttention<comm::Fp16>;
template class DeviceDilatedAttention<float>;
template class DeviceDilatedAttention<comm::Bf16>;
template class DeviceDilatedAttention<comm::Fp16>;

}  // namespace droptest::models
