// SPDX-License-Identifier: Apache-2.0
#include "models/pipeline/pipeline_program.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "models/pipeline/schedule_timing.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

using Kind = PipelineStep::Kind;
using MicroBatchOfStage = std::pair<int, int>;

/// The action that needs the result of this one as its input; absent: none does. Its kind is kForward or kBackward.
std::optional<Action> user_of(const Action& action, int stages) {
  const int to = action.is_forward() ? action.stage + 1 : action.stage - 1;
  const bool has_result = action.is_forward() || action.makes_input_gradient();
  if (!has_result || to < 0 || to == stages) return std::nullopt;
  return Action{to, action.is_forward() ? Action::Kind::kForward : Action::Kind::kBackward, action.micro_batch};
}

/// Identity of a message: its user.
std::tuple<int, bool, int> identity(const Action& action) {
  return {action.stage, action.is_forward(), action.micro_batch};
}

/// A step at its place in a linear order of all ranks' steps.
struct Event {
  double time = 0;
  Kind kind = Kind::kCompute;
  int rank = 0;
  PipelineStep step;

  /// Results are there before what begins at that time, and receives start before computations.
  int order_at_its_time() const { return kind == Kind::kSend ? 0 : (kind == Kind::kReceive ? 1 : 2); }
};

/// Gives the micro-batches of one rank's stages their slots.
class Slots {
 public:
  explicit Slots(std::size_t stages) : free_(stages), counts_(stages) {}

  /// Taken where the micro-batch has none yet.
  int of(const Action& action) {
    const auto [held, is_new] = held_.try_emplace({action.stage, action.micro_batch}, 0);
    if (!is_new) return held->second;
    const auto s = static_cast<std::size_t>(action.stage);
    if (free_[s].empty()) return held->second = counts_[s]++;
    held->second = *free_[s].begin();
    free_[s].erase(free_[s].begin());
    return held->second;
  }
  void give_back(const Action& action) {
    const auto held = held_.find({action.stage, action.micro_batch});
    free_[static_cast<std::size_t>(action.stage)].insert(held->second);
    held_.erase(held);
  }
  int count(std::size_t stage) const { return counts_[stage]; }

 private:
  std::vector<std::set<int>> free_;
  std::vector<int> counts_;
  std::map<MicroBatchOfStage, int> held_;
};

[[noreturn]] void fail(std::size_t rank, const std::string& what) {
  throw ConfigError("pipeline program: rank " + std::to_string(rank) + ": " + what);
}

/// The course of a program where sends wait for their receives.
class Rehearsal {
 public:
  explicit Rehearsal(const PipelineProgram& program)
      : program_(program), stages_(static_cast<int>(program.slots.size())), at_(program.ranks.size()) {
    for (std::size_t r = 0; r < program.ranks.size(); ++r) {
      for (const PipelineStep& step : program.ranks[r]) rank_of_[step.action.stage] = static_cast<int>(r);
    }
  }

  void run() {
    for (bool moves = true; moves;) {
      moves = false;
      for (std::size_t r = 0; r < at_.size(); ++r) {
        while (at_[r] < program_.ranks[r].size() && take(r, program_.ranks[r][at_[r]])) {
          ++at_[r];
          moves = true;
        }
      }
    }
    std::string waiting;
    for (std::size_t r = 0; r < at_.size(); ++r) {
      if (at_[r] == program_.ranks[r].size()) continue;
      waiting += (waiting.empty() ? "rank " : ", rank ") + std::to_string(r) + " at \"" +
                 program_.ranks[r][at_[r]].text() + "\"";
    }
    if (!waiting.empty()) throw ConfigError("pipeline program: ranks wait for each other: " + waiting);
  }

 private:
  struct Message {
    Action user;
    bool sent = false;
  };
  using Pair = std::pair<int, int>;  // source, destination

  bool take(std::size_t r, const PipelineStep& step) {
    const int rank = static_cast<int>(r);
    switch (step.kind) {
      case Kind::kReceive:
        occupy(r, step);
        messages_[{step.peer, rank}].push_back({step.action});
        return true;
      case Kind::kCompute:
        return compute(r, step);
      case Kind::kSend:
        return send(r, step);
    }
    throw CheckError("an unknown kind of step");
  }

  bool compute(std::size_t r, const PipelineStep& step) {
    const Action& action = step.action;
    const int from = action.is_forward() ? action.stage - 1 : action.stage + 1;
    const bool needs = action.kind != Action::Kind::kWeightGradient && from >= 0 && from < stages_;
    if (needs && !ready_.contains(identity(action))) return false;
    occupy(r, step);
    const std::optional<Action> user = user_of(action, stages_);
    if (user && rank_of_.at(user->stage) == static_cast<int>(r)) ready_.insert(identity(*user));
    if (action.ends_micro_batch()) occupants_.erase({action.stage, step.slot});
    return true;
  }

