// SPDX-License-Identifier: Apache-2.0
#include "comm/metered_communicator.h"

#include <chrono>
#include <string>
#include <utility>

namespace droptest::comm {

/// Adds the bytes and, on the rank's own thread, the time until its end.
class MeteredCommunicator::TimedCall {
 public:
  TimedCall(Counters& counters, const MeteredCall& call, std::uint64_t sent_bytes)
      : counters_(counters), is_own_(std::this_thread::get_id() == counters.own_thread && !counters.in_call) {
    counters_.sent_bytes.fetch_add(sent_bytes, std::memory_order_relaxed);
    if (!is_own_) return;
    counters_.in_call = true;
    if (counters_.observer != nullptr) counters_.observer->begins(call);
    start_ = std::chrono::steady_clock::now();
  }
  TimedCall(Counters& counters, const MeteredCall& call) : TimedCall(counters, call, call.bytes) {}
  ~TimedCall() {
    if (!is_own_) return;
    const auto time = std::chrono::steady_clock::now() - start_;
    counters_.waiting_nanoseconds.fetch_add(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count(),
                                            std::memory_order_relaxed);
    counters_.in_call = false;
    if (counters_.observer != nullptr) counters_.observer->ends();
  }
  TimedCall(const TimedCall&) = delete;
  TimedCall& operator=(const TimedCall&) = delete;

 private:
  Counters& counters_;
  const bool is_own_;
  std::chrono::steady_clock::time_point start_;
};

class MeteredCommunicator::TimedWork final : public WorkInFlight {
 public:
  TimedWork(std::unique_ptr<WorkInFlight> inner, std::shared_ptr<Counters> counters, const MeteredCall& started)
      : inner_(std::move(inner)),
        counters_(std::move(counters)),
        call_(started),
        name_(started.name),
        group_(started.group) {
    call_.part = MeteredCall::Part::kWait;
    call_.name = name_;
    call_.group = group_;
  }
  void finish() override {
    const TimedCall timed(*counters_, call_, 0);
    inner_->finish();
  }
  bool finished() override { return inner_->finished(); }

 private:
  std::unique_ptr<WorkInFlight> inner_;
  std::shared_ptr<Counters> counters_;  ///< shared with the communicator
  MeteredCall call_;
  std::string name_;
  std::string group_;
};

MeteredCommunicator::MeteredCommunicator(Communicator& inner, CallObserver* observer)
    : inner_(inner), counters_(std::make_shared<Counters>()) {
  counters_->observer = observer;
  name_group();
}

MeteredCommunicator::MeteredCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<Counters> counters)
    : owned_(std::move(inner)), inner_(*owned_), counters_(std::move(counters)) {}

// Members split their groups in one order, so that equal ranks have equal numbers.
void MeteredCommunicator::name_group() {
  if (counters_->observer == nullptr) return;
  for (int r = 0; r < inner_.world_size(); ++r) {
    group_ += (r == 0 ? "" : " ") + std::to_string(inner_.world_rank(r));
  }
  const int before = counters_->groups[group_]++;
  if (before > 0) group_ += " (" + std::to_string(before + 1) + ")";
}

MeteredCall MeteredCommunicator::collective(Operation operation, const Message& message, std::uint64_t bytes,
                                            Stream* stream) {
  MeteredCall call;
  call.operation = operation;
  call.traffic_class = message.traffic_class;
  call.name = message.name;
  call.layer = message.layer;
  call.bytes = bytes;
  call.group = group_;
  call.number = ++collectives_;
  call.stream = stream;
  return call;
}

MeteredCall MeteredCommunicator::message(Operation operation, int peer, const Message& message, std::uint64_t bytes,
                                         Stream* stream) {
  MeteredCall call = collective(operation, message, bytes, stream);
  --collectives_;
  if (counters_->observer == nullptr) return call;
  const bool sends = operation == Operation::kSend;
  call.source = inner_.world_rank(sends ? inner_.rank() : peer);
  call.destination = inner_.world_rank(sends ? peer : inner_.rank());
  call.number = ++messages_[{call.source, call.destination}];
  return call;
}

CommunicatorUse MeteredCommunicator::use() const {
  return {counters_->sent_bytes.load(), 1e-9 * static_cast<double>(counters_->waiting_nanoseconds.load())};
}

void MeteredCommunicator::all_reduce(ConstTensor input, Tensor output, ReduceOp op, const Message& message) {
  const TimedCall timed(*counters_, collective(Operation::kAllReduce, message, input.bytes.size(), input.stream));
  inner_.all_reduce(input, output, op, message);
}

void MeteredCommunicator::reduce_scatter(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                                         ReduceOp op, const Message& message) {
  const TimedCall timed(*counters_, collective(Operation::kReduceScatter, message, input.bytes.size(), input.stream));
  inner_.reduce_scatter(input, output, counts, op, message);
}

