// SPDX-License-Identifier: Apache-2.0
#include "models/pipeline/pipeline_program.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "models/pipeline/schedule_timing.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

using Kind = PipelineStep::Kind;
using MicroBatchOfStage = std::pair<int, int>;

/// The difference between a stage and the next one in the direction of the action.
int direction(const Action& action) { return action.is_forward() ? 1 : -1; }

/// Identity of a delivery: its user, and whether it was sent past a stage.
using Identity = std::tuple<int, bool, int, bool>;
Identity identity(const Action& user, bool is_past) {
  return {user.stage, user.is_forward(), user.micro_batch, is_past};
}

/// A step at its place in a linear order of all ranks' steps.
struct Event {
  double time = 0;
  Kind kind = Kind::kCompute;
  int rank = 0;
  PipelineStep step;
  bool ends_micro_batch = false;  ///< the stage does not need the slot afterwards

  /// At equal times, results come before actions that begin, and receives before computations.
  int order_at_its_time() const { return kind == Kind::kSend ? 0 : (kind == Kind::kReceive ? 1 : 2); }
};

/// Gives the micro-batches of one rank's stages their slots.
class Slots {
 public:
  explicit Slots(std::size_t stages) : free_(stages), counts_(stages) {}

  /// The slot of the micro-batch; takes a free one if it has none yet.
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

/// A simulation of a program in which sends wait for their receives.
class Rehearsal {
 public:
  explicit Rehearsal(const PipelineProgram& program) : program_(program), at_(program.ranks.size()) {}

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
  using Pair = std::pair<int, int>;  // source, destination

