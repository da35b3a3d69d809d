// SPDX-License-Identifier: Apache-2.0
// Work on a device that is done in the order in which it was given.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

struct CUstream_st;
struct CUevent_st;

namespace droptest::comm {

class Stream;

/// The device that the calling thread uses: the first, until a stream or a communicator of another one is made on it.
/// Throws: DeviceError.
int current_device();

/// A point in the work of a stream.
/// Thread safety: one thread records at a time; any may wait.
class Event {
 public:
  /// On the calling thread's current device. Throws: DeviceError.
  Event();
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&&) = delete;

  /// The point is what `stream` holds now; an earlier point is forgotten.
  void record(Stream& stream);
  /// Whether the device has come there. Throws: DeviceError, for what went wrong on the device before it.
  bool reached() const;
  /// Returns when it has.
  void wait_on_host() const;
  CUevent_st* handle() const { return event_; }

 private:
  CUevent_st* event_ = nullptr;
};

/// A queue of work on one device. What is put on it returns at once; buffers that the work uses must live, and must not
/// be changed by others, until the work is done.
/// Owner: one rank, which puts work on it from one thread at a time. No call but synchronize() waits for the device,
/// except stage() where the device is far behind. Destructors wait.
class Stream {
 public:
  /// Throws: DeviceError where the device is absent or this build has no CUDA.
  explicit Stream(int device = 0);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int device() const;
  /// Returns when all work is done. Throws: DeviceError, for what went wrong in it.
  void synchronize();
  /// Later work on this stream waits on the device until the event's point is reached.
  void wait(const Event& event);
  CUstream_st* handle() const;

  /// Copies a few bytes to the device, for the work that is put on the stream next: before the next call of stage().
  /// The host range may change at once. The result is at an address that is a multiple of 16.
  const void* stage(std::span<const std::byte> bytes);

 private:
  class Staging;
  struct Handle;
  std::unique_ptr<Handle> handle_;
  std::unique_ptr<Staging> staging_;
};

}  // namespace droptest::comm
