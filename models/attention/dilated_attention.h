// SPDX-License-Identifier: Apache-2.0
// Dilated attention over the tokens of several ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "models/attention/absence.h"
#include "models/attention/dilated_plan.h"
#include "models/attention/lost_elements.h"
#include "models/attention/sequence_attention.h"

namespace droptest::models {

/// How gradients pass through the weights of the branches. The output of a query is sum_i a_i O_i over the branches i
/// that have the query. O_i is the attention of branch i, lse_i its log-sum-exp, and a_i = exp(lse_i) / sum_j
/// exp(lse_j). This is one softmax over the keys of all branches, in which a key of two branches counts twice.
enum class BranchGradient : std::uint8_t {
  kExact,    ///< the gradient of the softmax
  kStopped,  ///< the a_i count as constants, as in the published code (torchscale)
};

struct DilatedOptions {
  std::vector<DilatedBranch> branches;
  BranchGradient gradient = BranchGradient::kExact;
  std::int64_t first_head = 0;  ///< the number of this rank's first head among the heads of all tensor-parallel ranks
};

/// The saved activations of a forward pass, except the output, which the caller saves. Queries, keys and values are
/// those of this rank's tokens, [tokens, batch, heads, width].
template <class Memory>
struct SavedDilatedAttentionOf {
  template <class U>
  using Buffer = typename Memory::template Buffer<U>;
  /// Keys and values that this rank received for one branch: [gathered tokens, batch, heads, width].
  struct Gathered {
    Buffer<typename Memory::Element> keys;
    Buffer<typename Memory::Element> values;
    std::uint64_t elems = 0;  ///< elements of the keys, and of the values
    Absences absent;
    LostElements lost_keys;  ///< lost elements of the message; empty unless Communicator::stops_lost_gradients()
    LostElements lost_values;
  };
  Buffer<typename Memory::Element> queries;
  Buffer<typename Memory::Element> keys;
  Buffer<typename Memory::Element> values;
  Buffer<typename Memory::Statistic> log_sum_exp;
  std::uint64_t elems = 0;         ///< elements of the queries, of the keys, and of the values
  std::vector<Gathered> gathered;  ///< one entry for each branch

  /// Calls f(buffer, elements) for queries, keys and values, and for the keys and values of each branch.
  template <class F>
  void for_each_tensor(const F& f) {
    for (auto* buffer : {&queries, &keys, &values}) f(*buffer, elems);
    for (Gathered& of_branch : gathered) f(of_branch.keys, of_branch.elems), f(of_branch.values, of_branch.elems);
  }
  void swap_tensors(SavedDilatedAttentionOf& other) {
    std::swap(queries, other.queries);
    std::swap(keys, other.keys);
    std::swap(values, other.values);
    const std::size_t branches = std::max(gathered.size(), other.gathered.size());
    gathered.resize(branches);
    other.gathered.resize(branches);
    for (std::size_t branch = 0; branch < branches; ++branch) {
      std::swap(gathered[branch].keys, other.gathered[branch].keys);
      std::swap(gathered[branch].values, other.gathered[branch].values);
    }
  }

  /// The size of the tensors. Flags and the lists of lost elements are not counted.
  std::uint64_t bytes() const {
    std::uint64_t bytes = Memory::bytes_of(queries, keys, values, log_sum_exp);
    for (const Gathered& of_branch : gathered) bytes += Memory::bytes_of(of_branch.keys, of_branch.values);
    return bytes;
  }
};

/// Dilated attention of a sequence group. A segment within one rank's tokens needs no message. If several ranks share a
/// segment, each receives from the others only the keys and values that its heads attend to. Messages:
/// attention.branch0.keys and .values in class sequence_forward, and the gradients with .grad in class
/// sequence_backward. Losses act as in SequenceAttentionOf. Memory: HostHeads, DeviceHeads or PlannedHeads. Owner: one
/// rank. Ranks: all make the same calls. Parts: consecutive, in the order of the ranks, of any length.
template <class Memory>
class DilatedAttentionOf {
  using E = typename Memory::Element;
  using Statistic = typename Memory::Statistic;
  using Processor = typename Memory::Processor;
  template <class U>
  using Span = typename Memory::template Span<U>;
  template <class U>
  using View = typename Memory::template View<U>;
  template <class U>
  using Buffer = typename Memory::template Buffer<U>;

