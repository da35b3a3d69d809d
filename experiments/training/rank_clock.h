// SPDX-License-Identifier: Apache-2.0
// Times that ranks can compare.
#pragma once

#include <string_view>

#include "comm/clock.h"
#include "comm/communicator.h"

namespace droptest::experiments {

/// The steady clock, counted from one point on all ranks. Ranks on one machine share the clock and its own point. On
/// several machines the point is the end of a barrier; times differ by as much as the times at which ranks leave it.
class RankClock {
 public:
  /// Ranks: all. Traffic is of class control.
  explicit RankClock(comm::Communicator& group);

  /// Called after a collective of all ranks. Sets the point anew if ranks are on several machines: their clocks drift.
  void met();
  /// Waits for all ranks and returns the time now, at which they begin. Ranks: all. Traffic is of class control.
  comm::Clock::TimePoint meet(comm::Communicator& group, std::string_view name);
  comm::Clock::TimePoint origin() const { return origin_; }

 private:
  bool is_shared_;
  comm::Clock::TimePoint origin_{};
};

}  // namespace droptest::experiments
