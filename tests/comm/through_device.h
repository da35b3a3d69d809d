// SPDX-License-Identifier: Apache-2.0
// A communicator for tests that carries host tensors through device memory, so that programs written for the host check
// the same calls on a device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/device/device_buffer.h"
#include "comm/device/stream.h"

namespace droptest::comm {

/// Copies each call's tensors to buffers on the device, calls `inner` with those, and copies the outputs back. Tensors
/// that overlap on the host do so on the device, at the same distance. Throws: std::runtime_error where a call wrote
/// its input.
class ThroughDevice final : public Communicator {
 public:
  /// `inner` is borrowed.
  explicit ThroughDevice(Communicator& inner, int device = 0) : inner_(inner), stream_(device) {}

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
  void exchange(std::span<const Send> sends, std::span<const Receive> receives) override;
  std::unique_ptr<WorkInFlight> begin(const CallArguments& arguments) override;
  void barrier(const Message& message) override { inner_.barrier(message); }
  std::unique_ptr<Communicator> split(int color, int key) override;
  void abort(std::string_view reason) noexcept override { inner_.abort(reason); }

 private:
  ThroughDevice(std::unique_ptr<Communicator> owned, int device)
      : owned_(std::move(owned)), inner_(*owned_), stream_(device) {}
  template <class Call>
  void carry(ConstTensor input, Tensor output, const Call& call);

  std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
  std::vector<DeviceBuffer<std::byte>> of_works_;  ///< outlive the work on the stream
  Stream stream_;
};

/// Why no device can be used here; empty where one can. On the fake device one can. In device_absence.cc.
std::string device_absence();

/// Skips the test where no device can be used; fails it instead where DROPTEST_REQUIRE_CUDA is 1.
#define DROPTEST_NEEDS_DEVICE()                                                           \
  if (const std::string absence = ::droptest::comm::device_absence(); !absence.empty()) { \
    const char* required = std::getenv("DROPTEST_REQUIRE_CUDA");                          \
    ASSERT_FALSE(required != nullptr && std::string_view(required) == "1") << absence;    \
    GTEST_SKIP() << absence;                                                              \
  }

}  // namespace droptest::comm
