// SPDX-License-Identifier: Apache-2.0
#include "comm/local/local_communicator.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "comm/device/tensor_operations.h"
#include "comm/rank_order_reduction.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {
namespace {

std::uint64_t sum_before(std::span<const std::uint64_t> counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::uint64_t{0});
}

std::uint64_t sum_of(std::span<const std::uint64_t> counts) {
  return sum_before(counts, static_cast<int>(counts.size()));
}

// Elements of part `rank` when `count_elems` are cut as even_counts() cuts them.
sim::ElementRange even_part(std::uint64_t count_elems, int rank, int world_size) {
  const auto r = static_cast<std::uint64_t>(rank);
  const auto parts = static_cast<std::uint64_t>(world_size);
  const std::uint64_t longer_parts = count_elems % parts;
  const std::uint64_t begin = r * (count_elems / parts) + std::min(r, longer_parts);
  return {begin, begin + count_elems / parts + (r < longer_parts ? 1 : 0)};
}

// A function as a share; the function lives on the stack of the rank that waits for it.
template <class Run>
class Share final : public LocalShare {
 public:
  explicit Share(const Run& run) : run_(run) {}
  void run() override { run_(); }

 private:
  const Run& run_;
};

// Of the host, or where there is a stream of its device.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes, Stream* stream) {
  if (stream != nullptr) return copy_on_device(from, to, bytes, *stream);
  if (bytes != 0 && to != from) std::memcpy(to, from, bytes);
}

// `like` tells the type and the memory.
void reduce_where_they_are(ReduceOp op, ConstTensor like, std::span<const std::byte* const> inputs,
                           std::span<std::byte* const> outputs, std::uint64_t count_elems) {
  if (like.stream != nullptr) return reduce_on_device(op, like.type, inputs, outputs, count_elems, *like.stream);
  reduce_in_rank_order(op, like.type, inputs, outputs, count_elems);
}

// The order of a collective's work on a device, where every rank has a share: a share waits in its rank's stream until
// the streams of the others have come to the collective; and what the ranks put on their streams afterwards waits for
// the shares of all. The host waits for neither. Does nothing for tensors in host memory.
class DeviceOrder {
 public:
  DeviceOrder(LocalGroup& group, int rank, Stream* stream) : group_(group), rank_(rank), stream_(stream) {
    if (stream_ != nullptr) group_.device_points(rank_).arrived.record(*stream_);
  }

  // Throws: ConfigError unless the tensors of all ranks are in one kind of memory.
  void begin_share() const {
    for (int r = 0; r < group_.size(); ++r) {
      if ((group_.call_of(r).input.stream != nullptr) == (stream_ != nullptr)) continue;
      const int on_host = stream_ == nullptr ? rank_ : r;
      throw ConfigError(describe(group_.call_of(r).call) + ": rank " + std::to_string(group_.world_rank(on_host)) +
                        " gives host memory, rank " + std::to_string(group_.world_rank(on_host == r ? rank_ : r)) +
                        " device memory; want one of them on all ranks");
    }
    for_others([this](LocalGroup::DevicePoints& points) { stream_->wait(points.arrived); });
  }
  void end_share() const {
    if (stream_ != nullptr) group_.device_points(rank_).done.record(*stream_);
  }
  void finish() const {
    for_others([this](LocalGroup::DevicePoints& points) { stream_->wait(points.done); });
  }

 private:
  template <class Visit>
  void for_others(const Visit& visit) const {
    for (int r = 0; stream_ != nullptr && r < group_.size(); ++r) {
      if (r != rank_) visit(group_.device_points(r));
    }
  }

  LocalGroup& group_;
  int rank_;
  Stream* stream_;
};

}  // namespace

LocalCommunicator::LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank)
    : group_(std::move(group)),
      rank_(rank),
      inputs_(static_cast<std::size_t>(group_->size())),
      outputs_(static_cast<std::size_t>(group_->size())),
      reductions_(static_cast<std::size_t>(group_->size())) {}

template <class Run>
void LocalCommunicator::meet(const LocalCall& call, const Run& run) {
  const DeviceOrder order(*group_, rank_, call.input.stream);
  const auto ordered = [&] {
    order.begin_share();
    run();
    order.end_share();
  };
  Share share(ordered);
  group_->meet(rank_, call, &share);
  order.finish();
}

void LocalCommunicator::show_inputs(std::uint64_t begin_elems) {
  for (int r = 0; r < world_size(); ++r) {
    const ConstTensor shown = group_->call_of(r).input;
    inputs_[static_cast<std::size_t>(r)] = shown.bytes.data() + begin_elems * element_bytes(shown.type);
  }
}