 public:
  using Saved = SavedDilatedAttentionOf<Memory>;
  using Pass = SequencePassOf<typename Memory::Mask>;

  /// `group` is borrowed; null: one rank. Throws: as validate().
  DilatedAttentionOf(comm::Communicator* group, DilatedOptions options, std::int64_t heads)
      : group_(group), rank_(group == nullptr ? 0 : group->rank()), options_(std::move(options)), heads_(heads) {
    validate(options_.branches);
  }

  /// The views have this rank's tokens and all heads. A query that no branch has gets the output 0. Throws: ConfigError
  /// that names the tensor and the axis for a wrong shape.
  void forward(const Pass& pass, const View<const E>& queries, const View<const E>& keys, const View<const E>& values,
               const View<E>& output, Saved& saved, Processor& processor);
  /// Adds to the gradients of this rank's tokens. `output` is the result of forward().
  void backward(const Pass& pass, const View<const E>& output, const View<const E>& grad_output, const Saved& saved,
                const typename Memory::Gradients& gradients, Processor& processor);

  /// The present size of the working memory.
  std::uint64_t bytes() const {
    return Memory::bytes_of(sent_, received_, grad_keys_, grad_values_, output_, weighted_grad_, log_sum_exp_) +
           scratch_.bytes();
  }

 private:
  using Gathered = typename Saved::Gathered;
  /// The heads of tokens that this rank sends to each rank, or receives from it, in the order of the messages.
  struct Travelling {
    Travelling() = default;
    Travelling(Travelling&&) noexcept = default;  // moves only: `in_memory` may borrow `rows`
    Travelling& operator=(Travelling&&) noexcept = default;

    std::vector<TokenHead> rows;
    std::vector<std::uint64_t> rows_of;  ///< the number of rows for each rank
    typename Memory::Rows in_memory;

    /// The number of elements for each rank.
    std::vector<std::uint64_t> elems(const HeadShape& shape) const {
      std::vector<std::uint64_t> counts = rows_of;
      for (std::uint64_t& count : counts) count *= static_cast<std::uint64_t>(shape.batch * shape.width);
      return counts;
    }
  };
  struct Branch {
    typename Memory::Pattern local;
    typename Memory::Pattern gathered;
    Travelling sent;
    Travelling received;
    std::int64_t gathered_tokens = 0;
  };
  struct Planned {
    SequenceParts parts;
    Causality causality;
    std::int64_t width;
    std::vector<Branch> branches;
  };

  const std::vector<Branch>& plan(const Pass& pass, std::int64_t width, Processor& processor);
  static Travelling travelling(const std::vector<std::vector<TokenRun>>& by_rank, Processor& processor);
  HeadShape local_shape(const Pass& pass, const HeadShape& like) const {
    check_dilated_ranks(pass.parts, group_ == nullptr ? 1 : group_->world_size());
    return {like.batch, pass.parts.length_of(rank_), heads_, like.width};
  }
  static HeadShape gathered_shape(const Branch& branch, const HeadShape& local) {
    return {local.batch, branch.gathered_tokens, local.heads, local.width};
  }
  static typename Memory::Inputs inputs_of(const Pass& pass, const Saved& saved, const HeadShape& local,
                                           const Buffer<E>& keys, const Buffer<E>& values, const HeadShape& shape) {
    return {Memory::sequence_first(Memory::elems(saved.queries), local),
            Memory::sequence_first(Memory::elems(keys), shape),
            Memory::sequence_first(Memory::elems(values), shape),
            pass.mask,
            {},
            pass.dropout};
  }
  void gather(const Branch& branch, const View<const E>& from, const View<E>& to, Absences* absent,
              LostElements* stopped, const comm::Message& about, Processor& processor);
  void scatter(const Branch& branch, const View<const E>& from, const View<E>& to, const LostElements& stopped,
               const comm::Message& about, Processor& processor);
  void attend_branch(const Branch& branch, const Pass& pass, const Saved& saved, const HeadShape& local,
                     const Gathered& gathered, const View<E>& output, Span<Statistic> log_sum_exp,
                     Processor& processor);