void MeteredCommunicator::all_reduce_with(ConstTensor input, Tensor output, PartReduction& reduction,
                                          const Message& message) {
  const TimedCall timed(*counters_, collective(Operation::kAllReduceWith, message, input.bytes.size(), input.stream));
  inner_.all_reduce_with(input, output, reduction, message);
}

void MeteredCommunicator::reduce_scatter_with(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                                              PartReduction& reduction, const Message& message) {
  const TimedCall timed(*counters_,
                        collective(Operation::kReduceScatterWith, message, input.bytes.size(), input.stream));
  inner_.reduce_scatter_with(input, output, counts, reduction, message);
}

void MeteredCommunicator::all_gather(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                                     const Message& message) {
  const TimedCall timed(*counters_, collective(Operation::kAllGather, message, input.bytes.size(), input.stream));
  inner_.all_gather(input, output, counts, message);
}

void MeteredCommunicator::all_to_all(ConstTensor input, std::span<const std::uint64_t> send_counts, Tensor output,
                                     std::span<const std::uint64_t> receive_counts, const Message& message) {
  const TimedCall timed(*counters_, collective(Operation::kAllToAll, message, input.bytes.size(), input.stream));
  inner_.all_to_all(input, send_counts, output, receive_counts, message);
}

void MeteredCommunicator::broadcast(Tensor data, int root, const Message& message) {
  const std::uint64_t bytes = root == rank() ? data.bytes.size() : 0;
  const TimedCall timed(*counters_, collective(Operation::kBroadcast, message, bytes, data.stream));
  inner_.broadcast(data, root, message);
}

void MeteredCommunicator::send(ConstTensor data, int destination, const Message& message) {
  const TimedCall timed(*counters_,
                        this->message(Operation::kSend, destination, message, data.bytes.size(), data.stream));
  inner_.send(data, destination, message);
}

void MeteredCommunicator::recv(Tensor data, int source, const Message& message) {
  const TimedCall timed(*counters_, this->message(Operation::kRecv, source, message, data.bytes.size(), data.stream),
                        0);
  inner_.recv(data, source, message);
}

void MeteredCommunicator::exchange(std::span<const Send> sends, std::span<const Receive> receives) {
  std::uint64_t bytes = 0;
  for (const Send& one : sends) bytes += one.data.bytes.size();
  Message about;
  about.name = "exchange";
  if (!sends.empty()) {
    about = sends.front().message;
  } else if (!receives.empty()) {
    about = receives.front().message;
  }
  Stream* const stream = !sends.empty()      ? sends.front().data.stream
                         : !receives.empty() ? receives.front().data.stream
                                             : nullptr;
  MeteredCall call = collective(Operation::kExchange, about, bytes, stream);
  call.number = --collectives_;  // of its messages, each has a place of its own
  const TimedCall timed(*counters_, call);
  inner_.exchange(sends, receives);
}

std::unique_ptr<WorkInFlight> MeteredCommunicator::begin(const CallArguments& arguments) {
  const bool receives = arguments.operation == Operation::kRecv;
  const std::uint64_t bytes = receives ? arguments.output.bytes.size() : arguments.input.bytes.size();
  Stream* const stream = receives ? arguments.output.stream : arguments.input.stream;
  MeteredCall call = is_message(arguments.operation)
                         ? message(arguments.operation, arguments.peer, arguments.message, bytes, stream)
                         : collective(arguments.operation, arguments.message, bytes, stream);
  call.part = MeteredCall::Part::kStart;
  std::unique_ptr<WorkInFlight> work;
  {
    const TimedCall timed(*counters_, call, receives ? 0 : bytes);
    work = inner_.begin(arguments);
  }
  if (work == nullptr) return nullptr;  // done already
  return std::unique_ptr<WorkInFlight>(new TimedWork(std::move(work), counters_, call));
}

void MeteredCommunicator::barrier(const Message& message) {
  const TimedCall timed(*counters_, collective(Operation::kBarrier, message, 0, nullptr));
  inner_.barrier(message);
}

std::unique_ptr<Communicator> MeteredCommunicator::split(int color, int key) {
  std::unique_ptr<Communicator> part = inner_.split(color, key);
  if (part == nullptr) return nullptr;
  std::unique_ptr<MeteredCommunicator> metered(new MeteredCommunicator(std::move(part), counters_));
  metered->name_group();
  return metered;
}

std::unique_ptr<Communicator> MeteredCommunicator::twin(int number) {
  std::unique_ptr<Communicator> other = inner_.twin(number);
  if (other == nullptr) return nullptr;
  return std::unique_ptr<Communicator>(new MeteredCommunicator(std::move(other), counters_));
}

}  // namespace droptest::comm
