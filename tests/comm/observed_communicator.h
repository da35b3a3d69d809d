// SPDX-License-Identifier: Apache-2.0
// A communicator that shows a test the messages that go through it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "comm/communicator.h"

namespace droptest::comm {

/// Forwards every call to `inner`, which is borrowed, and shows first the rank's message and input size. Parts that are
/// split off are not observed.
class ObservedCommunicator : public Communicator {
 public:
  using Observe = std::function<void(const Message& message, std::size_t input_bytes)>;
  ObservedCommunicator(Communicator& inner, Observe observe) : inner_(inner), observe_(std::move(observe)) {}

  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  int world_rank(int rank) const override { return inner_.world_rank(rank); }
  std::string_view backend() const override { return inner_.backend(); }
  void begin_step(std::uint64_t step) override { inner_.begin_step(step); }
  using Communicator::all_reduce;
  void all_reduce(ConstTensor input, Tensor output, ReduceOp op, const Message& message) override {
    observe_(message, input.bytes.size());
    inner_.all_reduce(input, output, op, message);
  }
  void all_reduce_with(ConstTensor input, Tensor output, PartReduction& reduction, const Message& message) override {
    observe_(message, input.bytes.size());
    inner_.all_reduce_with(input, output, reduction, message);
  }
  void reduce_scatter(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts, ReduceOp op,
                      const Message& message) override {
    observe_(message, input.bytes.size());
    inner_.reduce_scatter(input, output, counts, op, message);
  }
  void reduce_scatter_with(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                           PartReduction& reduction, const Message& message) override {
    observe_(message, input.bytes.size());
    inner_.reduce_scatter_with(input, output, counts, reduction, message);
  }
  PartReductions part_reductions() const override { return inner_.part_reductions(); }
  void all_gather(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                  const Message& message) override {
    observe_(message, input.bytes.size());
    inner_.all_gather(input, output, counts, message);
  }
  void all_to_all(ConstTensor input, std::span<const std::uint64_t> send_counts, Tensor output,
                  std::span<const std::uint64_t> receive_counts, const Message& message) override {
    observe_(message, input.bytes.size());
    inner_.all_to_all(input, send_counts, output, receive_counts, message);
  }
  void broadcast(Tensor data, int root, const Message& message) override {
    observe_(message, data.bytes.size());
    inner_.broadcast(data, root, message);
  }
  void send(ConstTensor data, int destination, const Message& message) override {
    observe_(message, data.bytes.size());
    inner_.send(data, destination, message);
  }
  void recv(Tensor data, int source, const Message& message) override {
    observe_(message, 0);
    inner_.recv(data, source, message);
  }
  void exchange(std::span<const Send> sends, std::span<const Receive> receives) override {
    for (const Send& send : sends) observe_(send.message, send.data.bytes.size());
    for (const Receive& receive : receives) observe_(receive.message, 0);
    inner_.exchange(sends, receives);
  }
  void barrier(const Message& message) override {
    observe_(message, 0);
    inner_.barrier(message);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    observe_({}, 0);
    return inner_.split(color, key);
  }
  void abort(std::string_view reason) noexcept override { inner_.abort(reason); }

 private:
  Communicator& inner_;
  Observe observe_;
};

}  // namespace droptest::comm
