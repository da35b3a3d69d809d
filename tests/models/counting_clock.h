// SPDX-License-Identifier: Apache-2.0
// A clock for tests that ask which phases take time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "comm/clock.h"

namespace droptest::models {

/// A clock that moves on by a nanosecond whenever it is read.
class CountingClock final : public comm::Clock {
 public:
  TimePoint now() const override { return TimePoint(std::chrono::nanoseconds(++readings_)); }
  void wait_until(std::condition_variable& /*changed*/, std::unique_lock<std::mutex>& /*lock*/,
                  TimePoint /*deadline*/) const override {}
  void sleep_for(std::chrono::milliseconds /*time*/) const override {}
  bool wait_ready(int /*fd*/, short /*events*/, TimePoint /*deadline*/) const override { return true; }

 private:
  mutable std::int64_t readings_ = 0;
};

}  // namespace droptest::models
