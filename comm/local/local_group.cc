// SPDX-License-Identifier: Apache-2.0
#include "comm/local/local_group.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <thread>

#include "comm/allowed_cores.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

std::string milliseconds_text(std::chrono::milliseconds time) { return std::to_string(time.count()) + " ms"; }

// Bytes of a rank's input and output together. One thread finishes a smaller collective before another one wakes up.
constexpr std::size_t kBytesWorthWaking = 32768;

// The time for which a rank polls before it sleeps: longer than the computation between two collectives in models of
// hundreds of megabytes.
constexpr auto kPatience = std::chrono::milliseconds(20);

std::string operation_text(const Call& call) { return std::string(operation_name(call.operation)); }

}  // namespace

LocalWorld::LocalWorld(int world_size, std::chrono::milliseconds timeout, const Clock& clock)
    : size_(world_size), timeout_(timeout), clock_(clock), cores_(static_cast<int>(allowed_cores().size())) {
  if (world_size < 1) throw ConfigError("local: world size " + std::to_string(world_size) + ", want at least 1");
  if (timeout.count() < 1) throw ConfigError("local: timeout " + milliseconds_text(timeout) + ", want at least 1 ms");
  ranks_.resize(static_cast<std::size_t>(world_size));
}

void LocalWorld::abort(int world_rank, std::string_view reason) {
  const Lock lock(mutex_);
  fail(lock, {world_rank, "", "rank " + std::to_string(world_rank) + " failed: " + std::string(reason)});
}

void LocalWorld::end(int world_rank) {
  const Lock lock(mutex_);
  ranks_[static_cast<std::size_t>(world_rank)].ended = true;
  needs_attention_ = true;
  for (Rank& rank : ranks_) rank.wake.notify_all();
}

std::optional<Failure> LocalWorld::failure() const {
  const Lock lock(mutex_);
  return failure_;
}

void LocalWorld::fail(const Lock& /*lock*/, Failure failure) {
  if (failure_) return;
  failure_ = std::move(failure);
  needs_attention_ = true;
  for (Rank& rank : ranks_) rank.wake.notify_all();
}

void LocalWorld::throw_failure(const Lock& /*lock*/, const Call& call, int world_rank) const {
  throw CommError(failure_text(*failure_, call, world_rank, size()));
}

std::vector<int> LocalWorld::awaited(const Wait& wait) const {
  if (wait.meeting == nullptr) return {wait.group->world_rank(wait.peer)};
  return wait.group->missing(*wait.meeting);
}

int LocalWorld::ended_rank(const Wait& wait) const {
  const auto has_ended = [this](int world_rank) { return ranks_[static_cast<std::size_t>(world_rank)].ended; };
  if (wait.meeting == nullptr) {
    return has_ended(wait.group->world_rank(wait.peer)) ? wait.group->world_rank(wait.peer) : -1;
  }
  for (int r = 0; r < wait.group->size(); ++r) {
    if (!wait.meeting->arrived_[static_cast<std::size_t>(r)] && has_ended(wait.group->world_rank(r))) {
      return wait.group->world_rank(r);
    }
  }
  return -1;
}

// The ranks that a rank waits for may be waiting themselves. The culprits are at the end of the chain: ranks that are
// in no call, or, if there are none, a cycle of ranks that wait for each other.
Failure LocalWorld::stalled(int world_rank, const Wait& wait) const {
  std::vector<int> pending = awaited(wait);
  std::set<int> seen(pending.begin(), pending.end());
  std::vector<int> culprits;
  std::string chain;
  for (std::size_t i = 0; i < pending.size(); ++i) {
    const int rank = pending[i];
    const Wait& its_wait = ranks_[wait.group->first_thread_ + static_cast<std::size_t>(rank)].wait;
    if (its_wait.group == nullptr) {
      culprits.push_back(rank);
      continue;
    }
    const std::vector<int> next = awaited(its_wait);
    chain +=
        "; rank " + std::to_string(rank) + " is in " + describe(its_wait.call) + " and waits for " + rank_list(next);
    for (const int r : next) {
      if (r != world_rank && seen.insert(r).second) pending.push_back(r);
    }
  }
  std::sort(culprits.begin(), culprits.end());
  const std::string time = " for " + milliseconds_text(timeout_) + " " + call_context(wait.call);
  const std::string where = operation_text(wait.call);
  if (culprits.empty()) {
    return {world_rank, where,
            "no data from " + rank_list(awaited(wait)) + time + ": the ranks wait for each other" + chain};
  }
  return {world_rank, where,
          "no data from " + rank_list(culprits) + time + "; " +
              (culprits.size() == 1 ? "is " + rank_list(culprits) : "are " + rank_list(culprits)) + " alive?" + chain};
}

