// SPDX-License-Identifier: Apache-2.0
// Streams and buffers in a build without CUDA code.
#include "comm/device/device_buffer.h"
#include "comm/device/stream.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

[[noreturn]] void unavailable() {
  throw DeviceError(
      "device \"cuda\": this build has no CUDA code; build where nvcc is found (DROPTEST_WITH_CUDA=ON asks for it), or "
      "use "
      "\"device\": \"cpu\"");
}

}  // namespace

int current_device() { unavailable(); }

Event::Event(Timing /*timing*/) { unavailable(); }
Event::~Event() = default;
Event::Event(Event&& other) noexcept : event_(other.event_) {}
void Event::record(Stream& /*stream*/) { unavailable(); }
bool Event::reached() const { unavailable(); }
void Event::wait_on_host() const { unavailable(); }
double Event::seconds_since(const Event& /*earlier*/) const { unavailable(); }

struct Stream::Handle {};
class Stream::Staging {};
Stream::Stream(int /*device*/) { unavailable(); }
Stream::Stream(int /*device*/, CUstream_st* /*borrowed*/) { unavailable(); }
Stream::~Stream() = default;
int Stream::device() const { unavailable(); }
void Stream::synchronize() { unavailable(); }
void Stream::wait(const Event& /*event*/) { unavailable(); }
CUstream_st* Stream::handle() const { unavailable(); }
const void* Stream::stage(std::span<const std::byte> /*bytes*/) { unavailable(); }

DeviceMemory::DeviceMemory(std::size_t /*bytes*/, std::string_view /*what*/) { unavailable(); }
DeviceMemory::~DeviceMemory() = default;
DeviceMemoryUse device_memory_use() { return {}; }
void restart_device_memory_peak() {}
PinnedMemory::PinnedMemory(std::size_t /*bytes*/) { unavailable(); }
PinnedMemory::~PinnedMemory() = default;
void copy_to_device(std::span<const std::byte> /*from*/, std::byte* /*to*/, Stream& /*stream*/) { unavailable(); }
void copy_to_host(const std::byte* /*from*/, std::span<std::byte> /*to*/, Stream& /*stream*/) { unavailable(); }
void copy_on_device(const std::byte* /*from*/, std::byte* /*to*/, std::size_t /*bytes*/, Stream& /*stream*/) {
  unavailable();
}
void zero_on_device(std::byte* /*data*/, std::size_t /*bytes*/, Stream& /*stream*/) { unavailable(); }

}  // namespace droptest::comm
