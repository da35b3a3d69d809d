// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/turn_clock.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

namespace droptest::comm {
namespace {

using namespace std::chrono_literals;
using Turn = std::atomic<std::uint64_t>;
static_assert(Turn::is_always_lock_free);

constexpr auto kTurn = 1ms;

}  // namespace

void Turns::create(const std::filesystem::path& file, int world_size) {
  const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const bool made = fd >= 0 && ::ftruncate(fd, static_cast<off_t>(sizeof(Turn)) * world_size) == 0;
  if (fd >= 0) ::close(fd);
  if (!made) throw std::runtime_error("cannot create " + file.string());
}

Turns::Turns(const std::filesystem::path& file, int world_size) {
  const auto count = static_cast<std::size_t>(world_size);
  const int fd = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
  void* const memory =
      fd < 0 ? MAP_FAILED : ::mmap(nullptr, count * sizeof(Turn), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd >= 0) ::close(fd);
  if (memory == MAP_FAILED) throw std::runtime_error("cannot map " + file.string());
  of_rank_ = {static_cast<Turn*>(memory), count};
}

Turns::~Turns() { ::munmap(of_rank_.data(), of_rank_.size_bytes()); }

std::uint64_t Turns::fewest() const { return *std::min_element(of_rank_.begin(), of_rank_.end()); }

TurnClock::TurnClock(Turns& turns, int rank)
    : turns_(turns), rank_(rank), thread_([this] {
        while (!stop_) {
          std::this_thread::sleep_for(kTurn);
          turns_.take(rank_);
        }
      }) {}

TurnClock::~TurnClock() {
  stop_ = true;
  thread_.join();
}

Clock::TimePoint TurnClock::now() const {
  return TimePoint(std::chrono::hours(1)) + kTurn * static_cast<std::int64_t>(turns_.fewest());
}

void TurnClock::wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                           TimePoint deadline) const {
  while (now() < deadline && changed.wait_for(lock, kTurn) == std::cv_status::timeout) continue;
}

void TurnClock::sleep_for(std::chrono::milliseconds time) const {
  for (const auto end = now() + time; now() < end;) std::this_thread::sleep_for(kTurn);
}

bool TurnClock::wait_ready(int fd, short events, TimePoint deadline) const {
  for (;;) {
    const bool over = now() >= deadline;
    pollfd waited{fd, events, 0};
    if (::poll(&waited, 1, over ? 0 : 1) > 0) return true;
    if (over) return false;
  }
}

}  // namespace droptest::comm