std::size_t LocalWorld::add_threads(const Lock& /*lock*/) {
  const std::size_t first = ranks_.size();
  ranks_.resize(first + static_cast<std::size_t>(size_));
  return first;
}

LocalWorld::Deadline LocalWorld::begin_wait(const Lock& /*lock*/, Rank& thread, const Wait& wait) {
  thread.wait = wait;
  return clock_.now() + timeout_;
}

template <class Done>
void LocalWorld::wait_until(Lock& lock, Rank& thread, int world_rank, Deadline deadline, const Done& done) {
  const Wait wait = thread.wait;
  while (!done() && !failure_) {
    if (const int gone = ended_rank(wait); gone >= 0) {
      fail(lock, {world_rank, operation_text(wait.call),
                  "rank " + std::to_string(gone) + " has ended without taking part " + call_context(wait.call)});
    } else if (clock_.now() >= deadline) {
      fail(lock, stalled(world_rank, wait));
    } else {
      clock_.wait_until(thread.wake, lock, deadline);
    }
  }
  thread.wait = {};
  if (!done()) throw_failure(lock, wait.call, world_rank);
}

LocalMeeting::LocalMeeting(int size)
    : calls_(static_cast<std::size_t>(size)),
      shares_(calls_.size(), nullptr),
      thrown_(calls_.size()),
      arrived_(calls_.size(), false),
      shares_left_(calls_.size()) {}

// Called when all ranks have left it and no share has thrown.
void LocalMeeting::start_over() {
  arrived_.assign(arrived_.size(), false);
  arrived_count_ = 0;
  left_count_ = 0;
  next_share_ = 0;
  shares_left_ = shares_.size();
  started_ = false;
  finished_ = false;
  parts_.clear();
}

LocalGroup::LocalGroup(std::shared_ptr<LocalWorld> world, std::vector<int> world_ranks)
    : world_(std::move(world)),
      world_ranks_(std::move(world_ranks)),
      next_meeting_(world_ranks_.size(), 0),
      device_points_(world_ranks_.size()) {
  use_threads(0);
}

void LocalGroup::use_threads(std::size_t first) {
  first_thread_ = first;
  threads_.clear();
  for (const int rank : world_ranks_) threads_.push_back(&world_->ranks_[first + static_cast<std::size_t>(rank)]);
}

std::vector<int> LocalGroup::missing(const LocalMeeting& meeting) const {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < world_ranks_.size(); ++r) {
    if (!meeting.arrived_[r]) ranks.push_back(world_ranks_[r]);
  }
  return ranks;
}

std::string LocalGroup::disagreement(const LocalMeeting& meeting) const {
  const std::vector<LocalCall>& shown = meeting.calls_;
  const Call& first = shown[0].call;
  const auto differs = [&first](const LocalCall& other) { return !calls_agree(first, other.call); };
  if (std::any_of(shown.begin() + 1, shown.end(), differs)) {
    std::vector<Call> calls;
    for (const LocalCall& call : shown) calls.push_back(call.call);
    return "the ranks call different things: " + describe_disagreement(calls, world_ranks_);
  }
  if (first.operation != Operation::kAllToAll) return "";
  for (std::size_t s = 0; s < shown.size(); ++s) {
    for (std::size_t d = 0; d < shown.size(); ++d) {
      if (shown[s].send_counts[d] == shown[d].receive_counts[s]) continue;
      return "rank " + std::to_string(world_ranks_[s]) + " sends " + std::to_string(shown[s].send_counts[d]) +
             " elements to rank " + std::to_string(world_ranks_[d]) + ", which expects " +
             std::to_string(shown[d].receive_counts[s]) + " " + call_context(first);
    }
  }
  return "";
}

