// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_communicator.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <string>
#include <utility>

#include "comm/device/cuda_error.h"
#include "comm/nccl/nccl_calls.h"
#include "comm/nccl/nccl_handles.h"
#include "comm/nccl/nccl_result.h"
#include "comm/tensor_operations.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

constexpr std::size_t kOutboxBytesMost = std::size_t{256} << 20;  ///< one message may be larger

// The calls that ranks compare: the first calls of a run, which show most differences between programs, and some later
// ones.
constexpr std::uint64_t kComparedFirst = 256;
constexpr std::uint64_t kComparedEvery = 64;
bool is_compared(std::uint64_t call) { return call < kComparedFirst || call % kComparedEvery == 0; }

ncclResult_t send_letters(const std::vector<DeviceOutbox::Letter>& letters, ncclComm_t comm) {
  ncclResult_t result = ncclSuccess;
  for (const DeviceOutbox::Letter& letter : letters) {
    result = ncclSend(letter.copy.data(), letter.call.count_elems, data_type(letter.call.type), letter.destination,
                      comm, letter.stream->handle());
    if (is_error(result)) break;
  }
  return result;
}

bool all_equal(std::span<const std::uint64_t> counts) {
  return std::all_of(counts.begin(), counts.end(), [&](std::uint64_t count) { return count == counts[0]; });
}

// The range of each part, one after the other.
template <class Span>
std::vector<Span> parts_of(Span whole, std::span<const std::uint64_t> counts, ElementType type) {
  std::vector<Span> parts;
  for (const std::uint64_t count : counts) {
    const std::size_t bytes = count * element_bytes(type);
    parts.push_back(whole.first(bytes));
    whole = whole.subspan(bytes);
  }
  return parts;
}

}  // namespace

/// The work of one call on a stream, between two events.
class NcclCommunicator::StreamOperation final : public OperationInFlight {
 public:
  explicit StreamOperation(Stream& stream) { begin_.record(stream); }
  void close(Stream& stream) { end_.record(stream); }
  bool started() override { return begin_.reached(); }
  bool finished() override { return end_.reached(); }
  void wait() const { end_.wait_on_host(); }

 private:
  Event begin_;
  Event end_;
};

NcclCommunicator::NcclCommunicator(std::shared_ptr<NcclWorld> world, std::unique_ptr<GlooCommunicator> control,
                                   ncclComm* comm)
    : world_(std::move(world)),
      control_(std::move(control)),
      comm_(comm),
      world_ranks_([this] {
        auto ranks = std::make_shared<std::vector<int>>();
        for (int r = 0; r < control_->world_size(); ++r) ranks->push_back(control_->world_rank(r));
        return ranks;
      }()),
      sent_(world_ranks_->size()),
      received_(world_ranks_->size()) {}

NcclCommunicator::~NcclCommunicator() {
  try {
    hand_over();
  } catch (...) {
    // The group has failed, and its receivers know.
  }
  try {
    if (const auto failure = world_->handles().close(comm_, *world_ranks_)) world_->watchdog().end(*failure);
  } catch (...) {
    // Out of memory for the text of a failure.
  }
}

Stream* NcclCommunicator::stream_of(const Call& call, ConstTensor input, ConstTensor output) const {
  if (input.stream == nullptr && output.stream == nullptr) return nullptr;
  const std::string here =
      std::string(operation_name(call.operation)) + ": rank " + std::to_string(world_rank(rank())) + ": ";
  if (input.stream != output.stream) {
    throw ConfigError(here + "input and output want one memory, and one stream " + call_context(call));
  }
  if (input.stream->device() != world_->device()) {
    throw ConfigError(here + "the tensor is on device " + std::to_string(input.stream->device()) +
                      ", want this rank's device " + std::to_string(world_->device()) + " " + call_context(call));
  }
  return input.stream;
}

Stream* NcclCommunicator::stream_of(const Call& call, const CallArguments& arguments) const {
  switch (arguments.operation) {
    case Operation::kSend:
      return stream_of(call, arguments.input, arguments.input);
    case Operation::kRecv:
      return stream_of(call, arguments.output, arguments.output);
    default:
      return stream_of(call, arguments.input, arguments.output);
  }
}

void NcclCommunicator::agree(const Call& call, std::span<const std::uint64_t> send_counts,
                             std::span<const std::uint64_t> receive_counts) {
  receives_.run_all();
  hand_over();
  if (is_compared(calls_++)) control_->agree_on(call, send_counts, receive_counts);
}