  bool take(std::size_t r, const PipelineStep& step) {
    const int rank = static_cast<int>(r);
    switch (step.kind) {
      case Kind::kReceive:
        occupy(r, step);
        messages_[{step.peer, rank}].push_back(step);
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
    const int from = action.stage - direction(action);
    const bool needs = action.kind != Action::Kind::kWeightGradient && from >= 0 && from < program_.stages();
    if (needs && !ready_.contains(identity(action, false))) return false;
    if (needs && program_.has_substitute(action) && !ready_.contains(identity(action, true))) return false;
    occupy(r, step);
    for (const Delivery& delivery : program_.deliveries(action)) {
      if (program_.rank_of(delivery.user.stage) != static_cast<int>(r)) continue;
      ready_.insert(identity(delivery.user, delivery.past >= 0));
    }
    if (action.ends_micro_batch()) occupants_.erase({action.stage, step.slot});
    return true;
  }

  bool send(std::size_t r, const PipelineStep& step) {
    const std::vector<Delivery> all = program_.deliveries(step.action);
    const auto meant = std::find_if(all.begin(), all.end(), [&](const Delivery& one) {
      return one.past == step.past && program_.rank_of(one.user.stage) == step.peer;
    });
    if (meant == all.end()) fail(r, "\"" + step.text() + "\": no stage needs this result");
    const Identity sends = identity(meant->user, step.is_past());
    auto& messages = messages_[{static_cast<int>(r), step.peer}];
    std::size_t& sent = sent_[{static_cast<int>(r), step.peer}];
    if (sent == messages.size()) return false;
    const PipelineStep& expected = messages[sent];
    if (identity(expected.action, expected.is_past()) != sends) {
      fail(r, "\"" + step.text() + "\": rank " + std::to_string(step.peer) + " expects the input of \"" +
                  expected.action.text() + "\"" + (expected.is_past() ? " from before the last stage" : "") +
                  " instead");
    }
    ++sent;
    ready_.insert(sends);
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
  std::vector<std::size_t> at_;
  std::map<Pair, std::vector<PipelineStep>> messages_;  // in the order in which receivers expect them
  std::map<Pair, std::size_t> sent_;
  std::set<Identity> ready_;
  std::map<std::pair<int, int>, int> occupants_;  // micro-batch in each (stage, slot)
};

}  // namespace

std::string PipelineStep::text() const {
  const std::string beyond = is_past() ? " past stage " + std::to_string(past) : "";
  switch (kind) {
    case Kind::kReceive:
      return "receive for " + action.text() + " from rank " + std::to_string(peer) + beyond;
    case Kind::kSend:
      return "send of " + action.text() + " to rank " + std::to_string(peer) + beyond;
    case Kind::kCompute:
      break;
  }
  return action.text();
}

std::vector<Delivery> PipelineProgram::deliveries(const Action& action) const {
  if (!action.is_forward() && !action.makes_input_gradient()) return {};
  const auto has = [&](int stage) { return stage >= 0 && stage < stages(); };
  const int next = action.stage + direction(action);
  const int second = next + direction(action);
  const auto user = [&](int stage) {
    return Action{stage, action.is_forward() ? Action::Kind::kForward : Action::Kind::kBackward, action.micro_batch};
  };
  if (!has(next)) return {};
  // A substitute arrives before the lost elements that it fills, because receives may complete in the order of their
  // starts.
  std::vector<Delivery> result;
  const bool is_first = !has(action.stage - direction(action));
  if (is_first && has_substitute(user(next))) result.push_back({user(next), action.stage});
  result.push_back({user(next)});
  if (has(second) && has_substitute(user(second))) result.push_back({user(second), next});
  return result;
}

bool PipelineProgram::has_substitute(const Action& action) const {
  const int from = action.stage - direction(action);
  return sent_past.of(action) && from >= 0 && from < stages() && rank_of(from) != rank_of(action.stage);
}

PipelineProgram make_program(const PipelineSchedule& schedule, const SentPast& sent_past) {
  PipelineProgram program;
  program.rank_of_stage = schedule.rank_of_stage();
  program.sent_past = sent_past;
  const ScheduleTiming timing = time_schedule(schedule, {});
  std::vector<Event> events;
  for (std::size_t r = 0; r < timing.ranks.size(); ++r) {
    const int rank = static_cast<int>(r);
    for (const TimedAction& timed : timing.ranks[r]) {
      events.push_back({timed.begin, Kind::kCompute, rank, {Kind::kCompute, timed.action}});
      std::size_t last = events.size() - 1;
      for (const Delivery& delivery : program.deliveries(timed.action)) {
        const int to = program.rank_of(delivery.user.stage);
        if (to == rank) continue;
        events.push_back({timed.begin, Kind::kReceive, to, {Kind::kReceive, delivery.user, rank, 0, delivery.past}});
        last = events.size();
        events.push_back({timed.end, Kind::kSend, rank, {Kind::kSend, timed.action, to, 0, delivery.past}});
      }
      events[last].ends_micro_batch = timed.action.ends_micro_batch();
    }
  }
  // Each step comes after the steps that it waits for, so a rank that takes its steps in this order waits for no later
  // step.
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::pair(a.time, a.order_at_its_time()) < std::pair(b.time, b.order_at_its_time());
  });

  const std::size_t stages = program.rank_of_stage.size();
  program.ranks.resize(schedule.ranks.size());
  program.slot_of.assign(stages, std::vector<int>(static_cast<std::size_t>(schedule.micro_batches())));
  Slots slots(stages);
  for (Event& event : events) {
    const Action& action = event.step.action;
    event.step.slot = slots.of(action);
    program.slot_of[static_cast<std::size_t>(action.stage)][static_cast<std::size_t>(action.micro_batch)] =
        event.step.slot;
    program.ranks[static_cast<std::size_t>(event.rank)].push_back(event.step);
    if (event.kind == Kind::kCompute) {
      for (const Delivery& delivery : program.deliveries(action)) {
        if (program.rank_of(delivery.user.stage) == event.rank) slots.of(delivery.user);  // takes the result's slot
      }
    }
    if (event.ends_micro_batch) slots.give_back(action);
  }
  for (std::size_t s = 0; s < stages; ++s) program.slots.push_back(slots.count(s));
  return program;
}

void validate(const PipelineProgram& program) { Rehearsal(program).run(); }

}  // namespace droptest::models