// Before it sleeps, a rank polls for the event that it waits for, and yields the core between polls: to the rank that
// it waits for, or to another program. A core with only sleeping threads takes long to wake up, longer still in a
// virtual machine. Polling is useless on one core, since no other thread runs meanwhile.
template <class Seen>
void LocalGroup::look_out(LocalWorld::Lock& lock, const Seen& seen) const {
  if (world_->cores_ < 2 || !looks_out_ || seen()) return;
  lock.unlock();
  const auto end = std::chrono::steady_clock::now() + std::min<std::chrono::milliseconds>(kPatience, world_->timeout_);
  while (!seen() && !world_->needs_attention_ && std::chrono::steady_clock::now() < end) sched_yield();
  lock.lock();
}

// Wakes the next `count` ranks after `rank`. Called without the lock, so that the woken ranks need not wait for it.
void LocalGroup::wake_after(int rank, int count) const {
  for (int i = 1; i <= count; ++i) thread((rank + i) % size()).wake.notify_one();
}

LocalMeeting& LocalGroup::join(const LocalWorld::Lock& lock, int rank, const LocalCall& call, LocalShare* share) {
  if (world_->failure_) world_->throw_failure(lock, call.call, world_rank(rank));
  const auto r = static_cast<std::size_t>(rank);
  const auto place = static_cast<std::size_t>(next_meeting_[r] - first_meeting_);
  if (place == meetings_.size()) {
    if (spare_meetings_.empty()) spare_meetings_.push_back(std::make_unique<LocalMeeting>(size()));
    meetings_.push_back(std::move(spare_meetings_.back()));
    spare_meetings_.pop_back();
  }
  ++next_meeting_[r];
  LocalMeeting& meeting = *meetings_[place];
  meeting.calls_[r] = call;
  meeting.shares_[r] = share;
  meeting.arrived_[r] = true;
  if (++meeting.arrived_count_ < size()) return meeting;
  // All ranks are here. No rank can have failed meanwhile, but their calls may disagree.
  const std::string wrong = disagreement(meeting);
  if (!wrong.empty()) {
    world_->fail(lock, {world_rank(rank), operation_text(call.call), wrong});
    world_->throw_failure(lock, call.call, world_rank(rank));
  }
  meeting.started_ = true;
  return meeting;
}

LocalMeeting& LocalGroup::join(int rank, const LocalCall& call, LocalShare* share) {
  LocalWorld::Lock lock(world_->mutex_);
  LocalMeeting& meeting = join(lock, rank, call, share);
  const bool is_last = meeting.started_;
  lock.unlock();
  // Other ranks may wait, and this rank does not begin a share now.
  if (is_last) wake_after(rank, size() - 1);
  return meeting;
}

void LocalGroup::meet(int rank, const LocalCall& call, LocalShare* share) {
  LocalWorld::Lock lock(world_->mutex_);
  LocalMeeting& meeting = join(lock, rank, call, share);
  // Waking a rank takes longer than a small share, and more ranks than cores would only take turns. So most of the
  // other ranks sleep until the end.
  const bool worth_waking = call.input.bytes.size() + call.output.bytes.size() >= kBytesWorthWaking;
  const int helpers = std::min(world_->cores_, size()) - 1;
  if (meeting.started_ && worth_waking && helpers > 0) {
    lock.unlock();
    wake_after(rank, helpers);
    lock.lock();
  }
  finish(lock, rank, meeting);
}

void LocalGroup::finish(int rank, LocalMeeting& meeting) {
  LocalWorld::Lock lock(world_->mutex_);
  finish(lock, rank, meeting);
}

bool LocalGroup::finished(LocalMeeting& meeting) {
  LocalWorld::Lock lock(world_->mutex_);
  if (world_->failure_) return true;
  if (!meeting.started_) return false;
  run_shares(lock, meeting);
  if (end_if_done(meeting)) {
    lock.unlock();
    wake_after(0, size());
  }
  return meeting.finished_;
}

