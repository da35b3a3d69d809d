// SPDX-License-Identifier: Apache-2.0
#include "models/pipeline/schedule.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "models/pipeline/schedule_timing.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

using Kind = Action::Kind;

/// Source: Narayanan et al., SC 2021, section 2.2. A rank processes the micro-batches in rounds; each round goes
/// through the chunks in turn, in the backward direction from the last chunk.
struct Rounds {
  int rank, ranks, chunks, micro_batches;

  int round() const { return micro_batches / std::max(1, micro_batches / ranks); }
  int passes() const { return chunks * micro_batches; }
  Action pass(int i, Kind kind) const {
    const int chunk = i / round() % chunks;
    const int stage = (kind == Kind::kForward ? chunk : chunks - 1 - chunk) * ranks + rank;
    return {stage, kind, i / (round() * chunks) * round() + i % round()};
  }
};

/// Warm-up forward passes, then forward and backward passes in turn. `hop` is the number of forward passes by which a
/// rank is ahead of the next rank. `lag` is the number of backward passes for which a rank defers the weight gradients;
/// absent: it defers none.
std::vector<Action> depth_first(const Rounds& rounds, int hop, std::optional<int> lag) {
  const int all = rounds.passes();
  const int warm_up = std::min(all, (rounds.chunks - 1) * rounds.round() + hop * (rounds.ranks - 1 - rounds.rank));
  std::vector<Action> row;
  for (int i = 0; i < warm_up; ++i) row.push_back(rounds.pass(i, Kind::kForward));
  for (int i = 0; i < all; ++i) {
    if (warm_up + i < all) row.push_back(rounds.pass(warm_up + i, Kind::kForward));
    row.push_back(rounds.pass(i, lag ? Kind::kInputGradient : Kind::kBackward));
    if (lag && i >= *lag) row.push_back(rounds.pass(i - *lag, Kind::kWeightGradient));
  }
  if (lag) {
    for (int i = std::max(0, all - *lag); i < all; ++i) row.push_back(rounds.pass(i, Kind::kWeightGradient));
  }
  return row;
}

std::vector<Action> breadth_first(int rank, int ranks, int chunks, int micro_batches) {
  std::vector<Action> row;
  const auto add = [&](int chunk, Kind kind) {
    for (int m = 0; m < micro_batches; ++m) row.push_back({chunk * ranks + rank, kind, m});
  };
  for (int chunk = 0; chunk < chunks; ++chunk) add(chunk, Kind::kForward);
  for (int chunk = chunks; chunk-- > 0;) add(chunk, Kind::kBackward);
  return row;
}

[[noreturn]] void fail(int rank, const std::string& what) {
  throw ConfigError("pipeline schedule: rank " + std::to_string(rank) + ": " + what);
}

/// The actions of one micro-batch on a stage.
struct Passes {
  bool forward = false;
  bool input = false;
  bool weight = false;

  /// The reason why the action cannot come now; empty: it can.
  std::string add(const Action& action) {
    if (action.is_forward() ? forward : (action.makes_input_gradient() ? input : weight)) return "is there twice";
    if (action.is_forward()) {
      forward = true;
      return {};
    }
    if (!forward) return "comes before the forward pass";
    if (action.kind == Kind::kWeightGradient && !input) return "comes before the input's gradient";
    input = true;
    if (action.ends_micro_batch()) weight = true;
    return {};
  }
  bool all() const { return forward && input && weight; }
};

}  // namespace

std::string Action::text() const {
  return std::to_string(stage) + "FIWB"[static_cast<std::size_t>(kind)] + std::to_string(micro_batch);
}

int PipelineSchedule::stages() const {
  int last = -1;
  for (const auto& row : ranks) {
    for (const Action& action : row) last = std::max(last, action.stage);
  }
  return last + 1;
}

int PipelineSchedule::micro_batches() const {
  int last = -1;
  for (const auto& row : ranks) {
    for (const Action& action : row) last = std::max(last, action.micro_batch);
  }
  return last + 1;
}

std::vector<int> PipelineSchedule::rank_of_stage() const {
  std::vector<int> of_stage(static_cast<std::size_t>(stages()), -1);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (const Action& action : ranks[r]) of_stage[static_cast<std::size_t>(action.stage)] = static_cast<int>(r);
  }
  return of_stage;
}

