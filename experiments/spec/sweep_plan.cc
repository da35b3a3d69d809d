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
  Planner(const Spec& spec, FileHashes* files) : spec_(spec), files_(files) {}

  SweepPlan plan() {
    const json& document = spec_.document;
    require_valid(SchemaKind::kSpec, document, spec_.where);
    const json complete = schema_of(SchemaKind::kSpec).with_defaults(document);
    base_ = document;
    for (const char* several : {"sweep", "repeat", "search"}) base_.erase(several);
    find_repeats();
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
    plan.points = resolved_.size();
    collect_warnings(plan);
    for (const Seeds& later : repeats()) {
      for (const PlannedRun& point : resolved_) add_run(plan, point, later);
    }
    return plan;
  }

 private:
  void find_repeats() {
    const json repeat = spec_.document.value("repeat", json::object());
    together_ = repeat.value("seeds", std::uint64_t{1});
    repeats_ = {repeat.value("weights", std::uint64_t{1}), repeat.value("data", std::uint64_t{1}),
                repeat.value("network", std::uint64_t{1})};
    if (repeat.contains("seeds") && repeat.size() > 1) {
      violations_.push_back({"/repeat", "got seeds beside the repeats of single seeds, want one of the two"});
    }
  }

  /// How far each repeat is from the spec's seeds.
  std::vector<Seeds> repeats() const {
    std::vector<Seeds> all;
    for (std::uint64_t i = 0; i < together_; ++i) {
      for (std::uint64_t weights = 0; weights < repeats_.weights; ++weights) {
        for (std::uint64_t data = 0; data < repeats_.data; ++data) {
          for (std::uint64_t network = 0; network < repeats_.network; ++network) {
            all.push_back({i + weights, i + data, i + network});
          }
        }
      }
    }
    return all;
  }

  /// The last of the seeds that begin with `first` is a number.
  void check_last(const char* name, std::uint64_t first, std::uint64_t count) const {
    if (first + (count - 1) >= first) return;
    throw ConfigError(spec_.where + ": /repeat/" + (together_ > 1 ? "seeds" : name) + ": got " + std::to_string(count) +
                      ", want at most " + std::to_string(std::uint64_t{0} - first) + " from seed " +
                      std::to_string(first));
  }

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
    // Far below 2^64: each factor is at most 10000 or so.
    if (points_ * together_ * repeats_.weights * repeats_.data * repeats_.network > kMaxRuns) {
      violations_.push_back({"/sweep", "asks for more than " + std::to_string(kMaxRuns) + " runs"});
    }
  }

  /// Resolves one point with the first seeds.
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
      planned.run = resolve(document, spec_.where, files_);
      const Seeds& first = planned.run.config.seeds;
      check_last("weights", first.weights, together_ * repeats_.weights);
      check_last("data", first.data, together_ * repeats_.data);
      check_last("network", first.network, together_ * repeats_.network);
      resolved_.push_back(std::move(planned));
    } catch (const ConfigError& error) {
      Failure& failure = failures_[error.what()];
      if (failure.points++ == 0) failure.first = quote_json(planned.point, 300);
    }
  }

  void collect_warnings(SweepPlan& plan) {
    for (const PlannedRun& point : resolved_) {
      for (const Warning& warning : point.run.warnings) {
        const auto known = std::find_if(plan.warnings.begin(), plan.warnings.end(), [&warning](const PlanWarning& one) {
          return one.warning.pointer == warning.pointer && one.warning.message == warning.message;
        });
        if (known == plan.warnings.end()) {
          plan.warnings.push_back({warning, 1});
        } else {
          ++known->points;
        }
        if (spec_.document.contains("sweep") || warning.about != Warning::About::kOneClass) continue;
        violations_.push_back({warning.pointer, warning.message});
      }
    }
    if (!violations_.empty()) throw_violations(violations_, spec_.where);
  }

  void add_run(SweepPlan& plan, const PlannedRun& point, const Seeds& later) {
    PlannedRun planned = point;
    const Seeds& first = point.run.config.seeds;
    planned.seeds = {first.weights + later.weights, first.data + later.data, first.network + later.network};
    if (planned.seeds != first) reseed(planned.run, planned.seeds);
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
  FileHashes* files_;
  json base_;
  std::uint64_t together_ = 1;  ///< repeats of all seeds; 1 where those of single seeds are given
  Seeds repeats_;               ///< how many of each
  std::uint64_t points_ = 1;
  std::vector<Axis> axes_;
  std::vector<PlannedRun> resolved_;  ///< a run of each point
  std::set<std::string> used_;
  std::vector<Violation> violations_;
  std::map<std::string, Failure> failures_;
  std::unordered_map<std::string, std::size_t> by_id_;
};

}  // namespace

std::size_t SweepPlan::same_runs() const {
  std::size_t same = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) same += runs[i].same_as != i ? 1 : 0;
  return same;
}

SweepPlan plan_sweep(const Spec& spec, FileHashes* files) { return Planner(spec, files).plan(); }

}  // namespace droptest::experiments