void LocalGroup::finish(LocalWorld::Lock& lock, int rank, LocalMeeting& meeting) {
  const auto r = static_cast<std::size_t>(rank);
  const Call call = meeting.call_of(rank).call;
  if (!meeting.started_) {
    const auto has_started = [&] { return meeting.started_.load(); };
    const LocalWorld::Deadline deadline = world_->begin_wait(lock, thread(rank), {this, &meeting, -1, call});
    look_out(lock, has_started);
    world_->wait_until(lock, thread(rank), world_rank(rank), deadline, has_started);
  }
  // From here on all ranks run to the end, even if another rank fails: no rank can leave a collective while another one
  // reads its memory. There is no deadline, because shares never wait.
  run_shares(lock, meeting);
  if (end_if_done(meeting)) {
    if (!meeting.share_has_thrown_) {
      leave(lock, meeting);
      lock.unlock();
      return wake_after(rank, size() - 1);
    }
    wake_after(rank, size() - 1);
  } else {
    const auto has_finished = [&] { return meeting.finished_.load(); };
    look_out(lock, has_finished);
    thread(rank).wake.wait(lock, has_finished);
  }
  if (!meeting.share_has_thrown_) return leave(lock, meeting);
  if (const std::exception_ptr thrown = std::exchange(meeting.thrown_[r], nullptr)) {
    lock.unlock();
    std::rethrow_exception(thrown);
  }
  world_->throw_failure(lock, call, world_rank(rank));
}

// Whether the caller must tell the others that the meeting is over.
bool LocalGroup::end_if_done(LocalMeeting& meeting) {
  if (meeting.finished_ || meeting.shares_left_ > 0) return false;
  meeting.finished_ = true;
  return true;
}

// A meeting with a share that has thrown is never left by all; it stays, as the world's last meeting.
void LocalGroup::leave(const LocalWorld::Lock& /*lock*/, LocalMeeting& meeting) {
  ++meeting.left_count_;
  while (!meetings_.empty() && meetings_.front()->left_count_ == size()) {
    meetings_.front()->start_over();
    spare_meetings_.push_back(std::move(meetings_.front()));
    meetings_.pop_front();
    ++first_meeting_;
  }
}

void LocalGroup::run_shares(LocalWorld::Lock& lock, LocalMeeting& meeting) {
  while (meeting.next_share_ < meeting.shares_.size()) {
    const std::size_t r = meeting.next_share_++;
    if (meeting.shares_[r] != nullptr) run_share(lock, meeting, r);
    --meeting.shares_left_;
  }
}

void LocalGroup::run_share(LocalWorld::Lock& lock, LocalMeeting& meeting, std::size_t rank) {
  lock.unlock();
  std::exception_ptr thrown;
  std::string reason;
  try {
    meeting.shares_[rank]->run(meeting);
  } catch (const std::exception& error) {
    thrown = std::current_exception();
    reason = error.what();
  } catch (...) {
    thrown = std::current_exception();
    reason = "an exception that is not a std::exception";
  }
  lock.lock();
  if (thrown == nullptr) return;
  const int thrower = world_ranks_[rank];
  meeting.thrown_[rank] = std::move(thrown);
  meeting.share_has_thrown_ = true;
  world_->fail(lock, {thrower, "", "rank " + std::to_string(thrower) + " failed: " + reason});
}

std::shared_ptr<LocalGroup> LocalGroup::channel(int number) {
  const LocalWorld::Lock lock(world_->mutex_);
  std::shared_ptr<LocalGroup>& channel = channels_[static_cast<std::size_t>(number)];
  if (channel != nullptr) return channel;
  channel = std::make_shared<LocalGroup>(world_, world_ranks_);
  channel->use_threads(world_->add_threads(lock));
  channel->looks_out_ = number != 0;  // the rank may compute meanwhile
  return channel;
}

std::shared_ptr<LocalGroup> LocalGroup::part_of(LocalMeeting& meeting, int color) {
  const LocalWorld::Lock lock(world_->mutex_);
  std::shared_ptr<LocalGroup> part = meeting.parts_[color].lock();
  if (part != nullptr) return part;
  std::vector<int> members;  // group ranks, in order of (key, rank)
  for (int r = 0; r < size(); ++r) {
    if (meeting.call_of(r).color == color) members.push_back(r);
  }
  const auto key = [&meeting](int rank) { return meeting.call_of(rank).key; };
  std::stable_sort(members.begin(), members.end(), [&key](int a, int b) { return key(a) < key(b); });
  for (int& member : members) member = world_rank(member);
  part = std::make_shared<LocalGroup>(world_, std::move(members));
  meeting.parts_[color] = part;
  return part;
}

