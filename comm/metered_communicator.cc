// SPDX-License-Identifier: Apache-2.0
#include "comm/metered_communicator.h"

#include <chrono>
#include <utility>

#include "comm/call.h"

namespace droptest::comm {

/// Adds the bytes and, on the rank's own thread, the time until its end.
class MeteredCommunicator::TimedCall {
 public:
  TimedCall(Counters& counters, std::uint64_t sent_bytes) : counters_(counters) {
    counters_.sent_bytes.fetch_add(sent_bytes, std::memory_order_relaxed);
  }
  ~TimedCall() {
    if (std::this_thread::get_id() != counters_.own_thread) return;
    const auto time = std::chrono::steady_clock::now() - start_;
    counters_.waiting_nanoseconds.fetch_add(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count(),
                                            std::memory_order_relaxed);
  }
  TimedCall(const TimedCall&) = delete;
  TimedCall& operator=(const TimedCall&) = delete;

 private:
  Counters& counters_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

class MeteredCommunicator::TimedWork final : public WorkInFlight {
 public:
  TimedWork(std::unique_ptr<WorkInFlight> inner, std::shared_ptr<Counters> counters)
      : inner_(std::move(inner)), counters_(std::move(counters)) {}
  void finish() override {
    const TimedCall timed(*counters_, 0);
    inner_->finish();
  }
  bool finished() override { return inner_->finished(); }

 private:
  std::unique_ptr<WorkInFlight> inner_;
  std::shared_ptr<Counters> counters_;  ///< shared with the communicator
};

MeteredCommunicator::MeteredCommunicator(Communicator& inner)
    : inner_(inner), counters_(std::make_shared<Counters>()) {}

MeteredCommunicator::MeteredCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<Counters> counters)
    : owned_(std::move(inner)), inner_(*owned_), counters_(std::move(counters)) {}

CommunicatorUse MeteredCommunicator::use() const {
  return {counters_->sent_bytes.load(), 1e-9 * static_cast<double>(counters_->waiting_nanoseconds.load())};
}

void MeteredCommunicator::all_reduce(ConstTensor input, Tensor output, ReduceOp op, const Message& message) {
  const TimedCall timed(*counters_, input.bytes.size());
  inner_.all_reduce(input, output, op, message);
}

void MeteredCommunicator::reduce_scatter(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                                         ReduceOp op, const Message& message) {
  const TimedCall timed(*counters_, input.bytes.size());
  inner_.reduce_scatter(input, output, counts, op, message);
}

void MeteredCommunicator::all_reduce_with(ConstTensor input, Tensor output, PartReduction& reduction,
                                          const Message& message) {
  const TimedCall timed(*counters_, input.bytes.size());
  inner_.all_reduce_with(input, output, reduction, message);
}

void MeteredCommunicator::reduce_scatter_with(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                                              PartReduction& reduction, const Message& message) {
  const TimedCall timed(*counters_, input.bytes.size());
  inner_.reduce_scatter_with(input, output, counts, reduction, message);
}

void MeteredCommunicator::all_gather(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                                     const Message& message) {
  const TimedCall timed(*counters_, input.bytes.size());
  inner_.all_gather(input, output, counts, message);
}

void MeteredCommunicator::all_to_all(ConstTensor input, std::span<const std::uint64_t> send_counts, Tensor output,
                                     std::span<const std::uint64_t> receive_counts, const Message& message) {
  const TimedCall timed(*counters_, input.bytes.size());
  inner_.all_to_all(input, send_counts, output, receive_counts, message);
}

void MeteredCommunicator::broadcast(Tensor data, int root, const Message& message) {
  const TimedCall timed(*counters_, root == rank() ? data.bytes.size() : 0);
  inner_.broadcast(data, root, message);
}

void MeteredCommunicator::send(ConstTensor data, int destination, const Message& message) {
  const TimedCall timed(*counters_, data.bytes.size());
  inner_.send(data, destination, message);
}

void MeteredCommunicator::recv(Tensor data, int source, const Message& message) {
  const TimedCall timed(*counters_, 0);
  inner_.recv(data, source, message);
}

void MeteredCommunicator::exchange(std::span<const Send> sends, std::span<const Receive> receives) {
  std::uint64_t bytes = 0;
  for (const Send& one : sends) bytes += one.data.bytes.size();
  const TimedCall timed(*counters_, bytes);
  inner_.exchange(sends, receives);
}

std::unique_ptr<WorkInFlight> MeteredCommunicator::begin(const CallArguments& arguments) {
  const bool sends = arguments.operation != Operation::kRecv;
  const TimedCall timed(*counters_, sends ? arguments.input.bytes.size() : 0);
  std::unique_ptr<WorkInFlight> work = inner_.begin(arguments);
  if (work == nullptr) return nullptr;  // done already
  return std::unique_ptr<WorkInFlight>(new TimedWork(std::move(work), counters_));
}

void MeteredCommunicator::barrier(const Message& message) {
  const TimedCall timed(*counters_, 0);
  inner_.barrier(message);
}

std::unique_ptr<Communicator> MeteredCommunicator::split(int color, int key) {
  std::unique_ptr<Communicator> part = inner_.split(color, key);
  if (part == nullptr) return nullptr;
  return std::unique_ptr<Communicator>(new MeteredCommunicator(std::move(part), counters_));
}

std::unique_ptr<Communicator> MeteredCommunicator::twin(int number) {
  std::unique_ptr<Communicator> other = inner_.twin(number);
  if (other == nullptr) return nullptr;
  return std::unique_ptr<Communicator>(new MeteredCommunicator(std::move(other), counters_));
}

}  // namespace droptest::comm