template <class Enqueue>
void NcclCommunicator::put(const Call& call, Stream& stream, const Enqueue& enqueue) {
  const GlooMesh::CallScope scope(world_->mesh(), call);
  check_cuda(cudaSetDevice(world_->device()), "cudaSetDevice");  // the caller may be another thread than last time
  const auto operation = std::make_shared<StreamOperation>(stream);
  if (const auto failure = world_->handles().run(comm_, call, *world_ranks_, enqueue)) world_->fail(*failure, call);
  operation->close(stream);
  world_->watchdog().watch(&stream, call, world_ranks_, operation);
  last_ = operation;
}

void NcclCommunicator::wait_for_last() const {
  if (last_ != nullptr) last_->wait();
}

void NcclCommunicator::run(const CallArguments& arguments) {
  const Operation operation = arguments.operation;
  if (operation == Operation::kExchange) return exchange_now(arguments.sends, arguments.receives);
  const Call call = checked_call(*this, arguments, step());
  Stream* const stream = stream_of(call, arguments);
  if (arguments.reduction != nullptr) return run_as_other_calls(arguments);
  if (operation == Operation::kRecv) receives_.run_all();
  if (stream == nullptr) {
    hand_over();
    return control_->run(arguments);
  }
  switch (operation) {
    case Operation::kAllReduce:
      return all_reduce_on(*stream, call, arguments);
    case Operation::kReduceScatter:
      return reduce_scatter_on(*stream, call, arguments);
    case Operation::kAllGather:
      return all_gather_on(*stream, call, arguments);
    case Operation::kAllToAll:
      return all_to_all_on(*stream, call, arguments);
    case Operation::kSend:
      return send_on(*stream, call, arguments.input, arguments.peer);
    case Operation::kRecv:
      return recv_on(*stream, call, arguments.output, arguments.peer);
    case Operation::kBroadcast:
      return broadcast_on(*stream, call, arguments.output);
    default:
      DROPTEST_CHECK(false, std::string(operation_name(operation)) + " on a stream");
  }
}

void NcclCommunicator::all_reduce_on(Stream& stream, const Call& call, const CallArguments& arguments) {
  agree(call);
  if (call.count_elems == 0) return;
  put(call, stream, [&] {
    return ncclAllReduce(arguments.input.bytes.data(), arguments.output.bytes.data(), call.count_elems,
                         data_type(call.type), reduce_operation(call.reduce_op), comm_, stream.handle());
  });
  if (call.reduce_op == ReduceOp::kMean) divide(arguments.output, world_size());
}

void NcclCommunicator::reduce_scatter_on(Stream& stream, const Call& call, const CallArguments& arguments) {
  agree(call);
  if (call.count_elems == 0) return;
  const std::span<const std::uint64_t> counts = arguments.counts;
  const ncclDataType_t type = data_type(call.type);
  const ncclRedOp_t op = reduce_operation(call.reduce_op);
  std::byte* const output = arguments.output.bytes.data();
  put(call, stream, [&] {
    if (all_equal(counts)) {
      return ncclReduceScatter(arguments.input.bytes.data(), output, counts[0], type, op, comm_, stream.handle());
    }
    return grouped([&] {
      const std::vector<ConstBytes> parts = parts_of(arguments.input.bytes, counts, call.type);
      ncclResult_t result = ncclSuccess;
      for (std::size_t r = 0; r < counts.size() && !is_error(result); ++r) {
        if (counts[r] == 0) continue;
        std::byte* const sum = r == static_cast<std::size_t>(rank()) ? output : nullptr;
        result = ncclReduce(parts[r].data(), sum, counts[r], type, op, static_cast<int>(r), comm_, stream.handle());
      }
      return result;
    });
  });
  if (call.reduce_op == ReduceOp::kMean) divide(arguments.output, world_size());
}

void NcclCommunicator::all_gather_on(Stream& stream, const Call& call, const CallArguments& arguments) {
  agree(call);
  if (call.count_elems == 0) return;
  const std::span<const std::uint64_t> counts = arguments.counts;
  if (!all_equal(counts)) {
    const std::vector<ConstBytes> to(counts.size(), arguments.input.bytes);
    return exchange_parts(call, stream, to, parts_of(arguments.output.bytes, counts, call.type));
  }
  put(call, stream, [&] {
    return ncclAllGather(arguments.input.bytes.data(), arguments.output.bytes.data(), counts[0], data_type(call.type),
                         comm_, stream.handle());
  });
}

void NcclCommunicator::all_to_all_on(Stream& stream, const Call& call, const CallArguments& arguments) {
  agree(call, arguments.counts, arguments.receive_counts);
  const ConstBytes input = arguments.input.bytes;
  const bool in_place = input.data() == arguments.output.bytes.data() && !input.empty();
  const ConstBytes whole = in_place ? copy_of_input(input, stream) : input;
  exchange_parts(call, stream, parts_of(whole, arguments.counts, call.type),
                 parts_of(arguments.output.bytes, arguments.receive_counts, call.type));
}

