// SPDX-License-Identifier: Apache-2.0
#include "comm/watchdog.h"

#include <exception>
#include <utility>

namespace droptest::comm {
namespace {

constexpr std::chrono::milliseconds kIdlePoll{100};  ///< interval while nothing is in flight

}  // namespace

struct Watchdog::State {
  State(std::shared_ptr<WatchedTransport> to_watch, std::chrono::milliseconds limit, std::chrono::milliseconds interval,
        std::chrono::milliseconds to_end, const Clock& by)
      : transport(std::move(to_watch)), timeout(limit), poll(interval), patience(to_end), clock(by) {}

  const std::shared_ptr<WatchedTransport> transport;
  const std::chrono::milliseconds timeout;
  const std::chrono::milliseconds poll;
  const std::chrono::milliseconds patience;
  const Clock& clock;

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::map<const void*, std::deque<Entry>> queues;
  std::optional<Failure> requested;  ///< failure that end() requested
  std::optional<Failure> ended;
  bool end_is_over = false;
  bool stop = false;
  bool thread_is_over = false;
};

Watchdog::Watchdog(std::shared_ptr<WatchedTransport> transport, std::chrono::milliseconds timeout,
                   std::chrono::milliseconds poll, std::chrono::milliseconds patience, const Clock& clock)
    : state_(std::make_shared<State>(std::move(transport), timeout, poll, patience, clock)),
      thread_([state = state_] { run(state); }) {}

Watchdog::~Watchdog() {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  const bool over = state_->changed.wait_for(lock, state_->patience, [this] { return state_->thread_is_over; });
  lock.unlock();
  over ? thread_.join() : thread_.detach();
}

void Watchdog::watch(const void* queue, const Call& call, std::shared_ptr<const std::vector<int>> world_ranks,
                     std::shared_ptr<OperationInFlight> operation) {
  const std::lock_guard lock(state_->mutex);
  if (state_->ended) return;
  const bool was_idle = state_->queues.empty();
  state_->queues[queue].push_back({call, std::move(world_ranks), std::move(operation), std::nullopt});
  if (was_idle) state_->changed.notify_all();
}

void Watchdog::end(const Failure& failure) {
  std::unique_lock lock(state_->mutex);
  if (!state_->requested) state_->requested = failure;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, state_->patience, [this] { return state_->end_is_over; });
}

std::optional<Failure> Watchdog::ended() const {
  const std::lock_guard lock(state_->mutex);
  return state_->ended;
}

std::string Watchdog::activity() const {
  const std::lock_guard lock(state_->mutex);
  std::string text;
  for (const auto& [queue, entries] : state_->queues) {
    if (entries.empty()) continue;
    const Entry& first = entries.front();
    text += (text.empty() ? "" : " and ") + describe(first.call);
    if (!first.deadline) text += ", which its device has not reached";
  }
  return text;
}

void Watchdog::run(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  while (!state->stop) {
    const bool idle = state->queues.empty() || state->ended;
    if (!state->requested || state->ended) state->changed.wait_for(lock, idle ? kIdlePoll : state->poll);
    if (state->stop || state->ended) continue;
    std::optional<Failure> found = state->requested;
    if (!found) {
      lock.unlock();
      found = state->transport->failure();
      lock.lock();
      if (!found) found = look(*state);
    }
    if (!found) continue;
    state->ended = found;
    lock.unlock();
    state->transport->end(*found);
    lock.lock();
    state->queues.clear();
    state->end_is_over = true;
    state->changed.notify_all();
  }
  state->queues.clear();
  state->thread_is_over = true;
  state->changed.notify_all();
}

// Called with the mutex held; releases it while the transport explains a stall. Removes finished operations.
std::optional<Failure> Watchdog::look(State& state) {
  const auto now = state.clock.now();
  for (auto queue = state.queues.begin(); queue != state.queues.end();) {
    std::deque<Entry>& entries = queue->second;
    while (!entries.empty()) {
      Entry& first = entries.front();
      try {
        if (first.operation->finished()) {
          entries.pop_front();
          continue;
        }
        if (!first.deadline && first.operation->started()) first.deadline = now + state.timeout;
      } catch (const std::exception& error) {
        return state.transport->device_failure(first.call, error.what());
      }
      break;
    }
    if (!entries.empty() && entries.front().deadline && now >= *entries.front().deadline) {
      const Call call = entries.front().call;
      const auto world_ranks = entries.front().world_ranks;
      // Other ranks may ask for this rank's activity meanwhile.
      state.mutex.unlock();
      const Failure found = state.transport->explain_stall(call, *world_ranks);
      state.mutex.lock();
      return found;
    }
    queue = entries.empty() ? state.queues.erase(queue) : std::next(queue);
  }
  return std::nullopt;
}

}  // namespace droptest::comm