void LocalCommunicator::show_outputs(std::uint64_t begin_elems) {
  for (int r = 0; r < world_size(); ++r) {
    const Tensor shown = group_->call_of(r).output;
    outputs_[static_cast<std::size_t>(r)] = shown.bytes.data() + begin_elems * element_bytes(shown.type);
  }
}

void LocalCommunicator::show_reductions() {
  for (int r = 0; r < world_size(); ++r) reductions_[static_cast<std::size_t>(r)] = group_->call_of(r).reduction;
}

// Rank r's share is part r, written to everyone: no other share touches part r, so that in-place calls are safe.
// `reduce` gets the number of elements, and finds them in inputs_ and outputs_.
template <class Reduce>
void LocalCommunicator::reduce_parts(Operation operation, ReduceOp op, ConstTensor input, Tensor output,
                                     const Message& message, const PartReduction* reduction, const Reduce& reduce) {
  Call call(operation, input.type, input.count_elems(), message, *step_);
  call.reduce_op = op;
  const ArgumentCheck check(*this, call);
  check.shape(input, call.count_elems, "input");
  check.shape(output, call.count_elems, "output");
  check.same_or_apart(input, output);
  const auto run = [&] {
    const sim::ElementRange part = even_part(call.count_elems, rank_, world_size());
    show_inputs(part.begin);
    show_outputs(part.begin);
    show_reductions();
    reduce(part.size());
  };
  meet({.call = call, .input = input, .output = output, .reduction = reduction}, run);
}

template <class Reduce>
void LocalCommunicator::reduce_and_scatter(Operation operation, ReduceOp op, ConstTensor input, Tensor output,
                                           std::span<const std::uint64_t> counts, const Message& message,
                                           const PartReduction* reduction, const Reduce& reduce) {
  Call call(operation, input.type, input.count_elems(), message, *step_);
  call.reduce_op = op;
  call.counts_digest = digest_of_counts(counts);
  const ArgumentCheck check(*this, call);
  check.counts(counts);
  check.shape(input, sum_of(counts), "input");
  check.shape(output, counts[static_cast<std::size_t>(rank_)], "output");
  check.own_part_or_apart(output, input, sum_before(counts, rank_));
  const auto run = [&] {
    show_inputs(sum_before(counts, rank_));
    show_reductions();
    reduce(output.count_elems());
  };
  meet({.call = call, .input = input, .output = output, .reduction = reduction}, run);
}

void LocalCommunicator::all_reduce(ConstTensor input, Tensor output, ReduceOp op, const Message& message) {
  reduce_parts(Operation::kAllReduce, op, input, output, message, nullptr,
               [&](std::uint64_t count_elems) { reduce_where_they_are(op, input, inputs_, outputs_, count_elems); });
}

void LocalCommunicator::all_reduce_with(ConstTensor input, Tensor output, PartReduction& reduction,
                                        const Message& message) {
  reduce_parts(Operation::kAllReduceWith, ReduceOp::kSum, input, output, message, &reduction,
               [&](std::uint64_t /*count_elems*/) { reduction.reduce(inputs_, outputs_, reductions_); });
}

void LocalCommunicator::reduce_scatter(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                                       ReduceOp op, const Message& message) {
  reduce_and_scatter(Operation::kReduceScatter, op, input, output, counts, message, nullptr,
                     [&](std::uint64_t count_elems) {
                       std::byte* const outputs[] = {output.bytes.data()};
                       reduce_where_they_are(op, input, inputs_, outputs, count_elems);
                     });
}

void LocalCommunicator::reduce_scatter_with(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                                            PartReduction& reduction, const Message& message) {
  reduce_and_scatter(Operation::kReduceScatterWith, ReduceOp::kSum, input, output, counts, message, &reduction,
                     [&](std::uint64_t /*count_elems*/) {
                       std::byte* const outputs[] = {output.bytes.data()};
                       reduction.reduce(inputs_, outputs, reductions_);
                     });
}

void LocalCommunicator::all_gather(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                                   const Message& message) {
  Call call(Operation::kAllGather, input.type, output.count_elems(), message, *step_);
  call.counts_digest = digest_of_counts(counts);
  const ArgumentCheck check(*this, call);
  check.counts(counts);
  check.shape(input, counts[static_cast<std::size_t>(rank_)], "input");
  check.shape(output, sum_of(counts), "output");
  check.own_part_or_apart(input, output, sum_before(counts, rank_));
  // Each share writes its rank's output only; a part that another one reads in place is never written.
  const auto run = [&] {
    std::byte* to = output.bytes.data();
    for (int r = 0; r < world_size(); ++r) {
      const std::span<const std::byte> part = group_->call_of(r).input.bytes;
      copy_bytes(to, part.data(), part.size(), output.stream);
      to += part.size();
    }
  };
  meet({.call = call, .input = input, .output = output}, run);
}