// Copies an input that is in place: arriving parts would overwrite parts that are still to be sent.
ConstBytes NcclCommunicator::copy_of_input(ConstBytes input, Stream& stream) {
  const bool is_free = input_copy_stream_ == &stream && input_copy_.bytes() >= input.size();
  if (!is_free) wait_for_last();
  if (input_copy_.bytes() < input.size()) input_copy_ = DeviceMemory(input.size(), "copy of an all_to_all's input");
  input_copy_stream_ = &stream;
  copy_on_device(input.data(), input_copy_.data(), input.size(), stream);
  return {input_copy_.data(), input.size()};
}

void NcclCommunicator::exchange_parts(const Call& call, Stream& stream, std::span<const ConstBytes> to,
                                      std::span<const Bytes> from) {
  const auto self = static_cast<std::size_t>(rank());
  copy_on_device(to[self].data(), from[self].data(), from[self].size(), stream);
  const auto travels = [self](auto parts) {
    for (std::size_t r = 0; r < parts.size(); ++r) {
      if (r != self && !parts[r].empty()) return true;
    }
    return false;
  };
  if (!travels(to) && !travels(from)) return;
  const std::size_t size = element_bytes(call.type);
  put(call, stream, [&] {
    return grouped([&] {
      ncclResult_t result = ncclSuccess;
      for (int r = 0; r < world_size(); ++r) {
        const auto i = static_cast<std::size_t>(r);
        if (i == self) continue;
        if (!to[i].empty() && !is_error(result)) {
          result = ncclSend(to[i].data(), to[i].size() / size, data_type(call.type), r, comm_, stream.handle());
        }
        if (!from[i].empty() && !is_error(result)) {
          result = ncclRecv(from[i].data(), from[i].size() / size, data_type(call.type), r, comm_, stream.handle());
        }
      }
      return result;
    });
  });
}

void NcclCommunicator::broadcast_on(Stream& stream, const Call& call, Tensor data) {
  agree(call);
  if (call.count_elems == 0) return;
  put(call, stream, [&] {
    return ncclBroadcast(data.bytes.data(), data.bytes.data(), call.count_elems, data_type(call.type), call.root, comm_,
                         stream.handle());
  });
}

std::unique_ptr<WorkInFlight> NcclCommunicator::begin(const CallArguments& arguments) {
  const Call call = checked_call(*this, arguments, step());
  const bool is_receive = call.operation == Operation::kRecv;
  Stream* const stream = stream_of(call, arguments);
  if (stream != nullptr) return is_receive ? receives_.start(*this, arguments) : Communicator::begin(arguments);
  if (is_receive) receives_.run_all();  // messages of a pair of ranks match in the order of the starts
  hand_over();
  return control_->begin(arguments);
}

void NcclCommunicator::send_on(Stream& stream, const Call& call, ConstTensor data, int destination) {
  if (destination == rank()) return send_to_self(call, data);
  if (is_compared(sent_[static_cast<std::size_t>(destination)]++)) control_->send_call(call, destination);
  if (!outbox_.empty() && outbox_.bytes() + data.bytes.size() > kOutboxBytesMost) hand_over();
  const GlooMesh::CallScope scope(world_->mesh(), call);
  if (call.count_elems > 0) outbox_.put(call, destination, data.bytes.data(), data.bytes.size(), stream);
}

// The messages in the outbox travel in one group with the receive: ranks that send to each other need each other's
// receives before their own sends can end. But the group has only one message to each rank. If two ranks sent each
// other several messages, a group of all of them would wait for receives that follow after the other rank's group.
void NcclCommunicator::recv_on(Stream& stream, const Call& call, Tensor data, int source) {
  if (source == rank()) return receive_from_self(call, data);
  if (call.count_elems > 0) {
    std::vector<DeviceOutbox::Letter> letters = outbox_.take_first_of_each();
    put(call, stream, [&] {
      return grouped([&] {
        const ncclResult_t result = send_letters(letters, comm_);
        if (is_error(result)) return result;
        return ncclRecv(data.bytes.data(), call.count_elems, data_type(call.type), source, comm_, stream.handle());
      });
    });
    outbox_.give_back(std::move(letters));
  }
  // The calls are compared after the group, since the source may wait for the messages that were handed over.
  if (is_compared(received_[static_cast<std::size_t>(source)]++)) control_->receive_call(call, source);
}