void validate(const PipelineSchedule& schedule) {
  if (schedule.ranks.empty()) throw ConfigError("pipeline schedule: got no ranks, want at least one");
  const auto stages = static_cast<std::size_t>(schedule.stages());
  const auto micro_batches = static_cast<std::size_t>(schedule.micro_batches());
  // A wrong number in a file must not allocate all memory.
  std::size_t actions = 0;
  for (const auto& row : schedule.ranks) actions += row.size();
  if (stages > actions || micro_batches > actions) {
    throw ConfigError("pipeline schedule: got " + std::to_string(actions) + " actions of " + std::to_string(stages) +
                      " stages and " + std::to_string(micro_batches) + " micro-batches, want some of each");
  }
  const std::vector<int> placement = schedule.rank_of_stage();
  std::vector<std::vector<Passes>> seen(stages, std::vector<Passes>(micro_batches));
  for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
    const int rank = static_cast<int>(r);
    if (schedule.ranks[r].empty()) fail(rank, "got no actions, want those of at least one stage");
    for (const Action& action : schedule.ranks[r]) {
      const auto s = static_cast<std::size_t>(action.stage);
      if (placement[s] != rank) {
        fail(rank, "\"" + action.text() + "\": stage " + std::to_string(action.stage) + " is on rank " +
                       std::to_string(placement[s]) + " too, want each on one rank");
      }
      const std::string wrong = seen[s][static_cast<std::size_t>(action.micro_batch)].add(action);
      if (!wrong.empty()) fail(rank, "\"" + action.text() + "\" " + wrong);
    }
  }
  for (std::size_t s = 0; s < stages; ++s) {
    if (placement[s] < 0) {
      throw ConfigError("pipeline schedule: no rank has stage " + std::to_string(s) + " of " + std::to_string(stages));
    }
    for (std::size_t m = 0; m < micro_batches; ++m) {
      if (seen[s][m].all()) continue;
      const char* missing =
          seen[s][m].forward ? (seen[s][m].input ? "weight gradient" : "backward pass") : "forward pass";
      fail(placement[s], "micro-batch " + std::to_string(m) + " of " + std::to_string(micro_batches) + " has no " +
                             missing + " on stage " + std::to_string(s));
    }
  }
  time_schedule(schedule, {});
}

std::vector<int> peaks(const PipelineSchedule& schedule) {
  std::vector<int> of_ranks;
  for (const auto& row : schedule.ranks) {
    int now = 0;
    int most = 0;
    for (const Action& action : row) {
      if (action.is_forward()) most = std::max(most, ++now);
      if (action.ends_micro_batch()) --now;
    }
    of_ranks.push_back(most);
  }
  return of_ranks;
}

const std::vector<ScheduleKindName>& schedule_kinds() {
  static const std::vector<ScheduleKindName> kinds = {
      {ScheduleKind::kGpipe, "gpipe"},
      {ScheduleKind::kOneForwardOneBackward, "1f1b"},
      {ScheduleKind::kInterleaved, "interleaved"},
      {ScheduleKind::kZeroBubble, "zero_bubble"},
      {ScheduleKind::kRoundRobin, "round_robin"},
  };
  return kinds;
}

PipelineSchedule make_schedule(ScheduleKind kind, int ranks, int chunks, int micro_batches) {
  const std::string name =
      "pipeline schedule \"" + std::string(schedule_kinds()[static_cast<std::size_t>(kind)].name) + "\": ";
  const auto positive = [&](const char* what, int value) {
    if (value < 1) throw ConfigError(name + "got " + std::to_string(value) + " " + what + ", want at least 1");
  };
  positive("ranks", ranks);
  positive("chunks", chunks);
  positive("micro-batches", micro_batches);
  const bool one_chunk = kind == ScheduleKind::kGpipe || kind == ScheduleKind::kOneForwardOneBackward;
  if (one_chunk && chunks != 1) {
    throw ConfigError(name + "got " + std::to_string(chunks) + " chunks, want 1; several have \"" +
                      (kind == ScheduleKind::kGpipe ? "round_robin" : "interleaved") + "\"");
  }
  const bool in_rounds = kind == ScheduleKind::kInterleaved || kind == ScheduleKind::kZeroBubble;
  const int rounds = std::max(1, micro_batches / ranks);
  if (in_rounds && micro_batches % rounds != 0) {
    const auto fits = [&](int m) { return m % std::max(1, m / ranks) == 0; };
    int below = micro_batches;
    int above = micro_batches;
    while (!fits(below)) --below;
    while (!fits(above)) ++above;
    throw ConfigError(name + "got " + std::to_string(micro_batches) + " micro-batches on " + std::to_string(ranks) +
                      " ranks, which " + std::to_string(rounds) + " rounds do not divide, want for example " +
                      std::to_string(below) + " or " + std::to_string(above));
  }
  PipelineSchedule schedule;
  for (int rank = 0; rank < ranks; ++rank) {
    const Rounds of_rank{rank, ranks, chunks, micro_batches};
    switch (kind) {
      case ScheduleKind::kGpipe:
      case ScheduleKind::kRoundRobin:
        schedule.ranks.push_back(breadth_first(rank, ranks, chunks, micro_batches));
        break;
      case ScheduleKind::kOneForwardOneBackward:
        schedule.ranks.push_back(depth_first(of_rank, 1, std::nullopt));
        break;
      case ScheduleKind::kInterleaved:
        schedule.ranks.push_back(depth_first(of_rank, 2, std::nullopt));
        break;
      case ScheduleKind::kZeroBubble:
        schedule.ranks.push_back(depth_first(of_rank, 1, rank));
        break;
    }
  }
  return schedule;
}

}  // namespace droptest::models
