// SPDX-License-Identifier: Apache-2.0
// The wall time of a thread by activity.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/clock.h"

namespace droptest::comm {

/// Wall time by activity: each moment since the construction counts for exactly one activity, so that all of them add
/// up to the time that has passed. Activities are numbers below a limit; their names are the caller's. They nest: while
/// an inner one lasts, the outer one does not count. Owner: one thread. The clock is borrowed.
class WallTimes {
 public:
  /// `base`: the activity of moments outside of all others.
  WallTimes(std::size_t activities, std::size_t base, const Clock& clock = steady_clock());
  WallTimes(const WallTimes&) = delete;
  WallTimes& operator=(const WallTimes&) = delete;

  /// The activity that counts while an inner one lasts: the inner one, or this one with all inner ones, as in an
  /// evaluation with its GEMMs and collectives.
  enum class Inner : std::uint8_t { kCounts, kIsCovered };
  /// Begins an activity; returns the time of its begin.
  Clock::TimePoint enter(std::size_t activity, Inner inner = Inner::kCounts);
  /// Ends the innermost activity; returns the time of its end.
  Clock::TimePoint leave();
  /// Whether the innermost activity counts for an outer one.
  bool is_covered() const { return open_.size() > 1 && open_[open_.size() - 2].covers; }

  /// Seconds of each activity since the last call, or the construction; an activity under way counts up to now.
  std::vector<double> take();

  /// Hears of each activity at its end, under its own name even if another one covers it.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void ended(std::size_t activity, Clock::TimePoint begin, Clock::TimePoint end) = 0;
  };
  /// The listener is borrowed; null: none.
  void set_listener(Listener* listener) { listener_ = listener; }
  const Clock& clock() const { return clock_; }

  /// An activity as long as it lives; nothing if `times` is null.
  class Scope {
   public:
    Scope(WallTimes* times, std::size_t activity, Inner inner = Inner::kCounts) : times_(times) {
      if (times_ != nullptr) times_->enter(activity, inner);
    }
    ~Scope() {
      if (times_ != nullptr) times_->leave();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    WallTimes* times_;
  };

 private:
  struct Open {
    std::size_t activity = 0;
    std::size_t counts = 0;  ///< the activity that the moments of this one count for
    bool covers = false;
    Clock::TimePoint begin;
  };
  /// Counts the time so far; returns now.
  Clock::TimePoint count();

  const Clock& clock_;
  std::vector<std::chrono::nanoseconds> spent_;
  std::vector<Open> open_;  ///< open activities, the innermost one last; the first is the base
  Clock::TimePoint counted_until_;
  Listener* listener_ = nullptr;
};

}  // namespace droptest::comm
