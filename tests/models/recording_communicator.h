// SPDX-License-Identifier: Apache-2.0
// A communicator that writes down the calls of its rank.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace droptest::models {

/// Forwards everything; `calls` has a line per collective: operation, name, layer, class, elements and reduction.
class RecordingCommunicator final : public comm::Communicator {
 public:
  explicit RecordingCommunicator(comm::Communicator& inner) : inner_(inner) {}

  std::vector<std::string> calls;
  std::atomic<std::size_t> calls_so_far = 0;  ///< other threads may read it
  std::vector<comm::ElementType> types;       ///< an element type for each call; a barrier has float
  std::vector<std::optional<std::uint64_t>> ordinals;

  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  int world_rank(int rank) const override { return inner_.world_rank(rank); }
  std::string_view backend() const override { return inner_.backend(); }
  void all_reduce(comm::ConstTensor input, comm::Tensor output, comm::ReduceOp op,
                  const comm::Message& message) override {
    record(op == comm::ReduceOp::kSum ? "sum" : "max", message, input.count_elems(), input.type);
    inner_.all_reduce(input, output, op, message);
  }
  void reduce_scatter(comm::ConstTensor input, comm::Tensor output, std::span<const std::uint64_t> counts,
                      comm::ReduceOp op, const comm::Message& message) override {
    record("reduce_scatter", message, input.count_elems(), input.type);
    inner_.reduce_scatter(input, output, counts, op, message);
  }
  void all_gather(comm::ConstTensor input, comm::Tensor output, std::span<const std::uint64_t> counts,
                  const comm::Message& message) override {
    record("all_gather", message, output.count_elems(), input.type);
    inner_.all_gather(input, output, counts, message);
  }
  void all_to_all(comm::ConstTensor input, std::span<const std::uint64_t> send_counts, comm::Tensor output,
                  std::span<const std::uint64_t> receive_counts, const comm::Message& message) override {
    record("all_to_all", message, input.count_elems(), input.type);
    inner_.all_to_all(input, send_counts, output, receive_counts, message);
  }
  void broadcast(comm::Tensor data, int root, const comm::Message& message) override {
    record("broadcast", message, data.count_elems(), data.type);
    inner_.broadcast(data, root, message);
  }
  void send(comm::ConstTensor data, int destination, const comm::Message& message) override {
    record("send", message, data.count_elems(), data.type);
    inner_.send(data, destination, message);
  }
  void recv(comm::Tensor data, int source, const comm::Message& message) override {
    record("recv", message, data.count_elems(), data.type);
    inner_.recv(data, source, message);
  }
  void exchange(std::span<const comm::Send> sends, std::span<const comm::Receive> receives) override {
    for (const comm::Send& send : sends) record("exchange", send.message, send.data.count_elems(), send.data.type);
    inner_.exchange(sends, receives);
  }
  void barrier(const comm::Message& message) override {
    record("barrier", message, 0, comm::ElementType::kFloat32);
    inner_.barrier(message);
  }
  std::unique_ptr<comm::Communicator> split(int color, int key) override { return inner_.split(color, key); }
  void abort(std::string_view reason) noexcept override { inner_.abort(reason); }

 private:
  void record(const char* operation, const comm::Message& message, std::uint64_t count, comm::ElementType type) {
    ++calls_so_far;
    types.push_back(type);
    ordinals.push_back(message.ordinal);
    calls.push_back(std::string(operation) + " " + std::string(message.name) + " layer " +
                    std::to_string(message.layer) + " " + std::string(sim::traffic_class_name(message.traffic_class)) +
                    " " + std::to_string(count));
  }

  comm::Communicator& inner_;
};

}  // namespace droptest::models
