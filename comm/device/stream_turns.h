// SPDX-License-Identifier: Apache-2.0
// The order of uses of one buffer on different streams.
#pragma once

#include <optional>

#include "comm/device/stream.h"

namespace droptest::comm {

/// Keeps the order in which a host thread uses a buffer on a device when the thread changes from stream to stream. The
/// owner of the buffer owns this too.
class StreamTurns {
 public:
  /// The turn of a stream: from the construction, which makes the stream wait for the previous turn, to the end of the
  /// scope. Null: host memory, nothing is done.
  class Turn {
   public:
    Turn(StreamTurns& turns, Stream* stream) : turns_(turns), stream_(stream) {
      if (stream_ != nullptr && turns_.end_ && turns_.last_ != stream_) stream_->wait(*turns_.end_);
    }
    ~Turn() {
      if (stream_ != nullptr) turns_.end_turn(*stream_);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    StreamTurns& turns_;
    Stream* stream_;
  };

 private:
  // The destructor calls it: after a failure of the device, the next call that checks the device fails.
  void end_turn(Stream& stream) noexcept {
    try {
      if (!end_) end_.emplace();
      end_->record(stream);
      last_ = &stream;
    } catch (...) {
      last_ = nullptr;
    }
  }

  std::optional<Event> end_;
  const Stream* last_ = nullptr;
};

}  // namespace droptest::comm
