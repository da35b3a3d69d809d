// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "comm/device/cuda_error.h"
#include "comm/device/device_buffer.h"
#include "comm/device/stream.h"

namespace droptest::comm {

int current_device() {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

Event::Event(Timing timing) {
  const unsigned flags = timing == Timing::kOn ? cudaEventDefault : cudaEventDisableTiming;
  check_cuda(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreateWithFlags");
}

Event::~Event() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

Event::Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}

void Event::record(Stream& stream) { check_cuda(cudaEventRecord(event_, stream.handle()), "cudaEventRecord"); }

bool Event::reached() const {
  const cudaError_t status = cudaEventQuery(event_);
  if (status == cudaErrorNotReady) return false;
  check_cuda(status, "cudaEventQuery");
  return true;
}

void Event::wait_on_host() const { check_cuda(cudaEventSynchronize(event_), "cudaEventSynchronize"); }

double Event::seconds_since(const Event& earlier) const {
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, earlier.event_, event_), "cudaEventElapsedTime");
  return 1e-3 * static_cast<double>(milliseconds);
}

struct Stream::Handle {
  explicit Handle(int on_device) : device(on_device) {
    check_cuda(cudaSetDevice(device), "cudaSetDevice");
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  Handle(int on_device, cudaStream_t other) : device(on_device), stream(other), owner(Owner::kOther) {}
  ~Handle() {
    drain();
    if (owner == Owner::kThis) cudaStreamDestroy(stream);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  // A borrowed stream may be gone: then the whole device is waited for.
  void drain() const { owner == Owner::kThis ? cudaStreamSynchronize(stream) : cudaDeviceSynchronize(); }

  int device;
  cudaStream_t stream = nullptr;
  enum class Owner : std::uint8_t { kThis, kOther } owner = Owner::kThis;
};

// Two halves of a buffer that are used in turns. A half is reused when the device has passed the point of its last use.
// All work that reads the half precedes this point, since work with a staged copy is submitted before the next copy is
// staged.
class Stream::Staging {
 public:
  const void* stage(std::span<const std::byte> bytes, Stream& stream) {
    const std::size_t wanted = (bytes.size() + kAlignment - 1) / kAlignment * kAlignment;
    if (wanted > half_bytes_) grow(wanted, stream);
    if (used_bytes_ + wanted > half_bytes_) turn(stream);
    Half& half = halves_[current_];
    const std::span<std::byte> pinned = half.pinned.elems().subspan(used_bytes_, bytes.size());
    std::byte* on_device = half.on_device.elems().data() + used_bytes_;
    if (!bytes.empty()) {
      std::memcpy(pinned.data(), bytes.data(), bytes.size());
      copy_to_device(std::span<const std::byte>(pinned), on_device, stream);
    }
    used_bytes_ += wanted;
    return on_device;
  }

 private:
  static constexpr std::size_t kAlignment = 16;
  static constexpr std::size_t kFirstHalfBytes = std::size_t{256} * 1024;

  struct Half {
    PinnedBuffer<std::byte> pinned;
    DeviceBuffer<std::byte> on_device;
    std::optional<Event> left;
  };

  void grow(std::size_t wanted, Stream& stream) {
    stream.synchronize();
    half_bytes_ = std::max(kFirstHalfBytes, 2 * wanted);
    for (Half& half : halves_) {
      half.pinned = PinnedBuffer<std::byte>(half_bytes_);
      half.on_device = DeviceBuffer<std::byte>(half_bytes_, "staged bytes of a stream");
      half.left.reset();
    }
    used_bytes_ = 0;
  }

  void turn(Stream& stream) {
    halves_[current_].left.emplace();
    halves_[current_].left->record(stream);
    current_ = 1 - current_;
    if (halves_[current_].left) halves_[current_].left->wait_on_host();
    used_bytes_ = 0;
  }

  std::array<Half, 2> halves_;
  std::size_t current_ = 0;
  std::size_t half_bytes_ = 0;
  std::size_t used_bytes_ = 0;
};

Stream::Stream(int device) : handle_(std::make_unique<Handle>(device)), staging_(std::make_unique<Staging>()) {}

Stream::Stream(int device, CUstream_st* borrowed)
    : handle_(std::make_unique<Handle>(device, borrowed)), staging_(std::make_unique<Staging>()) {}

// The memory of the staging is freed after the stream has done its work.
Stream::~Stream() { handle_->drain(); }

int Stream::device() const { return handle_->device; }

void Stream::synchronize() { check_cuda(cudaStreamSynchronize(handle_->stream), "cudaStreamSynchronize"); }

void Stream::wait(const Event& event) {
  check_cuda(cudaStreamWaitEvent(handle_->stream, event.handle(), 0), "cudaStreamWaitEvent");
}

CUstream_st* Stream::handle() const { return handle_->stream; }

const void* Stream::stage(std::span<const std::byte> bytes) { return staging_->stage(bytes, *this); }

}  // namespace droptest::comm
