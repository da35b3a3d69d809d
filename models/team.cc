// SPDX-License-Identifier: Apache-2.0
#include "models/team.h"

#include <omp.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "sim/error.h"

namespace droptest::models {
namespace {

// The time that a thread looks for work before it sleeps: longer than the time between two loops of a pass or two
// steps. A virtual machine gives a core without running threads back to the host, and waking it up costs more than a
// loop.
constexpr auto kSpinTime = std::chrono::milliseconds(5);
constexpr int kLooksBetweenYields = 64;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Whether found() became true within the spin time. Yields the core between checks.
template <class Found>
bool look_for(const Found& found) {
  const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int look = 0; look < kLooksBetweenYields; ++look) {
      if (found()) return true;
      relax();
    }
    sched_yield();
  } while (std::chrono::steady_clock::now() < deadline);
  return found();
}

}  // namespace

// The ticket (loop number, front, back) says which loop runs and how many of its parts have been taken from its front
// and from its back; between loops the front is kClosed. A thread that increments front or back has taken that part.
// Even workers take parts from the front and odd ones from the back, so that in successive loops a thread mostly finds
// its data in its own cache. The job is only written while the ticket is closed. So a thread that has taken a part of a
// loop has read the job of that loop: if the loop had ended in between, the ticket would have changed and the increment
// would have failed.
class Team::Workers {
 public:
  explicit Workers(int workers) {
    try {
      for (int worker = 1; worker <= workers; ++worker) {
        threads_.emplace_back([this, worker] { serve(worker); });
      }
    } catch (...) {
      end();
      throw;
    }
  }

  ~Workers() { end(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  void run(std::int64_t parts, const Job& job) {
    DROPTEST_CHECK(parts < static_cast<std::int64_t>(kField), "too many parts of a loop");
    const std::uint64_t before = ticket_.load(std::memory_order_relaxed);
    DROPTEST_CHECK(front_of(before) == kField, "a loop inside a loop of the same team, or from a second thread");
    const std::uint64_t loop = ((before >> kLoopShift) + 1) << kLoopShift;
    call_.store(job.call, std::memory_order_relaxed);
    context_.store(job.context, std::memory_order_relaxed);
    parts_.store(static_cast<std::uint64_t>(parts), std::memory_order_relaxed);
    ended_.store(0, std::memory_order_relaxed);
    ticket_.store(loop);
    if (sleepers_.load() > 0) wake();
    take_parts(0);
    const auto all = static_cast<std::uint32_t>(parts);
    const auto all_ended = [&] { return ended_.load(std::memory_order_acquire) == all; };
    if (!look_for(all_ended)) {
      for (std::uint32_t ended = ended_.load(std::memory_order_acquire); ended != all;
           ended = ended_.load(std::memory_order_acquire)) {
        ended_.wait(ended, std::memory_order_acquire);
      }
    }
    // This is an exchange, because the next job must not be written before it.
    ticket_.exchange(loop | kClosed, std::memory_order_acq_rel);
  }

 private:
  static constexpr int kFrontShift = 20;
  static constexpr int kLoopShift = 40;
  static constexpr std::uint64_t kField = (std::uint64_t{1} << kFrontShift) - 1;
  static constexpr std::uint64_t kClosed = kField << kFrontShift;

  static std::uint64_t front_of(std::uint64_t ticket) { return (ticket >> kFrontShift) & kField; }
  static std::uint64_t back_of(std::uint64_t ticket) { return ticket & kField; }

  void end() {
    ending_.store(true);
    wake();
    for (std::thread& thread : threads_) thread.join();
  }

  bool is_open(std::uint64_t ticket) const {
    return front_of(ticket) != kField && front_of(ticket) + back_of(ticket) < parts_.load(std::memory_order_relaxed);
  }

  // A body that throws ends the program, because the loop cannot be left while other threads run parts of it.
  void take_parts(Worker worker) noexcept {
    const bool from_front = worker % 2 == 0;
    std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (true) {
      const auto call = call_.load(std::memory_order_relaxed);
      const void* context = context_.load(std::memory_order_relaxed);
      const std::uint64_t parts = parts_.load(std::memory_order_relaxed);
      const std::uint64_t front = front_of(ticket);
      const std::uint64_t back = back_of(ticket);
      if (front == kField || front + back >= parts) return;
      const std::uint64_t part = from_front ? front : parts - 1 - back;
      const std::uint64_t taken = ticket + (from_front ? std::uint64_t{1} << kFrontShift : 1);
      if (!ticket_.compare_exchange_weak(ticket, taken, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      call(context, worker, static_cast<std::int64_t>(part));
      if (ended_.fetch_add(1, std::memory_order_acq_rel) + 1 == parts) ended_.notify_one();
      ticket = ticket_.load(std::memory_order_acquire);
    }
  }

  void serve(Worker worker) {
    omp_set_num_threads(1);  // libraries must not start threads
    while (!ending_.load()) {
      if (look_for([this] { return is_open(ticket_.load(std::memory_order_acquire)) || ending_.load(); })) {
        take_parts(worker);
        continue;
      }
      // The sleeper is announced before its last check, so a thread that opens a loop after that check sees and wakes
      // it.
      sleepers_.fetch_add(1);
      const std::uint32_t call = calls_.load();
      if (!is_open(ticket_.load()) && !ending_.load()) calls_.wait(call);
      sleepers_.fetch_sub(1);
    }
  }

  void wake() {
    calls_.fetch_add(1);
    calls_.notify_all();
  }

  // The counters of parts have separate cache lines from the words that waiting threads poll.
  alignas(64) std::atomic<std::uint64_t> ticket_{kClosed};
  std::atomic<void (*)(const void*, Worker, std::int64_t)> call_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<std::uint64_t> parts_{0};
  alignas(64) std::atomic<std::uint32_t> ended_{0};  ///< number of parts of the loop that have ended
  alignas(64) std::atomic<std::uint32_t> calls_{0};  ///< changes whenever sleepers must wake up
  std::atomic<std::uint32_t> sleepers_{0};
  std::atomic<bool> ending_{false};
  std::vector<std::thread> threads_;
};

Team::Team(int threads) : threads_(threads < 1 ? 1 : threads) {
  if (threads_ > 1) workers_ = std::make_shared<Workers>(threads_ - 1);
}

void Team::run_together(std::int64_t parts, const Job& job) const { workers_->run(parts, job); }

}  // namespace droptest::models