void NcclCommunicator::exchange_now(std::span<const Send> sends, std::span<const Receive> receives) {
  receives_.run_all();
  const ExchangeCalls calls = checked_exchange(*this, sends, receives, step());
  Stream* stream = nullptr;
  for (std::size_t i = 0; i < sends.size(); ++i) stream = stream_of(calls.sends[i], sends[i].data, sends[i].data);
  for (std::size_t i = 0; i < receives.size(); ++i) {
    stream = stream_of(calls.receives[i], receives[i].data, receives[i].data);
  }
  hand_over();
  if (stream == nullptr) return control_->exchange(sends, receives);
  const Call* travelling = nullptr;  // one of the calls that NCCL carries, for errors
  for (std::size_t i = 0; i < sends.size(); ++i) {
    const Call& call = calls.sends[i];
    const int destination = sends[i].destination;
    if (destination == rank()) {
      send_to_self(call, sends[i].data);
      continue;
    }
    if (is_compared(sent_[static_cast<std::size_t>(destination)]++)) control_->send_call(call, destination);
    if (call.count_elems > 0) travelling = &call;
  }
  for (std::size_t i = 0; i < receives.size(); ++i) {
    if (receives[i].source == rank()) {
      receive_from_self(calls.receives[i], receives[i].data);
    } else if (calls.receives[i].count_elems > 0) {
      travelling = &calls.receives[i];
    }
  }
  const auto send_and_receive = [&] {
    ncclResult_t result = ncclSuccess;
    for (std::size_t i = 0; i < sends.size() && !is_error(result); ++i) {
      const Call& call = calls.sends[i];
      if (sends[i].destination == rank() || call.count_elems == 0) continue;
      result = ncclSend(sends[i].data.bytes.data(), call.count_elems, data_type(call.type), sends[i].destination, comm_,
                        stream->handle());
    }
    for (std::size_t i = 0; i < receives.size() && !is_error(result); ++i) {
      const Call& call = calls.receives[i];
      if (receives[i].source == rank() || call.count_elems == 0) continue;
      result = ncclRecv(receives[i].data.bytes.data(), call.count_elems, data_type(call.type), receives[i].source,
                        comm_, stream->handle());
    }
    return result;
  };
  if (travelling != nullptr) put(*travelling, *stream, [&] { return grouped(send_and_receive); });
  for (std::size_t i = 0; i < receives.size(); ++i) {
    const int source = receives[i].source;
    if (source == rank() || !is_compared(received_[static_cast<std::size_t>(source)]++)) continue;
    control_->receive_call(calls.receives[i], source);
  }
}

void NcclCommunicator::send_to_self(const Call& call, ConstTensor data) {
  const GlooMesh::CallScope scope(world_->mesh(), call);
  ToSelf& kept = to_self_.emplace_back(ToSelf{call, DeviceMemory(data.bytes.size(), "copy of a message"), Event()});
  copy_on_device(data.bytes.data(), kept.copy.data(), data.bytes.size(), *data.stream);
  kept.copied.record(*data.stream);
}

void NcclCommunicator::receive_from_self(const Call& call, Tensor data) {
  const GlooMesh::CallScope scope(world_->mesh(), call);
  const std::string self = "rank " + std::to_string(world_rank(rank()));
  const std::string where(operation_name(call.operation));
  if (to_self_.empty()) {
    world_->fail({world_rank(rank()), where, self + " waits for a message of its own that it did not send"}, call);
  }
  const ToSelf kept = std::move(to_self_.front());
  to_self_.pop_front();
  if (!calls_agree(other_end_of(call), kept.call)) {
    world_->fail({world_rank(rank()), where, self + " calls " + describe(kept.call) + ", then " + describe(call)},
                 call);
  }
  data.stream->wait(kept.copied);
  copy_on_device(kept.copy.data(), data.bytes.data(), data.bytes.size(), *data.stream);
  data.stream->synchronize();  // the copy is freed next
}

void NcclCommunicator::hand_over() {
  if (outbox_.empty()) return;
  std::vector<DeviceOutbox::Letter> letters = outbox_.take_all();
  put(letters[0].call, *letters[0].stream, [&] { return grouped([&] { return send_letters(letters, comm_); }); });
  outbox_.give_back(std::move(letters));
}

void NcclCommunicator::abort(std::string_view reason) noexcept {
  const int self = world_rank(rank());
  try {
    world_->watchdog().end({self, "", "rank " + std::to_string(self) + " failed: " + std::string(reason)});
  } catch (...) {
    world_->mesh().abort(reason);  // the watchdog sees the failure of the mesh
  }
}

}  // namespace droptest::comm