LocalGroup::DevicePoints& LocalGroup::device_points(int rank) {
  std::unique_ptr<DevicePoints>& points = device_points_[static_cast<std::size_t>(rank)];
  if (points == nullptr) points = std::make_unique<DevicePoints>();
  return *points;
}

// Called under the world's mutex. Returns the smallest post that is large enough, or a new one that replaces the
// smallest: so there are never more posts than messages under way at once.
std::unique_ptr<LocalGroup::DevicePost> LocalGroup::device_post(std::size_t bytes, Stream& stream) {
  const auto size = [](const std::unique_ptr<DevicePost>& post) { return post->memory.bytes(); };
  std::ranges::sort(taken_posts_, {}, size);
  const auto found = std::ranges::lower_bound(taken_posts_, bytes, {}, size);
  if (found == taken_posts_.end()) {
    if (!taken_posts_.empty()) {
      taken_posts_.front()->taken.wait_on_host();  // its receiver may still copy from it
      taken_posts_.erase(taken_posts_.begin());
    }
    auto post = std::make_unique<DevicePost>();
    post->memory = DeviceMemory(bytes, "message between ranks");
    return post;
  }
  std::unique_ptr<DevicePost> post = std::move(*found);
  taken_posts_.erase(found);
  stream.wait(post->taken);
  return post;
}

void LocalGroup::post(int source, int destination, const LocalCall& call) {
  LocalWorld::Lock lock(world_->mutex_);
  if (world_->failure_) world_->throw_failure(lock, call.call, world_rank(source));
  Posted posted{call.call, {}, nullptr};
  if (Stream* stream = call.input.stream; stream != nullptr) {
    posted.on_device = device_post(call.input.bytes.size(), *stream);
    copy_on_device(call.input.bytes.data(), posted.on_device->memory.data(), call.input.bytes.size(), *stream);
    posted.on_device->ready.record(*stream);
  } else {
    posted.bytes.assign(call.input.bytes.begin(), call.input.bytes.end());
  }
  mail_[{source, destination}].posted.emplace_back(std::move(posted));
  thread(destination).wake.notify_all();
}

std::uint64_t LocalGroup::next_receive(int source, int destination) {
  const LocalWorld::Lock lock(world_->mutex_);
  return mail_[{source, destination}].receives++;
}

bool LocalGroup::has_come(int source, int destination, std::uint64_t number) {
  const LocalWorld::Lock lock(world_->mutex_);
  return world_->failure_ || mail_[{source, destination}].has(number);
}

void LocalGroup::take(int source, int destination, std::uint64_t number, const LocalCall& call) {
  LocalWorld::Lock lock(world_->mutex_);
  Mailbox& mail = mail_[{source, destination}];
  if (!mail.has(number) && world_->failure_) world_->throw_failure(lock, call.call, world_rank(destination));
  const LocalWorld::Deadline deadline =
      world_->begin_wait(lock, thread(destination), {this, nullptr, source, call.call});
  world_->wait_until(lock, thread(destination), world_rank(destination), deadline, [&] { return mail.has(number); });
  Posted posted = *std::exchange(mail.posted[number - mail.first], std::nullopt);
  for (; !mail.posted.empty() && !mail.posted.front(); ++mail.first) mail.posted.pop_front();
  if (!calls_agree(other_end_of(call.call), posted.call)) {
    world_->fail(lock, {world_rank(destination), operation_text(call.call),
                        "rank " + std::to_string(world_rank(source)) + " calls " + describe(posted.call) + ", rank " +
                            std::to_string(world_rank(destination)) + " calls " + describe(call.call)});
    world_->throw_failure(lock, call.call, world_rank(destination));
  }
  if (Stream* stream = call.output.stream; stream != nullptr) {
    DROPTEST_CHECK(posted.on_device != nullptr, "a message in host memory for a receiver in device memory");
    stream->wait(posted.on_device->ready);
    copy_on_device(posted.on_device->memory.data(), call.output.bytes.data(), call.output.bytes.size(), *stream);
    posted.on_device->taken.record(*stream);
    taken_posts_.push_back(std::move(posted.on_device));
    return;
  }
  DROPTEST_CHECK(posted.on_device == nullptr, "a message in device memory for a receiver in host memory");
  lock.unlock();
  if (!posted.bytes.empty()) std::memcpy(call.output.bytes.data(), posted.bytes.data(), posted.bytes.size());
}

}  // namespace droptest::comm
