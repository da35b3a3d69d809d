// SPDX-License-Identifier: Apache-2.0
#include "comm/run_ranks.h"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/local/local_communicator.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

// Shared by the caller and the ranks' threads: a rank that is left behind outlives the call.
struct Run {
  Run(int world_size, std::chrono::milliseconds timeout, std::function<void(Communicator&)> rank_body,
      const Clock& clock)
      : body(std::move(rank_body)),
        world(std::make_shared<LocalWorld>(world_size, timeout, clock)),
        returned(static_cast<std::size_t>(world_size), false) {
    std::vector<int> all(static_cast<std::size_t>(world_size));
    std::iota(all.begin(), all.end(), 0);
    group = std::make_shared<LocalGroup>(world, std::move(all));
  }

  const std::function<void(Communicator&)> body;
  const std::shared_ptr<LocalWorld> world;
  std::shared_ptr<LocalGroup> group;

  enum class Start : std::uint8_t { kAwaited, kGiven, kCancelled };

  std::mutex mutex;
  std::condition_variable changed;
  Start start = Start::kAwaited;  ///< kAwaited: no rank begins before all threads are there
  std::vector<bool> returned;
  int returned_count = 0;
  std::exception_ptr cause;  ///< exception of the rank that found the failure
  std::exception_ptr first;  ///< the first exception, if the rank that found the failure threw none
  std::string first_text;
};

void set_start(Run& run, Run::Start start) {
  const std::lock_guard lock(run.mutex);
  run.start = start;
  run.changed.notify_all();
}

void run_rank(Run& run, int rank) {
  {
    std::unique_lock lock(run.mutex);
    run.changed.wait(lock, [&run] { return run.start != Run::Start::kAwaited; });
    if (run.start == Run::Start::kCancelled) return;
  }
  std::exception_ptr thrown;
  std::string text = "an exception that is not a std::exception";
  LocalCommunicator communicator(run.group, rank);
  try {
    run.body(communicator);
  } catch (const std::exception& error) {
    thrown = std::current_exception();
    text = error.what();
  } catch (...) {
    thrown = std::current_exception();
  }
  bool is_cause = false;
  if (thrown) {
    communicator.abort(text);
    const std::optional<Failure> failure = run.world->failure();
    is_cause = failure && failure->reporter == rank;
  }
  run.world->end(rank);
  const std::lock_guard lock(run.mutex);
  if (is_cause) run.cause = thrown;
  if (thrown && !run.first) {
    run.first = thrown;
    run.first_text = text;
  }
  run.returned[static_cast<std::size_t>(rank)] = true;
  ++run.returned_count;
  run.changed.notify_all();
}

// Starts all threads, or none.
std::vector<std::thread> start_threads(const std::shared_ptr<Run>& run, int world_size) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(world_size));
  try {
    for (int rank = 0; rank < world_size; ++rank) threads.emplace_back([run, rank] { run_rank(*run, rank); });
  } catch (const std::exception& error) {  // an error of the system, or out of memory
    set_start(*run, Run::Start::kCancelled);
    for (std::thread& thread : threads) thread.join();
    throw ConfigError("run_ranks: cannot start a thread for rank " + std::to_string(threads.size()) + " of " +
                      std::to_string(world_size) + ": " + error.what() +
                      "; want fewer ranks, or more memory and threads for this process (ulimit -v, ulimit -u)");
  }
  set_start(*run, Run::Start::kGiven);
  return threads;
}

}  // namespace

void run_ranks(int world_size, std::chrono::milliseconds timeout, const std::function<void(Communicator&)>& body,
               const Clock& clock) {
  const auto run = std::make_shared<Run>(world_size, timeout, body, clock);
  std::vector<std::thread> threads = start_threads(run, world_size);

  std::unique_lock lock(run->mutex);
  const auto all_returned = [&] { return run->returned_count == world_size; };
  run->changed.wait(lock, [&] { return all_returned() || run->first; });
  const Clock::TimePoint deadline = clock.now() + timeout;
  while (!all_returned() && clock.now() < deadline) clock.wait_until(run->changed, lock, deadline);
  const std::vector<bool> returned = run->returned;
  const std::exception_ptr error = run->cause ? run->cause : run->first;
  const std::string first_text = run->first_text;
  lock.unlock();

  std::vector<int> left_behind;
  for (int rank = 0; rank < world_size; ++rank) {
    std::thread& thread = threads[static_cast<std::size_t>(rank)];
    if (returned[static_cast<std::size_t>(rank)]) {
      thread.join();
    } else {
      thread.detach();
      left_behind.push_back(rank);
    }
  }
  if (!left_behind.empty()) {
    throw CommError("run_ranks: " + rank_list(left_behind) + " of " + std::to_string(world_size) +
                    " did not return within " + std::to_string(timeout.count()) + " ms of the first failure, and " +
                    (left_behind.size() == 1 ? "is" : "are") + " left behind; the failure: " + first_text);
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace droptest::comm
