// SPDX-License-Identifier: Apache-2.0
#include "comm/clock.h"

#include <thread>

namespace droptest::comm {
namespace {

class SteadyClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
  void wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                  TimePoint deadline) const override {
    changed.wait_until(lock, deadline);
  }
  void sleep_for(std::chrono::milliseconds time) const override { std::this_thread::sleep_for(time); }
};

}  // namespace

const Clock& steady_clock() {
  static const SteadyClock kClock;
  return kClock;
}

}  // namespace droptest::comm
