// SPDX-License-Identifier: Apache-2.0
// The search of the ranks of a mesh for one common cause of a failure, over the launch store.
#include <charconv>
#include <set>

#include "comm/gloo/gloo_mesh.h"

namespace droptest::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPoll{20};       ///< interval of looks at the store
constexpr milliseconds kSettle{300};    ///< longest time between a rank's closed connections and its cause in the store
constexpr milliseconds kAnswer{1000};   ///< longest time for the answer of a living rank
constexpr milliseconds kResolve{2500};  ///< longest wait for the rank that searches the culprit of a stall

constexpr std::string_view kFailureKey = "failure";
constexpr std::string_view kStallKey = "stall";

std::string key_of(std::string_view kind, int rank) { return std::string(kind) + "/" + std::to_string(rank); }

int number_at_start(const std::string& text) {
  int number = -1;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// The rest of a text after its first line.
std::string after_line(const std::string& text) {
  const std::size_t end = text.find('\n');
  return end == std::string::npos ? "" : text.substr(end + 1);
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string encode(const Failure& failure) {
  return std::to_string(failure.reporter) + "\n" + failure.reporter_at + "\n" + failure.cause;
}

Failure decode(const std::string& text) {
  const std::string rest = after_line(text);
  return {number_at_start(text), first_line(rest), after_line(rest)};
}

}  // namespace

std::string without_gloo_place(const std::string& message) {
  const std::size_t end = message.find("] ");
  return message.starts_with('[') && end != std::string::npos ? message.substr(end + 2) : message;
}

bool GlooMesh::stall_is_asked_about() { return store_->get(std::string(kStallKey)).has_value(); }

std::optional<Failure> GlooMesh::posted_failure() {
  const std::optional<std::string> text = store_->get(std::string(kFailureKey));
  if (!text) return std::nullopt;
  return decode(*text);
}

// The failure behind the loss of the store, if a rank's process held it.
std::optional<Failure> GlooMesh::lost_rank() const {
  const std::optional<std::string> cause = store_->lost_rank();
  if (!cause) return std::nullopt;
  return Failure{rank_, "", *cause};
}

// Writes `found` to the store, unless a failure is there already; returns the failure in the store.
Failure GlooMesh::settle(const Failure& found) {
  if (store_ == nullptr) return found;
  try {
    if (store_->set_if_absent(std::string(kFailureKey), encode(found))) return found;
    if (const auto posted = posted_failure()) return *posted;
  } catch (const std::exception&) {
    // The store is gone: this rank reports its own finding.
  }
  return found;
}

void GlooMesh::post_status() {
  std::string status;
  {
    const std::lock_guard lock(mutex_);
    if (status_posted_) return;
    status_posted_ = true;
    status = std::to_string(waits_.empty() ? -1 : waits_.front().transfer->peer_) + "\n";
    if (!waits_.empty()) {
      status += describe(waits_.front().call);
    } else if (!calls_.empty()) {
      status += describe(calls_.begin()->second);
    } else if (activity_) {
      status += activity_();
    }
  }
  try {
    store_->set_if_absent(key_of("status", rank_), status);
  } catch (const std::exception&) {
    // The rank that asks takes silence for an answer.
  }
}

void GlooMesh::report_activity(std::function<std::string()> activity) {
  const std::lock_guard lock(mutex_);
  activity_ = std::move(activity);
}

// Every living rank has a thread that sees the question. The first rank to ask judges the answers; the others wait for
// its judgement.
GlooMesh::Answers GlooMesh::ask_all() {
  const bool first = store_->set_if_absent(std::string(kStallKey), std::to_string(rank_));
  post_status();
  const auto deadline = clock_.now() + (first ? kAnswer : kResolve);
  Answers answers{std::vector<std::optional<std::string>>(static_cast<std::size_t>(size_)), std::nullopt};
  for (bool complete = false; !complete && clock_.now() < deadline;) {
    answers.posted = posted_failure();
    if (answers.posted) return answers;
    complete = first;
    for (int r = 0; r < size_; ++r) {
      auto& answer = answers.of_rank[static_cast<std::size_t>(r)];
      if (!answer) answer = store_->get(key_of("status", r));
      complete = complete && answer.has_value();
    }
    if (!complete) clock_.sleep_for(kPoll);
  }
  return answers;
}

// A peer's connection is closed. The peer has died, or it has left, or it gave up because of a failure. In the last
// case the failure is in the store already, and is the cause.
Failure GlooMesh::connection_lost(int peer, const std::string& reason) {
  const std::string name = "rank " + std::to_string(peer);
  std::string cause = name + " died or lost its connection: " + without_gloo_place(reason);
  std::string at;
  {
    const std::lock_guard lock(mutex_);
    if (calls_.contains(std::this_thread::get_id())) {
      const Call call = call_of_this_thread();
      at = operation_name(call.operation);
      cause += " " + call_context(call);
    }
  }
  try {
    const auto deadline = clock_.now() + kSettle;
    while (clock_.now() < deadline) {
      if (const auto posted = posted_failure()) return *posted;
      if (store_->get(key_of("left", peer))) {
        cause = name + " has left the group without taking part";
        break;
      }
      clock_.sleep_for(kPoll);
    }
  } catch (const std::exception&) {
    // This rank knows only the closed connection, because the store is gone. The peer may have given up because the
    // store's rank died.
    if (const auto lost = lost_rank()) return {rank_, at, lost->cause};
  }
  return {rank_, at, cause};
}

// There was no data for the whole timeout. The peer may itself wait for a third rank, so all ranks are asked for their
// activity. The culprit is the rank at the end of the chain: it does not answer (dead, stopped, cut off), or is in no
// call.
Failure GlooMesh::stalled(int peer) {
  Call call;
  {
    const std::lock_guard lock(mutex_);
    call = call_of_this_thread();
  }
  const std::string where(operation_name(call.operation));
  const std::string no_data = " for " + std::to_string(timeout_.count()) + " ms " + call_context(call);
  try {
    const Answers answers = ask_all();
    if (answers.posted) return *answers.posted;
    std::set<int> seen = {rank_};
    std::string chain;
    for (int suspect = peer;;) {
      const std::string name = "rank " + std::to_string(suspect);
      const auto& answer = answers.of_rank[static_cast<std::size_t>(suspect)];
      if (!answer) {
        return {rank_, where,
                "no data from " + name + no_data + ", and it does not answer; is " + name + " alive?" + chain};
      }
      const int next = number_at_start(*answer);
      if (next < 0) {
        return {rank_, where, "no data from " + name + no_data + "; it lives, but has not called" + chain};
      }
      chain += "; " + name + " is in " + after_line(*answer) + " and waits for rank " + std::to_string(next);
      if (!seen.insert(suspect).second || next == rank_) {
        return {rank_, where,
                "no data from rank " + std::to_string(peer) + no_data + ": the ranks wait for each other" + chain};
      }
      suspect = next;
    }
  } catch (const std::exception&) {
    // No rank can be asked without the store: the culprit is the rank that held it, or else the peer that this rank
    // waits for.
    if (const auto lost = lost_rank()) return {rank_, where, lost->cause};
  }
  const std::string name = "rank " + std::to_string(peer);
  return {rank_, where, "no data from " + name + no_data + "; is " + name + " alive?"};
}

GlooMesh::Roll GlooMesh::call_roll() {
  if (size_ == 1) return {};
  const Answers answers = ask_all();
  if (answers.posted) return {{}, {}, {}, "", answers.posted};
  Roll roll;
  for (int r = 0; r < size_; ++r) {
    const auto& answer = answers.of_rank[static_cast<std::size_t>(r)];
    const std::string activity = answer ? after_line(*answer) : "";
    if (!answer) {
      (store_->get(key_of("left", r)) ? roll.left : roll.silent).push_back(r);
    } else if (activity.empty()) {
      roll.idle.push_back(r);
    } else {
      roll.doing += (roll.doing.empty() ? "rank " : "; rank ") + std::to_string(r) + ": " + activity;
    }
  }
  return roll;
}

}  // namespace droptest::comm
