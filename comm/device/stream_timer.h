// SPDX-License-Identifier: Apache-2.0
// The times at which a device began and ended pieces of the work on its streams.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

#include "comm/clock.h"
#include "comm/device/stream.h"

namespace droptest::comm {

/// Puts an event before and after each piece of work, and asks for their times later, so that the host waits for none.
/// Events come from a pool. Owner: one rank, on its thread. The clock is borrowed.
class StreamTimer {
 public:
  explicit StreamTimer(const Clock& clock = steady_clock()) : clock_(clock) {}

  /// Measures from now on. Waits for `stream` once, to learn which time of the host belongs to a time of the device;
  /// the error is the time of one call, about 10 microseconds. Throws: DeviceError, as all methods.
  void start(Stream& stream);
  bool is_on() const { return origin_.has_value(); }

  /// A piece of work: what is put on `stream` while the scope lives. It measures nothing if the timer is null or off.
  /// Scopes of one stream nest. `label` is the caller's.
  class Scope {
   public:
    Scope(StreamTimer* timer, std::size_t label, Stream* stream);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    StreamTimer* timer_;
    Stream* stream_;
  };
  void begin(std::size_t label, Stream& stream);
  /// Ends the last piece that was begun.
  void end(Stream& stream);

  struct Piece {
    std::size_t label = 0;
    std::size_t stream = 0;  ///< streams are numbered in the order of their first pieces
    Clock::TimePoint begin;
    Clock::TimePoint end;
  };
  /// The pieces that the device has done since the last call, in the order of their ends on the host. Does not wait.
  std::vector<Piece> take_done();
  /// Waits for the other pieces, and measures no longer.
  std::vector<Piece> stop();

 private:
  struct Pending {
    std::size_t label;
    std::size_t stream;
    Event begin;
    std::optional<Event> end;
  };
  Event event();
  std::size_t number_of(const Stream& stream);
  Piece piece_of(const Pending& pending) const;

  const Clock& clock_;
  std::optional<Event> origin_;  ///< absent: off
  Clock::TimePoint origin_time_{};
  std::vector<Event> pool_;
  std::vector<const Stream*> streams_;
  std::vector<Pending> open_;  ///< pieces under way, the innermost one last
  std::deque<Pending> done_;   ///< pieces that the host has submitted
};

}  // namespace droptest::comm
