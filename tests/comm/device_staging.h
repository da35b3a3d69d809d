// SPDX-License-Identifier: Apache-2.0
// Runs tests that are written for host memory on device memory.
#pragma once

#include "comm/communicator.h"
#include "comm/device/stream.h"

namespace droptest::comm {

/// Copies what it is given to a device, makes the call there, waits, and copies the output back. Ranges that overlap on
/// the host do so on the device. Throws: std::runtime_error where an input was written.
class DeviceStaging final : public Communicator {
 public:
  /// Both outlive it.
  DeviceStaging(Communicator& inner, Stream& stream) : inner_(inner), stream_(stream) {}
  /// Owns a part of a group.
  DeviceStaging(std::unique_ptr<Communicator> inner, Stream& stream)
      : owned_(std::move(inner)), inner_(*owned_), stream_(stream) {}

  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  int world_rank(int rank) const override { return inner_.world_rank(rank); }
  std::string_view backend() const override { return inner_.backend(); }
  void begin_step(std::uint64_t step) override { inner_.begin_step(step); }
  using Communicator::all_reduce;
  void all_reduce(ConstTensor input, Tensor output, ReduceOp op, const Message& message) override;
  void reduce_scatter(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts, ReduceOp op,
                      const Message& message) override;
  void all_gather(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                  const Message& message) override;
  void all_to_all(ConstTensor input, std::span<const std::uint64_t> send_counts, Tensor output,
                  std::span<const std::uint64_t> receive_counts, const Message& message) override;
  void broadcast(Tensor data, int root, const Message& message) override;
  void send(ConstTensor data, int destination, const Message& message) override;
  void recv(Tensor data, int source, const Message& message) override;
  void barrier(const Message& message) override { inner_.barrier(message); }
  std::unique_ptr<Communicator> split(int color, int key) override;
  void abort(std::string_view reason) noexcept override { inner_.abort(reason); }

 private:
  class Staged;

  const std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
  Stream& stream_;
};

}  // namespace droptest::comm
