// SPDX-License-Identifier: Apache-2.0
#include "comm/wall_times.h"

#include <string>

#include "sim/error.h"

namespace droptest::comm {

WallTimes::WallTimes(std::size_t activities, std::size_t base, const Clock& clock)
    : clock_(clock), spent_(activities), counted_until_(clock.now()) {
  DROPTEST_CHECK(base < activities, "base activity " + std::to_string(base) + " of " + std::to_string(activities));
  open_.push_back({base, base, false, counted_until_});
}

Clock::TimePoint WallTimes::count() {
  const Clock::TimePoint now = clock_.now();
  spent_[open_.back().counts] += std::chrono::duration_cast<std::chrono::nanoseconds>(now - counted_until_);
  counted_until_ = now;
  return now;
}

Clock::TimePoint WallTimes::enter(std::size_t activity, Inner inner) {
  DROPTEST_CHECK(activity < spent_.size(),
                 "activity " + std::to_string(activity) + " of " + std::to_string(spent_.size()));
  const Clock::TimePoint now = count();
  const Open& outer = open_.back();
  const std::size_t counts = outer.covers ? outer.counts : activity;
  const bool covers = outer.covers || inner == Inner::kIsCovered;
  open_.push_back({activity, counts, covers, now});
  return now;
}

Clock::TimePoint WallTimes::leave() {
  DROPTEST_CHECK(open_.size() > 1, "the end of an activity that has not begun");
  const Clock::TimePoint now = count();
  const Open ended = open_.back();
  open_.pop_back();
  if (listener_ != nullptr) listener_->ended(ended.activity, ended.begin, now);
  return now;
}

std::vector<double> WallTimes::take() {
  count();
  std::vector<double> seconds;
  seconds.reserve(spent_.size());
  for (std::chrono::nanoseconds& spent : spent_) {
    seconds.push_back(std::chrono::duration<double>(spent).count());
    spent = {};
  }
  return seconds;
}

}  // namespace droptest::comm
