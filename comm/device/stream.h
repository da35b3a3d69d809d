// SPDX-License-Identifier: Apache-2.0
// Work on a device that is done in the order of its submission.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

struct CUstream_st;
struct CUevent_st;

namespace droptest::comm {

class Stream;

/// The current device of the calling thread: device 0, until the thread makes a stream or a communicator of another
/// device. Throws: DeviceError.
int current_device();

/// A point in the work of a stream.
/// Thread safety: one thread records at a time; any may wait.
class Event {
 public:
  enum class Timing : std::uint8_t { kOff, kOn };
  /// Makes an event of the calling thread's current device. Throws: DeviceError.
  explicit Event(Timing timing = Timing::kOff);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&&) = delete;

  /// Sets the point to the current end of `stream`; an earlier point is forgotten.
  void record(Stream& stream);
  /// Whether the device has reached the point. Throws: DeviceError, for an earlier error of the device.
  bool reached() const;
  /// Returns when the device has reached the point.
  void wait_on_host() const;
  /// Seconds on the device from `earlier` to this point. Both have Timing::kOn and are reached. Throws: DeviceError.
  double seconds_since(const Event& earlier) const;
  CUevent_st* handle() const { return event_; }

 private:
  CUevent_st* event_ = nullptr;
};

/// A queue of work on one device. Submissions return at once. Until the work is done, its buffers must live, and no
/// other work may change them.
/// Owner: one rank, which submits work from one thread at a time. Only synchronize() waits for the device, and stage()
/// if the device is far behind. Destructors wait.
class Stream {
 public:
  /// Throws: DeviceError if the device is absent or this build has no CUDA.
  explicit Stream(int device = 0);
  /// Borrows a stream of another library, which may end before this object; null: the device's default stream. The
  /// destructor waits for the whole device.
  Stream(int device, CUstream_st* borrowed);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int device() const;
  /// Returns when all work is done. Throws: DeviceError, for an error of this work.
  void synchronize();
  /// Later work on this stream waits on the device until the event's point is reached.
  void wait(const Event& event);
  CUstream_st* handle() const;

  /// Copies a few bytes to the device, for the work that is submitted before the next call of stage(). The host range
  /// may change at once. The result is at an address that is a multiple of 16.
  const void* stage(std::span<const std::byte> bytes);

 private:
  class Staging;
  struct Handle;
  std::unique_ptr<Handle> handle_;
  std::unique_ptr<Staging> staging_;
};

}  // namespace droptest::comm