  comm::Communicator* group_;
  int rank_;
  DilatedOptions options_;
  std::int64_t heads_;
  std::optional<Planned> planned_;  ///< the plan for the last parts
  Buffer<E> sent_, received_;
  Buffer<E> grad_keys_, grad_values_;  ///< the gradients of gathered tokens
  // The attention of one branch and its weighted gradient, for BranchGradient::kStopped.
  Buffer<E> output_, weighted_grad_;
  Buffer<Statistic> log_sum_exp_;
  typename Memory::Scratch scratch_;
  static constexpr const char* kMemoryOf = "dilated attention";  ///< names the memory in the error of a full device
  static constexpr sim::TrafficClass kForward = sim::TrafficClass::kSequenceForward;
  static constexpr sim::TrafficClass kBackward = sim::TrafficClass::kSequenceBackward;
};

/// Dilated attention in host memory, on the threads of a team.
template <class T>
using DilatedAttention = DilatedAttentionOf<HostHeads<T>>;
template <class T>
using SavedDilatedAttention = SavedDilatedAttentionOf<HostHeads<T>>;

template <class Memory>
auto DilatedAttentionOf<Memory>::travelling(const std::vector<std::vector<TokenRun>>& by_rank, Processor& processor)
    -> Travelling {
  Travelling result;
  for (const std::vector<TokenRun>& by_head : by_rank) {
    const std::size_t before = result.rows.size();
    for_travelling_heads(by_head, [&](std::int64_t token, std::int64_t head) { result.rows.push_back({token, head}); });
    result.rows_of.push_back(result.rows.size() - before);
  }
  result.in_memory = Memory::rows(result.rows, processor);
  return result;
}

template <class Memory>
auto DilatedAttentionOf<Memory>::plan(const Pass& pass, std::int64_t width, Processor& processor)
    -> const std::vector<Branch>& {
  const Causality causality = Memory::causality(pass.mask);
  if (planned_ && planned_->parts == pass.parts && planned_->causality == causality && planned_->width == width) {
    return planned_->branches;
  }
  if (planned_) Memory::wait(processor);  // earlier work may use the old plans
  std::vector<Branch> branches;
  for (const DilatedBranch& branch : options_.branches) {
    DilatedPlan of_branch = dilated_plan(branch, pass.parts, rank_, options_.first_head, heads_, causality);
    branches.push_back({Memory::made_ready(std::move(of_branch.local), heads_, width, processor),
                        Memory::made_ready(std::move(of_branch.gathered), heads_, width, processor),
                        travelling(of_branch.sent, processor), travelling(of_branch.received, processor),
                        of_branch.gathered_tokens});
  }
  return planned_.emplace(Planned{pass.parts, causality, width, std::move(branches)}).branches;
}

template <class Memory>
void DilatedAttentionOf<Memory>::gather(const Branch& branch, const View<const E>& from, const View<E>& to,
                                        Absences* absent, LostElements* stopped, const comm::Message& about,
                                        Processor& processor) {
  if (group_ == nullptr) return;
  const std::vector<std::uint64_t> send = branch.sent.elems(from.shape);
  const std::vector<std::uint64_t> receive = branch.received.elems(from.shape);
  const auto sum = [](const std::vector<std::uint64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  };
  const Span<E> sent = Memory::room(sent_, sum(send), kMemoryOf, processor);
  const Span<E> received = Memory::room(received_, sum(receive), kMemoryOf, processor);
  Memory::pack(from, branch.sent.in_memory, sent, processor);
  LostElements lost;
  comm::Message message = about;
  if (absent != nullptr || stopped != nullptr) message.lost = &lost;
  group_->all_to_all(Memory::tensor(Span<const E>(sent), processor), send, Memory::tensor(received, processor), receive,
                     message);
  Memory::unpack(received, branch.received.in_memory, to, processor);
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

template <class Memory>
void DilatedAttentionOf<Memory>::scatter(const Branch& branch, const View<const E>& from, const View<E>& to,
                                         const LostElements& stopped, const comm::Message& about,
                                         Processor& processor) {
  if (group_ == nullptr) return;
  const std::vector<std::uint64_t> send = branch.received.elems(from.shape);
  const std::vector<std::uint64_t> receive = branch.sent.elems(from.shape);
  const auto sum = [](const std::vector<std::uint64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  };
  const Span<E> sent = Memory::room(sent_, sum(send), kMemoryOf, processor);
  const Span<E> received = Memory::room(received_, sum(receive), kMemoryOf, processor);
  Memory::pack(from, branch.received.in_memory, sent, processor);
  Memory::zero_lost(stopped, sent, processor);
  group_->all_to_all(Memory::tensor(Span<const E>(sent), processor), send, Memory::tensor(received, processor), receive,
                     about);
  // A token may have been sent to several ranks, so the gradients of each rank are added separately.
  const auto rows = Span<const TokenHead>(Memory::elems(branch.sent.in_memory));
  std::size_t row = 0;
  std::size_t elem = 0;
  for (std::size_t rank = 0; rank < receive.size(); ++rank) {
    const std::uint64_t count = branch.sent.rows_of[rank];
    Memory::add_rows(received.subspan(elem, receive[rank]), rows.subspan(row, count), to, processor);
    row += count;
    elem += receive[rank];
  }
}

template <class Memory>
void DilatedAttentionOf<Memory>::attend_branch(const Branch& branch, const Pass& pass, const Saved& saved,
                                               const HeadShape& local, const Gathered& gathered, const View<E>& output,
                                               Span<Statistic> log_sum_exp, Processor& processor) {
  Memory::attend(inputs_of(pass, saved, local, saved.keys, saved.values, local), {}, branch.local, output, log_sum_exp,
                 scratch_, processor);
  if (branch.gathered_tokens == 0) return;
  Memory::attend(inputs_of(pass, saved, local, gathered.keys, gathered.values, gathered_shape(branch, local)),
                 gathered.absent, branch.gathered, output, log_sum_exp, scratch_, processor);
}

template <class Memory>
void DilatedAttentionOf<Memory>::forward(const Pass& pass, const View<const E>& queries, const View<const E>& keys,
                                         const View<const E>& values, const View<E>& output, Saved& saved,
                                         Processor& processor) {
  const HeadShape local = local_shape(pass, queries.shape);
  check_shape("queries", queries.shape, local, TokenLayout::kBatchFirst);
  check_shape("keys", keys.shape, local, TokenLayout::kBatchFirst);
  check_shape("values", values.shape, local, TokenLayout::kBatchFirst);
  check_shape("output", output.shape, local, TokenLayout::kBatchFirst);
  Memory::check_mask(pass.mask, local.batch, pass.parts.length());
  const auto save = [&](const View<const E>& from, Buffer<E>& to) {
    Memory::copy(from, Memory::sequence_first(Memory::room(to, local.elems(), kMemoryOf, processor), local), processor);
  };
  saved.elems = local.elems();
  save(queries, saved.queries);
  save(keys, saved.keys);
  save(values, saved.values);
  const Span<Statistic> log_sum_exp = Memory::room(
      saved.log_sum_exp, static_cast<std::uint64_t>(local.batch * local.heads * local.tokens), kMemoryOf, processor);
  Memory::begin(output, log_sum_exp, processor);
  saved.gathered.resize(options_.branches.size());
  const bool leaves_out = group_ != nullptr && group_->leaves_lost_out(kForward);
  const bool stops = !leaves_out && group_ != nullptr && group_->stops_lost_gradients(kForward);
  const std::vector<Branch>& branches = plan(pass, local.width, processor);
  for (std::size_t i = 0; i < branches.size(); ++i) {
    const HeadShape shape = gathered_shape(branches[i], local);
    Gathered& gathered = saved.gathered[i];
    gathered.elems = shape.elems();
    gathered.absent.assign(leaves_out ? static_cast<std::size_t>(shape.tokens * shape.batch * shape.heads) : 0, 0);
    gathered.lost_keys.clear();
    gathered.lost_values.clear();
    const auto take = [&](const char* tensor, const View<const E>& from, Buffer<E>& to, LostElements& lost) {
      const std::string name = dilated_message(i, tensor);
      gather(branches[i], from, Memory::sequence_first(Memory::room(to, shape.elems(), kMemoryOf, processor), shape),
             leaves_out ? &gathered.absent : nullptr, stops ? &lost : nullptr, {kForward, name, pass.layer}, processor);
    };
    take("keys", keys, gathered.keys, gathered.lost_keys);
    take("values", values, gathered.values, gathered.lost_values);
    attend_branch(branches[i], pass, saved, local, gathered, output, log_sum_exp, processor);
  }
}

template <class Memory>
void DilatedAttentionOf<Memory>::backward(const Pass& pass, const View<const E>& output,
                                          const View<const E>& grad_output, const Saved& saved,
                                          const typename Memory::Gradients& gradients, Processor& processor) {
  const HeadShape local = local_shape(pass, grad_output.shape);
  check_shape("output", output.shape, local, TokenLayout::kBatchFirst);
  check_shape("grad_output", grad_output.shape, local, TokenLayout::kBatchFirst);
  check_shape("gradient of queries", gradients.queries.shape, local, TokenLayout::kBatchFirst);
  check_shape("gradient of keys", gradients.keys.shape, local, TokenLayout::kBatchFirst);
  check_shape("gradient of values", gradients.values.shape, local, TokenLayout::kBatchFirst);
  const auto statistics = static_cast<std::size_t>(local.batch * local.heads * local.tokens);
  const Span<const Statistic> of_all = Memory::elems(saved.log_sum_exp).first(statistics);
  const std::vector<Branch>& branches = plan(pass, local.width, processor);
  for (std::size_t i = 0; i < branches.size(); ++i) {
    const Branch& branch = branches[i];
    const HeadShape shape = gathered_shape(branch, local);
    const Gathered& gathered = saved.gathered[i];
    typename Memory::Results results{output, of_all, grad_output};
    if (options_.gradient == BranchGradient::kStopped) {
      const View<E> of_branch =
          Memory::sequence_first(Memory::room(output_, local.elems(), kMemoryOf, processor), local);
      const View<E> weighted =
          Memory::sequence_first(Memory::room(weighted_grad_, local.elems(), kMemoryOf, processor), local);
      const Span<Statistic> log_sum_exp = Memory::room(log_sum_exp_, statistics, kMemoryOf, processor);
      Memory::begin(of_branch, log_sum_exp, processor);
      attend_branch(branch, pass, saved, local, gathered, of_branch, log_sum_exp, processor);
      Memory::weigh_branch(grad_output, log_sum_exp, of_all, weighted, processor);
      results = {of_branch, log_sum_exp, weighted};
    }
    Memory::attend_backward(inputs_of(pass, saved, local, saved.keys, saved.values, local), {}, branch.local, results,
                            gradients, scratch_, processor);
    const Span<E> grad_keys = Memory::room(grad_keys_, shape.elems(), kMemoryOf, processor);
    const Span<E> grad_values = Memory::room(grad_values_, shape.elems(), kMemoryOf, processor);
    const View<E> keys = Memory::sequence_first(grad_keys, shape);
    const View<E> values = Memory::sequence_first(grad_values, shape);
    if (branch.gathered_tokens > 0) {
      Memory::zero(grad_keys, processor);
      Memory::zero(grad_values, processor);
      Memory::attend_backward(inputs_of(pass, saved, local, gathered.keys, gathered.values, shape), gathered.absent,
                              branch.gathered, results, {gradients.queries, keys, values}, scratch_, processor);
    }
    const auto give = [&](const char* tensor, const View<E>& from, const View<E>& to, const LostElements& lost) {
      const std::string name = dilated_message(i, tensor);
      scatter(branch, from, to, lost, {kBackward, name, pass.layer}, processor);
    };
    give("keys.grad", keys, gradients.keys, gathered.lost_keys);
    give("values.grad", values, gradients.values, gathered.lost_values);
  }
}

extern template class DilatedAttentionOf<HostHeads<float>>;
extern template class DilatedAttentionOf<HostHeads<double>>;

}  // namespace droptest::models
