// SPDX-License-Identifier: Apache-2.0
#include "comm/clock.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <system_error>
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
  bool wait_ready(int fd, short events, TimePoint deadline) const override {
    for (;;) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now());
      pollfd waited{fd, events, 0};
      const int count = ::poll(&waited, 1, static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000)));
      if (count > 0) return true;
      if (count == 0 && now() >= deadline) return false;
      if (count < 0 && errno != EINTR) throw std::system_error(errno, std::generic_category(), "poll");
    }
  }
};

}  // namespace

const Clock& steady_clock() {
  static const SteadyClock kClock;
  return kClock;
}

}  // namespace droptest::comm
