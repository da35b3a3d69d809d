// SPDX-License-Identifier: Apache-2.0
// A communicator for tests that moves host tensors through device memory, so that programs for the host also check
// calls on a device.
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

/// Copies each call's tensors to buffers on the device, calls `inner` with these buffers, and copies the outputs back.
/// Tensors that overlap on the host overlap on the device in the same way. Throws: std::runtime_error if a call wrote
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
  void run(const CallArguments& arguments) override;
  std::unique_ptr<WorkInFlight> begin(const CallArguments& arguments) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  void abort(std::string_view reason) noexcept override { inner_.abort(reason); }

 private:
  ThroughDevice(std::unique_ptr<Communicator> owned, int device)
      : owned_(std::move(owned)), inner_(*owned_), stream_(device) {}
  void carry(const CallArguments& arguments);
  void send_now(const CallArguments& arguments);
  void recv_now(const CallArguments& arguments);
  void exchange_now(std::span<const Send> sends, std::span<const Receive> receives);

  std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
  std::vector<DeviceBuffer<std::byte>> of_works_;  ///< buffers of started calls, which outlive the work on the stream
  Stream stream_;
};

/// The reason why no device can be used; empty if one can, also the fake device. Defined in device_absence.cc.
std::string device_absence();

/// Skips the test if no device can be used. With DROPTEST_REQUIRE_CUDA=1 it fails the test instead.
#define DROPTEST_NEEDS_DEVICE()                                                           \
  if (const std::string absence = ::droptest::comm::device_absence(); !absence.empty()) { \
    const char* required = std::getenv("DROPTEST_REQUIRE_CUDA");                          \
    ASSERT_FALSE(required != nullptr && std::string_view(required) == "1") << absence;    \
    GTEST_SKIP() << absence;                                                              \
  }

}  // namespace droptest::comm
