// SPDX-License-Identifier: Apache-2.0
// A clock of several processes that stops while one of them stops, so that no timeout depends on the speed of the
// machine.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <thread>

#include "comm/clock.h"

namespace droptest::comm {

/// The number of turns that each rank has had, in a file that all processes map. A turn is a millisecond of the clock.
/// Thread safety: all methods may be called from any thread.
class Turns {
 public:
  static void create(const std::filesystem::path& file, int world_size);
  Turns(const std::filesystem::path& file, int world_size);
  ~Turns();
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  void take(int rank) { ++of_rank_[static_cast<std::size_t>(rank)]; }
  /// Time continues without this rank, which has ended or never comes: its turns become the number of milliseconds in
  /// 2^62 nanoseconds, which the clock can represent when all ranks have left.
  void leave(int rank) { of_rank_[static_cast<std::size_t>(rank)] = std::uint64_t{1} << 42; }
  /// Time continues without this rank, which is about to stop. When all others have left, its further turns count
  /// again.
  void rest(int rank) { of_rank_[static_cast<std::size_t>(rank)] = std::uint64_t{1} << 40; }
  std::uint64_t of(int rank) const { return of_rank_[static_cast<std::size_t>(rank)]; }
  /// The smallest number of turns over the ranks.
  std::uint64_t fewest() const;

 private:
  std::span<std::atomic<std::uint64_t>> of_rank_;
};

/// A clock with the time of the rank that has had the fewest turns. This rank gets a turn whenever a thread of this
/// object has waited for a millisecond. The turns are borrowed.
class TurnClock final : public Clock {
 public:
  TurnClock(Turns& turns, int rank);
  ~TurnClock() override;
  TurnClock(const TurnClock&) = delete;
  TurnClock& operator=(const TurnClock&) = delete;

  TimePoint now() const override;
  void wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                  TimePoint deadline) const override;
  void sleep_for(std::chrono::milliseconds time) const override;
  bool wait_ready(int fd, short events, TimePoint deadline) const override;
  /// Calls Turns::rest() of this rank.
  void rest() { turns_.rest(rank_); }

 private:
  Turns& turns_;
  const int rank_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace droptest::comm
