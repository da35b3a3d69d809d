// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "comm/call.h"
#include "comm/device/device_buffer.h"
#include "sim/error.h"

namespace droptest::comm {

int lowest_world_rank(const Communicator& group) {
  int lowest = group.world_rank(0);
  for (int rank = 1; rank < group.world_size(); ++rank) lowest = std::min(lowest, group.world_rank(rank));
  return lowest;
}

std::vector<std::uint64_t> even_counts(std::uint64_t count_elems, int world_size) {
  DROPTEST_CHECK(world_size > 0, "world_size " + std::to_string(world_size));
  const auto parts = static_cast<std::uint64_t>(world_size);
  std::vector<std::uint64_t> counts(parts, count_elems / parts);
  for (std::uint64_t r = 0; r < count_elems % parts; ++r) ++counts[r];
  return counts;
}

namespace {

CallArguments all_reduce_call(ConstTensor input, Tensor output, ReduceOp op, const Message& message) {
  return {.operation = Operation::kAllReduce, .input = input, .output = output, .op = op, .message = message};
}

CallArguments reduce_scatter_call(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts, ReduceOp op,
                                  const Message& message) {
  return {.operation = Operation::kReduceScatter,
          .input = input,
          .output = output,
          .op = op,
          .counts = counts,
          .message = message};
}

CallArguments all_gather_call(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                              const Message& message) {
  return {.operation = Operation::kAllGather, .input = input, .output = output, .counts = counts, .message = message};
}

CallArguments all_to_all_call(ConstTensor input, std::span<const std::uint64_t> send_counts, Tensor output,
                              std::span<const std::uint64_t> receive_counts, const Message& message) {
  return {.operation = Operation::kAllToAll,
          .input = input,
          .output = output,
          .counts = send_counts,
          .receive_counts = receive_counts,
          .message = message};
}

CallArguments send_call(ConstTensor data, int destination, const Message& message) {
  return {.operation = Operation::kSend, .input = data, .peer = destination, .message = message};
}

CallArguments recv_call(Tensor data, int source, const Message& message) {
  return {.operation = Operation::kRecv, .output = data, .peer = source, .message = message};
}

}  // namespace

void Communicator::all_reduce(ConstTensor input, Tensor output, ReduceOp op, const Message& message) {
  run(all_reduce_call(input, output, op, message));
}
Work Communicator::start_all_reduce(ConstTensor input, Tensor output, ReduceOp op, const Message& message) {
  return start(all_reduce_call(input, output, op, message));
}

void Communicator::reduce_scatter(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts, ReduceOp op,
                                  const Message& message) {
  run(reduce_scatter_call(input, output, counts, op, message));
}
Work Communicator::start_reduce_scatter(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                                        ReduceOp op, const Message& message) {
  return start(reduce_scatter_call(input, output, counts, op, message));
}

void Communicator::all_reduce_with(ConstTensor input, Tensor output, PartReduction& reduction, const Message& message) {
  run({.operation = Operation::kAllReduceWith,
       .input = input,
       .output = output,
       .message = message,
       .reduction = &reduction});
}

void Communicator::reduce_scatter_with(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                                       PartReduction& reduction, const Message& message) {
  run({.operation = Operation::kReduceScatterWith,
       .input = input,
       .output = output,
       .counts = counts,
       .message = message,
       .reduction = &reduction});
}

void Communicator::all_gather(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                              const Message& message) {
  run(all_gather_call(input, output, counts, message));
}
Work Communicator::start_all_gather(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                                    const Message& message) {
  return start(all_gather_call(input, output, counts, message));
}

void Communicator::all_to_all(ConstTensor input, std::span<const std::uint64_t> send_counts, Tensor output,
                              std::span<const std::uint64_t> receive_counts, const Message& message) {
  run(all_to_all_call(input, send_counts, output, receive_counts, message));
}
Work Communicator::start_all_to_all(ConstTensor input, std::span<const std::uint64_t> send_counts, Tensor output,
                                    std::span<const std::uint64_t> receive_counts, const Message& message) {
  return start(all_to_all_call(input, send_counts, output, receive_counts, message));
}

void Communicator::broadcast(Tensor data, int root, const Message& message) {
  run({.operation = Operation::kBroadcast, .input = data, .output = data, .peer = root, .message = message});
}

void Communicator::send(ConstTensor data, int destination, const Message& message) {
  run(send_call(data, destination, message));
}
Work Communicator::start_send(ConstTensor data, int destination, const Message& message) {
  return start(send_call(data, destination, message));
}

void Communicator::recv(Tensor data, int source, const Message& message) { run(recv_call(data, source, message)); }
Work Communicator::start_recv(Tensor data, int source, const Message& message) {
  return start(recv_call(data, source, message));
}

void Communicator::exchange(std::span<const Send> sends, std::span<const Receive> receives) {
  run({.operation = Operation::kExchange, .sends = sends, .receives = receives});
}

void Communicator::barrier(const Message& message) { run({.operation = Operation::kBarrier, .message = message}); }

Work Communicator::start(const CallArguments& arguments) {
  using Kind = Unfinished::Kind;
  const Message& message = arguments.message;
  Unfinished starting;
  starting.kind = arguments.operation == Operation::kSend   ? Kind::kSent
                  : arguments.operation == Operation::kRecv ? Kind::kReceived
                                                            : Kind::kCollective;
  starting.number = works_ + 1;
  starting.traffic_class = message.traffic_class;
  starting.layer = message.layer;
  starting.peer = arguments.peer;
  starting.name = message.name;
  for (const Unfinished& other : unfinished_) {
    if (other.kind != starting.kind || other.traffic_class != starting.traffic_class || other.layer != starting.layer ||
        other.peer != starting.peer || other.name != starting.name) {
      continue;
    }
    throw ConfigError("start of " + std::string(operation_name(arguments.operation)) + ": rank " +
                      std::to_string(world_rank(rank())) + ": got a second \"" + starting.name + "\" of class " +
                      std::string(sim::traffic_class_name(message.traffic_class)) +
                      (message.layer >= 0 ? ", layer " + std::to_string(message.layer) : "") +
                      " before the first one was waited for; want wait(), or another name");
  }
  std::unique_ptr<WorkInFlight> in_flight = begin(arguments);
  unfinished_.push_back(std::move(starting));
  return {*this, ++works_, std::move(in_flight)};
}

void Communicator::forget_unfinished(std::uint64_t number) noexcept {
  std::erase_if(unfinished_, [number](const Unfinished& work) { return work.number == number; });
}

void Communicator::throw_dropped() {
  if (const std::exception_ptr error = std::exchange(dropped_, nullptr)) std::rethrow_exception(error);
}

std::unique_ptr<Communicator> Communicator::subgroup(std::span<const int> ranks) {
  const auto own = std::ranges::find(ranks, rank());
  if (own == ranks.end()) return split(-1, 0);
  return split(ranks.front(), static_cast<int>(own - ranks.begin()));
}

std::unique_ptr<Communicator> Communicator::channel(int /*number*/) { return nullptr; }

std::unique_ptr<WorkInFlight> Communicator::begin(const CallArguments& arguments) {
  run(arguments);
  return nullptr;
}

void Communicator::run_as_other_calls(const CallArguments& arguments) {
  const ConstTensor input = arguments.input;
  if (arguments.operation == Operation::kReduceScatterWith) {
    return reduce_received_parts(input, arguments.output, arguments.counts, arguments);
  }
  DROPTEST_CHECK(arguments.operation == Operation::kAllReduceWith, "no call with a reduction of its own");
  const Tensor output = arguments.output;
  const std::vector<std::uint64_t> counts = even_counts(input.count_elems(), world_size());
  const auto own = counts.begin() + rank();
  const std::size_t size = element_bytes(output.type);
  const std::uint64_t begin = std::accumulate(counts.begin(), own, std::uint64_t{0});
  // This overwrites a part of the input if it is in place; no rank needs that part after its reduction.
  const Tensor part(output.type, output.bytes.subspan(begin * size, *own * size), output.stream);
  reduce_received_parts(input, part, counts, arguments);
  all_gather(part, output, counts, arguments.message);
}

void Communicator::reduce_received_parts(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                                         const CallArguments& arguments) {
  const auto ranks = static_cast<std::size_t>(world_size());
  const std::vector<std::uint64_t> receive_counts(ranks, output.count_elems());
  const std::size_t received_bytes = ranks * output.bytes.size();
  const bool on_device = input.stream != nullptr;
  const auto host = std::make_unique_for_overwrite<std::byte[]>(on_device ? 0 : received_bytes);
  std::optional<DeviceMemory> device;
  if (on_device) device.emplace(received_bytes, "contributions to a reduction");
  std::byte* const buffer = on_device ? device->data() : host.get();
  const Tensor received(input.type, {buffer, received_bytes}, input.stream);
  all_to_all(input, counts, received, receive_counts, arguments.message);
  std::vector<const std::byte*> contributions(ranks);
  for (std::size_t r = 0; r < ranks; ++r) contributions[r] = buffer + r * output.bytes.size();
  std::byte* const results[] = {output.bytes.data()};
  arguments.reduction->reduce(contributions, results, {});
  if (on_device) input.stream->synchronize();  // the memory is freed next
}

}  // namespace droptest::comm