  bool send(std::size_t r, const PipelineStep& step) {
    const std::optional<Action> user = user_of(step.action, stages_);
    if (!user) fail(r, "\"" + step.text() + "\": no stage needs this result");
    auto& messages = messages_[{static_cast<int>(r), step.peer}];
    std::size_t& sent = sent_[{static_cast<int>(r), step.peer}];
    if (sent == messages.size()) return false;
    const Action& expected = messages[sent].user;
    if (identity(expected) != identity(*user)) {
      fail(r, "\"" + step.text() + "\": rank " + std::to_string(step.peer) + " expects the input of \"" +
                  expected.text() + "\" instead");
    }
    ++sent;
    ready_.insert(identity(*user));
    return true;
  }

  void occupy(std::size_t r, const PipelineStep& step) {
    const auto s = static_cast<std::size_t>(step.action.stage);
    if (step.slot < 0 || step.slot >= program_.slots[s]) {
      fail(r, "\"" + step.text() + "\": got slot " + std::to_string(step.slot) + " of " +
                  std::to_string(program_.slots[s]));
    }
    const auto [held, is_new] = occupants_.try_emplace({step.action.stage, step.slot}, step.action.micro_batch);
    if (held->second != step.action.micro_batch) {
      fail(r, "\"" + step.text() + "\": slot " + std::to_string(step.slot) + " of the stage still has micro-batch " +
                  std::to_string(held->second));
    }
  }

  const PipelineProgram& program_;
  int stages_;
  std::map<int, int> rank_of_;
  std::vector<std::size_t> at_;
  std::map<Pair, std::vector<Message>> messages_;
  std::map<Pair, std::size_t> sent_;
  std::set<std::tuple<int, bool, int>> ready_;
  std::map<std::pair<int, int>, int> occupants_;  // micro-batch by stage and slot
};

}  // namespace

std::string PipelineStep::text() const {
  switch (kind) {
    case Kind::kReceive:
      return "receive for " + action.text() + " from rank " + std::to_string(peer);
    case Kind::kSend:
      return "send of " + action.text() + " to rank " + std::to_string(peer);
    case Kind::kCompute:
      break;
  }
  return action.text();
}

PipelineProgram make_program(const PipelineSchedule& schedule) {
  const std::vector<int> placement = schedule.rank_of_stage();
  const int stages = schedule.stages();
  const ScheduleTiming timing = time_schedule(schedule, {});
  std::vector<Event> events;
  for (std::size_t r = 0; r < timing.ranks.size(); ++r) {
    const int rank = static_cast<int>(r);
    for (const TimedAction& timed : timing.ranks[r]) {
      events.push_back({timed.begin, Kind::kCompute, rank, {Kind::kCompute, timed.action}});
      const std::optional<Action> user = user_of(timed.action, stages);
      if (!user) continue;
      const int to = placement[static_cast<std::size_t>(user->stage)];
      if (to == rank) continue;
      events.push_back({timed.begin, Kind::kReceive, to, {Kind::kReceive, *user, rank}});
      events.push_back({timed.end, Kind::kSend, rank, {Kind::kSend, timed.action, to}});
    }
  }
  // Each step comes behind those that it waits for. So a rank that takes its steps in this order waits for no later
  // one.
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::pair(a.time, a.order_at_its_time()) < std::pair(b.time, b.order_at_its_time());
  });

  PipelineProgram program;
  program.ranks.resize(schedule.ranks.size());
  program.slot_of.assign(placement.size(), std::vector<int>(static_cast<std::size_t>(schedule.micro_batches())));
  Slots slots(placement.size());
  for (Event& event : events) {
    const Action& action = event.step.action;
    event.step.slot = slots.of(action);
    program.slot_of[static_cast<std::size_t>(action.stage)][static_cast<std::size_t>(action.micro_batch)] =
        event.step.slot;
    program.ranks[static_cast<std::size_t>(event.rank)].push_back(event.step);
    if (event.kind == Kind::kReceive) continue;
    const std::optional<Action> user = user_of(action, stages);
    const bool is_sent = user && placement[static_cast<std::size_t>(user->stage)] != event.rank;
    if (user && !is_sent) slots.of(*user);  // the result goes there
    if (action.ends_micro_batch() && (event.kind == Kind::kSend || !is_sent)) slots.give_back(action);
  }
  for (std::size_t s = 0; s < placement.size(); ++s) program.slots.push_back(slots.count(s));
  return program;
}

void validate(const PipelineProgram& program) { Rehearsal(program).run(); }

}  // namespace droptest::models
