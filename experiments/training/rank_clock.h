// SPDX-License-Identifier: Apache-2.0
// Times that ranks can compare.
#pragma once

#include <string_view>

#include "comm/clock.h"
#include "comm/communicator.h"

namespace droptest::experiments {

/// The steady clock counted from one point on all ranks. Ranks on one machine share the clock: the point is the clock's
/// own. On several machines the point is the end of a barrier, and times differ by the time in which ranks leave it.
class RankClock {
 public:
  /// Ranks: all. Traffic is of class control.
  explicit RankClock(comm::Communicator& group);

  /// After a collective of all ranks. Sets the point anew where machines differ, since their clocks drift.
  void met();
  /// A point of now, at which all ranks begin. Ranks: all. Traffic is of class control.
  comm::Clock::TimePoint meet(comm::Communicator& group, std::string_view name);
  comm::Clock::TimePoint origin() const { return origin_; }

 private:
  bool is_shared_;
  comm::Clock::TimePoint origin_{};
};

}  // namespace droptest::experiments
