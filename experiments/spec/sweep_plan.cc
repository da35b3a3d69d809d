// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/sweep_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "experiments/spec/json_text.h"
#include "experiments/spec/schema.h"
#include "experiments/spec/schema_checker.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

/// Members that are set together; each position is one value for every pointer.
struct Axis {
  std::vector<std::string> pointers;
  std::vector<std::vector<std::string>> tokens;
  std::vector<const json*> lists;
  std::size_t length = 0;
};

class Planner {
 public:
  explicit Planner(const Spec& spec) : spec_(spec) {}

  SweepPlan plan() {
    const json& document = spec_.document;
    require_valid(SchemaKind::kSpec, document, spec_.where);
    const json complete = schema_of(SchemaKind::kSpec).with_defaults(document);
    base_ = document;
    for (const char* several : {"sweep", "repeat", "search"}) base_.erase(several);
    seeds_ = complete.contains("repeat") ? complete["repeat"]["seeds"].get<std::uint64_t>() : 1;
    if (document.contains("sweep")) {
      find_axes("zip");
      find_axes("cross");
    }
    count_runs();
    if (!violations_.empty()) throw_violations(violations_, spec_.where);
    SweepPlan plan;
    plan.name = complete["name"].get<std::string>();
    plan.description = complete["description"].get<std::string>();
    plan.spec = document;
    for (std::uint64_t point = 0; point < points_; ++point) resolve_point(point);
    if (!failures_.empty()) throw_failures();
    for (std::uint64_t repeat = 0; repeat < seeds_; ++repeat) {
      for (const PlannedRun& point : resolved_) add_run(plan, point, repeat);
    }
    return plan;
  }

 private:
  void find_axes(const std::string& kind) {
    const json& sweep = spec_.document["sweep"];
    if (!sweep.contains(kind)) return;
    Axis together;
    for (const auto& [pointer, values] : sweep[kind].items()) {
      const std::string place = child_pointer("/sweep/" + kind, pointer);
      std::vector<std::string> tokens;
      try {
        tokens = pointer_tokens(pointer, spec_.where + ": " + place);
      } catch (const ConfigError&) {
        violations_.push_back({place, "got the key " + quote_json(pointer) + ", want a JSON pointer"});
        continue;
      }
      const std::string reason = schema_of(SchemaKind::kSpec).unknown_pointer(tokens);
      if (!reason.empty()) {
        violations_.push_back({place, reason});
        continue;
      }
      if (tokens[0] == "sweep" || tokens[0] == "repeat" || tokens[0] == "search" || !changes_results(pointer)) {
        violations_.push_back({place, "cannot be swept: it changes no result"});
        continue;
      }
      if (!used_.insert(pointer).second) {
        violations_.push_back({place, "is in both zip and cross; want it in one of them"});
        continue;
      }
      if (kind == "cross") {
        axes_.push_back({{pointer}, {tokens}, {&values}, values.size()});
        continue;
      }
      if (!together.lists.empty() && values.size() != together.length) {
        violations_.push_back({place, "got " + std::to_string(values.size()) + " values, want " +
                                          std::to_string(together.length) + " as " + together.pointers[0] + " has"});
        continue;
      }
      together.length = values.size();
      together.pointers.push_back(pointer);
      together.tokens.push_back(tokens);
      together.lists.push_back(&values);
    }
    if (!together.lists.empty()) axes_.push_back(std::move(together));
  }

  void count_runs() {
    points_ = 1;
    for (const Axis& axis : axes_) points_ = std::min(points_ * axis.length, kMaxRuns + 1);
    if (points_ * seeds_ > kMaxRuns) {
      violations_.push_back({"/sweep", "asks for more than " + std::to_string(kMaxRuns) + " runs"});
    }
  }

  /// Resolves one point with the first seed.
  void resolve_point(std::uint64_t point) {
    // The last axis varies fastest. The map's order sets an outer member before a member of it.
    std::map<std::string, std::pair<const std::vector<std::string>*, const json*>> settings;
    for (std::size_t a = axes_.size(); a-- > 0;) {
      const Axis& axis = axes_[a];
      const std::uint64_t position = point % axis.length;
      point /= axis.length;
      for (std::size_t i = 0; i < axis.pointers.size(); ++i) {
        settings[axis.pointers[i]] = {&axis.tokens[i], &axis.lists[i]->at(position)};
      }
    }
    PlannedRun planned;
    planned.point = json::object();
    json document = base_;
    try {
      for (const auto& [pointer, setting] : settings) {
        planned.point[pointer] = *setting.second;
        set_member(document, *setting.first, *setting.second, spec_.where + ": " + pointer);
      }
      planned.run = resolve(document, spec_.where);
      const std::uint64_t seed = planned.run.config.seed;
      if (seed + (seeds_ - 1) < seed) {
        throw ConfigError(spec_.where + ": /repeat/seeds: got " + std::to_string(seeds_) + ", want at most " +
                          std::to_string(std::uint64_t{0} - seed) + " from seed " + std::to_string(seed));
      }
      resolved_.push_back(std::move(planned));
    } catch (const ConfigError& error) {
      Failure& failure = failures_[error.what()];
      if (failure.points++ == 0) failure.first = quote_json(planned.point, 300);
    }
  }

  void add_run(SweepPlan& plan, const PlannedRun& point, std::uint64_t repeat) {
    PlannedRun planned = point;
    planned.seed = point.run.config.seed + repeat;
    if (repeat > 0) reseed(planned.run, planned.seed);
    planned.same_as = by_id_.try_emplace(planned.run.run_id, plan.runs.size()).first->second;
    plan.runs.push_back(std::move(planned));
  }

  /// A message that every point shares is about the spec; any other names the first point that has it.
  [[noreturn]] void throw_failures() const {
    std::string text;
    for (const auto& [message, failure] : failures_) {
      text += (text.empty() ? "" : "\n") + message;
      if (failure.points < points_) text += " (at point " + failure.first + ")";
    }
    throw ConfigError(text);
  }

  struct Failure {
    std::uint64_t points = 0;
    std::string first;
  };

  const Spec& spec_;
  json base_;
  std::uint64_t seeds_ = 1;
  std::uint64_t points_ = 1;
  std::vector<Axis> axes_;
  std::vector<PlannedRun> resolved_;  ///< a run of each point
  std::set<std::string> used_;
  std::vector<Violation> violations_;
  std::map<std::string, Failure> failures_;
  std::unordered_map<std::string, std::size_t> by_id_;
};

}  // namespace

SweepPlan plan_sweep(const Spec& spec) { return Planner(spec).plan(); }

}  // namespace droptest::experiments