void LocalCommunicator::all_to_all(ConstTensor input, std::span<const std::uint64_t> send_counts, Tensor output,
                                   std::span<const std::uint64_t> receive_counts, const Message& message) {
  const Call call(Operation::kAllToAll, input.type, input.count_elems(), message, *step_);
  const ArgumentCheck check(*this, call);
  check.counts(send_counts);
  check.counts(receive_counts);
  check.shape(input, sum_of(send_counts), "input");
  check.shape(output, sum_of(receive_counts), "output");
  check.same_or_apart(input, output);
  const StreamTurns::Turn turn(in_place_copy_turns_, input.stream);
  std::vector<std::byte> input_copy;  // in place, the output would overwrite what others have yet to read
  if (input.bytes.data() == output.bytes.data()) {
    if (Stream* stream = input.stream; stream != nullptr) {
      std::byte* copied = in_place_copy_.at_least(input.bytes.size(), *stream);
      copy_on_device(input.bytes.data(), copied, input.bytes.size(), *stream);
      input.bytes = {copied, input.bytes.size()};
    } else {
      input_copy.assign(input.bytes.begin(), input.bytes.end());
      input.bytes = input_copy;
    }
  }
  const auto run = [&] {
    std::byte* to = output.bytes.data();
    for (int s = 0; s < world_size(); ++s) {
      const LocalCall& source = group_->call_of(s);
      const std::size_t begin_bytes = sum_before(source.send_counts, rank_) * element_bytes(call.type);
      const std::size_t bytes = receive_counts[static_cast<std::size_t>(s)] * element_bytes(call.type);
      copy_bytes(to, source.input.bytes.data() + begin_bytes, bytes, output.stream);
      to += bytes;
    }
  };
  meet({.call = call, .input = input, .output = output, .send_counts = send_counts, .receive_counts = receive_counts},
       run);
}

void LocalCommunicator::broadcast(Tensor data, int root, const Message& message) {
  Call call(Operation::kBroadcast, data.type, data.count_elems(), message, *step_);
  call.root = root;
  const ArgumentCheck check(*this, call);
  check.peer(root, "root");
  check.shape(data, call.count_elems, "data");
  const auto run = [&] {
    copy_bytes(data.bytes.data(), group_->call_of(root).input.bytes.data(), data.bytes.size(), data.stream);
  };
  meet({.call = call, .input = data, .output = data}, run);
}

void LocalCommunicator::send(ConstTensor data, int destination, const Message& message) {
  const Call call(Operation::kSend, data.type, data.count_elems(), message, *step_);
  const ArgumentCheck check(*this, call);
  check.peer(destination, "destination");
  check.shape(data, call.count_elems, "data");
  group_->post(rank_, destination, {.call = call, .input = data});
}

void LocalCommunicator::recv(Tensor data, int source, const Message& message) {
  const Call call(Operation::kRecv, data.type, data.count_elems(), message, *step_);
  const ArgumentCheck check(*this, call);
  check.peer(source, "source");
  check.shape(data, call.count_elems, "data");
  group_->take(source, rank_, {.call = call, .output = data});
}

void LocalCommunicator::exchange(std::span<const Send> sends, std::span<const Receive> receives) {
  const ExchangeCalls calls = checked_exchange(*this, sends, receives, *step_);
  for (std::size_t i = 0; i < sends.size(); ++i) {
    group_->post(rank_, sends[i].destination, {.call = calls.sends[i], .input = sends[i].data});
  }
  for (std::size_t i = 0; i < receives.size(); ++i) {
    group_->take(receives[i].source, rank_, {.call = calls.receives[i], .output = receives[i].data});
  }
}

void LocalCommunicator::barrier(const Message& message) {
  group_->meet(rank_, {.call = Call(Operation::kBarrier, ElementType::kFloat32, 0, message, *step_)}, nullptr);
}

std::unique_ptr<Communicator> LocalCommunicator::split(int color, int key) {
  const Call call(Operation::kSplit, ElementType::kFloat32, 0, {.name = "split"}, *step_);
  std::shared_ptr<LocalGroup> part;
  const auto run = [&] { part = group_->part_of(color); };
  Share share(run);
  group_->meet(rank_, {.call = call, .color = color, .key = key}, color < 0 ? nullptr : &share);
  if (part == nullptr) return nullptr;
  int part_rank = 0;
  while (part->world_rank(part_rank) != world_rank(rank_)) ++part_rank;
  auto communicator = std::make_unique<LocalCommunicator>(std::move(part), part_rank);
  communicator->step_ = step_;
  return communicator;
}

void LocalCommunicator::abort(std::string_view reason) noexcept {
  try {
    group_->world().abort(world_rank(rank_), reason);
  } catch (...) {
    // Out of memory for the text: the peers run into their timeout, which names this rank too.
  }
}

}  // namespace droptest::comm
