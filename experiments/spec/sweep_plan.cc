// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/sweep_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>
#include <utility>

#include "comm/json/json_text.h"
#include "comm/json/nearest_name.h"
#include "comm/json/schema_checker.h"
#include "experiments/schema/schema_kinds.h"
#include "experiments/spec/run_id.h"
#include "experiments/spec/search_plan.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using comm::quote_json;
using nlohmann::json;

/// Values of a swept member, and a label for each; empty: the value has none.
struct Values {
  std::vector<json> values;
  std::vector<std::string> labels;
};

/// Members that are set together; each position is one value for every pointer.
struct Axis {
  std::vector<std::string> pointers;
  std::vector<std::vector<std::string>> tokens;
  std::vector<Values> lists;
  std::size_t length = 0;
};

/// Rounds to an integer if the value differs from one by less than the error of its computation, which is far below
/// `unit`; else to six significant digits. So machines with another pow() give the same values.
double rounded(double value, double unit) {
  const double nearest = std::round(value);
  if (std::abs(value - nearest) <= 1e-9 * unit) return nearest + 0.0;  // no -0
  char text[32];
  std::snprintf(text, sizeof text, "%.5e", value);
  return std::strtod(text, nullptr);
}

/// {"linspace": [first, last, count]}, or logspace; the ends are exact. Throws: ConfigError, naming `place`.
std::vector<json> values_of_range(const json& range, const std::string& place) {
  const std::string kind = range.begin().key();
  const json& given = range.begin().value();
  const auto fail = [&](const std::string& want) {
    throw ConfigError(place + "/" + kind + ": got " + quote_json(given) + ", want " + want);
  };
  if (given.size() != 3) fail("first, last and count");
  const double first = given[0].get<double>();
  const double last = given[1].get<double>();
  const double count = given[2].get<double>();
  if (count != std::floor(count) || count < 2 || count > static_cast<double>(kMaxRuns)) {
    fail("an integer in [2, " + std::to_string(kMaxRuns) + "] as count");
  }
  if (kind == "logspace" && (first <= 0 || last <= 0)) {
    fail("first and last above 0: they are the values themselves, not their exponents");
  }
  const bool whole = given[0].is_number_integer() && given[1].is_number_integer();
  const auto steps = static_cast<std::uint64_t>(count) - 1;
  std::vector<json> values;
  for (std::uint64_t i = 0; i <= steps; ++i) {
    if (i == 0 || i == steps) {
      values.push_back(given[i == 0 ? 0 : 1]);
      continue;
    }
    const double part = static_cast<double>(i) / static_cast<double>(steps);
    const double exact = kind == "linspace" ? first * (1 - part) + last * part
                                            : std::exp(std::log(first) * (1 - part) + std::log(last) * part);
    const double value =
        rounded(exact, kind == "linspace" ? std::abs(last - first) / static_cast<double>(steps) : exact);
    const double before = values.back().get<double>();
    if (first < last ? value <= before || value >= last : value >= before || value <= last) {
      fail("steps that six significant digits tell apart, since values between the ends are rounded to them");
    }
    if (whole && value == std::floor(value) && std::abs(value) < 0x1p53) {
      values.push_back(static_cast<std::int64_t>(value));
    } else {
      values.push_back(value);
    }
  }
  return values;
}

/// Whether values of a list may share a label.
enum class Labels : std::uint8_t { kUnique, kShared };

/// Takes the labels off the values of a list. Throws: ConfigError, naming the place of the value.
Values values_of(const json& given, const std::string& place, Labels labels) {
  Values result;
  if (given.is_object()) {
    result.values = values_of_range(given, place);
    result.labels.resize(result.values.size());
    return result;
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    const json& one = given[i];
    if (!one.is_object() || !one.contains("label")) {
      result.values.push_back(one);
      result.labels.emplace_back();
      continue;
    }
    const std::string here = place + "/" + std::to_string(i);
    if (one.size() != 2 || !one.contains("value")) {
      throw ConfigError(here + ": got " + quote_json(one) + R"(, want {"label": TEXT, "value": VALUE})");
    }
    const json& label = one["label"];
    if (!label.is_string() || label.get_ref<const std::string&>().empty()) {
      throw ConfigError(here + "/label: got " + quote_json(label) + ", want text that is not empty");
    }
    const bool is_taken = std::find(result.labels.begin(), result.labels.end(), label) != result.labels.end();
    if (is_taken && labels == Labels::kUnique) {
      throw ConfigError(here + "/label: got " + quote_json(label) + ", which another value of this list has");
    }
    result.values.push_back(one["value"]);
    result.labels.push_back(label);
  }
  return result;
}

/// The value in the words of the schema, as a spec that has it at these tokens of its pointer: "bf16" is "bfloat16".
json with_words_of_specs(const comm::Schema& schema, const std::vector<std::string>& tokens, const json& value) {
  json spec = json::object();
  json* place = &spec;
  for (const std::string& token : tokens) place = &(*place)[token];
  *place = value;
  spec = schema.with_one_word(std::move(spec));
  place = &spec;
  for (const std::string& token : tokens) place = &(*place)[token];
  return *place;
}

class Planner {
 public:
  Planner(const Spec& spec, FileHashes* files, NumericsUse use) : spec_(spec), files_(files), use_(use) {}

  SweepPlan plan() {
    const json& document = spec_.document;
    violations_ = violations_of_spec(document);
    refuse_violations();
    const json complete = schema().with_defaults(document);
    base_ = document;
    for (const char* several : {"sweep", "repeat", "search"}) base_.erase(several);
    find_repeats();
    if (document.contains("sweep")) {
      find_axes("zip");
      find_axes("cross");
      find_best_over();
    }
    count_runs();
    refuse_violations();
    SweepPlan plan;
    plan.name = complete["name"].get<std::string>();
    plan.description = complete["description"].get<std::string>();
    plan.spec = document;
    plan.best_over = best_over_;
    plan.swept = swept();
    evaluation_tokens_ = complete.value("/validation/tokens"_json_pointer, json());
    resolve_points();
    plan.points = resolved_.size();
    collect_warnings(plan);
    const std::vector<Seeds> all = repeats();
    plan.runs.reserve(all.size() * resolved_.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      // Thousands of points are not kept twice.
      for (PlannedRun& point : resolved_) add_run(plan, i + 1 < all.size() ? point : std::move(point), all[i]);
    }
    return plan;
  }

 private:
  const comm::Schema& schema() const { return schema_of_spec(spec_.document); }

  void refuse_violations() const {
    try {
      comm::require_none(violations_, spec_.where);
    } catch (const ConfigError& error) {
      throw ConfigError(spec_.origins.with_files(error.what(), spec_.where));
    }
  }

  void find_repeats() {
    const json repeat = spec_.document.value("repeat", json::object());
    together_ = repeat.value("seeds", std::uint64_t{1});
    repeats_ = {repeat.value("weights", std::uint64_t{1}), repeat.value("data", std::uint64_t{1}),
                repeat.value("network", std::uint64_t{1})};
    if (repeat.contains("seeds") && repeat.size() > 1) {
      violations_.push_back({"/repeat", "got seeds and repeats of single seeds, want one of the two"});
    }
  }

  std::vector<std::string> swept() const {
    std::vector<std::string> pointers;
    for (const std::string& pointer : spec_.swept.pointers()) {
      if (used_.contains(pointer)) pointers.push_back(pointer);
    }
    // A spec that is no text has no order of pointers.
    for (const std::string& pointer : used_) {
      if (std::find(pointers.begin(), pointers.end(), pointer) == pointers.end()) pointers.push_back(pointer);
    }
    return pointers;
  }

  /// The distance of each repeat's seeds from the spec's.
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
      const std::string place = comm::child_pointer("/sweep/" + kind, pointer);
      std::vector<std::string> tokens;
      try {
        tokens = pointer_tokens(pointer, spec_.where + ": " + place);
      } catch (const ConfigError&) {
        violations_.push_back({place, "got the key " + quote_json(pointer) + ", want a JSON pointer"});
        continue;
      }
      const std::string reason = schema().unknown_pointer(tokens);
      if (!reason.empty()) {
        violations_.push_back({place, reason});
        continue;
      }
      const auto refuse_idle = [&] { violations_.push_back({place, "cannot be swept: it changes no result"}); };
      if (tokens[0] == "sweep" || tokens[0] == "repeat" || tokens[0] == "search") {
        refuse_idle();
        continue;
      }
      if (!used_.insert(pointer).second) {
        violations_.push_back({place, "is in both zip and cross; want it in one of them"});
        continue;
      }
      Values list;
      try {
        list = values_of(values, "", kind == "zip" ? Labels::kShared : Labels::kUnique);
      } catch (const ConfigError& error) {
        const std::string message = error.what();  // "/3/label: got ..."
        const std::size_t end = message.find(": ");
        violations_.push_back({place + message.substr(0, end), message.substr(end + 2)});
        continue;
      }
      for (json& value : list.values) value = with_words_of_specs(schema(), tokens, value);
      if (std::ranges::none_of(list.values,
                               [&at = pointer](const json& value) { return changes_results(at, value); })) {
        refuse_idle();
        continue;
      }
      const std::size_t length = list.values.size();
      if (kind == "cross") {
        axes_.push_back({{pointer}, {tokens}, {std::move(list)}, length});
        continue;
      }
      if (!together.lists.empty() && length != together.length) {
        violations_.push_back({place, "got " + std::to_string(length) + " values, want " +
                                          std::to_string(together.length) + " as " + together.pointers[0] + " has"});
        continue;
      }
      together.length = length;
      together.pointers.push_back(pointer);
      together.tokens.push_back(tokens);
      together.lists.push_back(std::move(list));
    }
    if (!together.lists.empty()) axes_.push_back(std::move(together));
  }

  /// Finds the pointers of best_over. A zip sets its pointers together: best_over has all of them or none.
  void find_best_over() {
    const json& sweep = spec_.document["sweep"];
    if (!sweep.contains("best_over")) return;
    if (spec_.document.contains("command")) {
      violations_.push_back(
          {"/sweep/best_over", "got it with /command, want it absent: a program has no selection loss"});
      return;
    }
    best_over_ = sweep["best_over"].get<std::vector<std::string>>();
    const auto listed = [this](const std::string& pointer) {
      return std::find(best_over_.begin(), best_over_.end(), pointer) != best_over_.end();
    };
    for (std::size_t i = 0; i < best_over_.size(); ++i) {
      const auto refuse = [&](const std::string& want) {
        violations_.push_back(
            {"/sweep/best_over/" + std::to_string(i), "got " + quote_json(best_over_[i]) + ", want " + want});
      };
      const auto axis = std::find_if(axes_.begin(), axes_.end(), [&](const Axis& one) {
        return std::find(one.pointers.begin(), one.pointers.end(), best_over_[i]) != one.pointers.end();
      });
      if (axis == axes_.end()) {
        refuse("a pointer of /sweep/cross or /sweep/zip; " +
               comm::known_names_hint(best_over_[i], {used_.begin(), used_.end()}, "pointers"));
      } else if (std::find(best_over_.begin(), best_over_.begin() + static_cast<std::ptrdiff_t>(i), best_over_[i]) !=
                 best_over_.begin() + static_cast<std::ptrdiff_t>(i)) {
        refuse("each pointer once");
      } else if (!std::all_of(axis->pointers.begin(), axis->pointers.end(), listed)) {
        refuse("all pointers of its zip, or none: their values are taken together");
      }
    }
  }

  void count_runs() {
    points_ = 1;
    for (const Axis& axis : axes_) points_ = std::min(points_ * axis.length, kMaxRuns + 1);
    // Far below 2^64: each factor is at most 10000 or so.
    if (points_ * together_ * repeats_.weights * repeats_.data * repeats_.network > kMaxRuns) {
      violations_.push_back({"/sweep", "asks for more than " + std::to_string(kMaxRuns) + " runs"});
    }
  }

  /// Throws: ConfigError for errors of the spec, or else for errors of its files.
  void resolve_points() {
    const auto resolve_all = [this](FileHashes* files) {
      resolved_.clear();
      files_ = files;
      for (std::uint64_t point = 0; point < points_; ++point) resolve_point(point);
      return std::exchange(failures_, {});
    };
    FileHashes* const files = std::exchange(files_, nullptr);
    // The first point shows most errors, before files are read to be hashed.
    if (files != nullptr) resolve_point(0);
    std::map<std::string, Failure> failed = std::exchange(failures_, {});
    if (failed.empty()) failed = resolve_all(files);
    if (failed.empty()) return;
    std::map<std::string, Failure> of_spec = files == nullptr ? failed : resolve_all(nullptr);
    failures_ = of_spec.empty() ? std::move(failed) : std::move(of_spec);
    throw_failures();
  }

  /// Resolves one point with the first seeds.
  void resolve_point(std::uint64_t point) {
    // The last axis varies fastest. The map's order sets an outer member before a member of it.
    std::map<std::string, std::pair<const std::vector<std::string>*, const json*>> settings;
    std::vector<json> labels;
    for (std::size_t a = axes_.size(); a-- > 0;) {
      const Axis& axis = axes_[a];
      const std::uint64_t position = point % axis.length;
      point /= axis.length;
      std::string label;
      for (std::size_t i = 0; i < axis.pointers.size(); ++i) {
        settings[axis.pointers[i]] = {&axis.tokens[i], &axis.lists[i].values.at(position)};
        const std::string& more = axis.lists[i].labels.at(position);
        if (!more.empty()) label += (label.empty() ? "" : ", ") + more;
      }
      if (!label.empty()) labels.push_back({{"label", label}, {"pointers", axis.pointers}});
    }
    PlannedRun planned;
    planned.point = json::object();
    json document = base_;
    try {
      for (const auto& [pointer, setting] : settings) {
        planned.point[pointer] = *setting.second;
        set_member(document, *setting.first, *setting.second, spec_.where + ": " + pointer);
      }
      if (!best_over_.empty()) add_selection(document);
      planned.run = resolve(document, spec_.where, files_, use_);
      planned.run.labels = std::vector<json>(labels.rbegin(), labels.rend());
      const Seeds& first = planned.run.config.seeds;
      check_last("weights", first.weights, together_ * repeats_.weights);
      check_last("data", first.data, together_ * repeats_.data);
      check_last("network", first.network, together_ * repeats_.network);
      resolved_.push_back(std::move(planned));
    } catch (const ConfigError& error) {
      std::string message = error.what();
      for (const auto& [pointer, setting] : settings) message += hint_of_absent(base_, *setting.first, error.what());
      Failure& failure = failures_[origins_of(planned.point).with_files(message, spec_.where)];
      if (failure.points++ == 0) failure.first = quote_json(planned.point, 300);
    }
  }

  /// Swept values are from the file that holds the sweep.
  ValueOrigins origins_of(const json& point) const {
    ValueOrigins origins = spec_.origins;
    if (origins.empty()) return origins;
    for (const auto& [pointer, value] : point.items()) {
      const bool zipped = spec_.document["sweep"].value("zip", json::object()).contains(pointer);
      origins.set(pointer, spec_.origins.of(comm::child_pointer(zipped ? "/sweep/zip" : "/sweep/cross", pointer)));
    }
    return origins;
  }

  /// The selection loss chooses the best values. It has tokens of its own, as many as evaluation has unless the spec
  /// names a number.
  void add_selection(json& document) const {
    static const json::json_pointer kSelection("/validation/selection_tokens");
    static const json::json_pointer kTokens("/validation/tokens");
    if (document.contains(kSelection) || !document.value("validation", json::object()).is_object()) return;
    document[kSelection] = document.contains(kTokens) ? document.at(kTokens) : evaluation_tokens_;
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
    refuse_violations();
  }

  void add_run(SweepPlan& plan, PlannedRun planned, const Seeds& later) {
    const Seeds first = planned.run.config.seeds;
    planned.seeds = {first.weights + later.weights, first.data + later.data, first.network + later.network};
    Seeds used = planned.seeds;
    if (!uses_network_seed(planned.run.spec)) {
      const std::pair training{used.weights, used.data};
      used.network = first_network_.try_emplace(training, used.network).first->second;
    }
    if (used != first) reseed(planned.run, used);
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
  NumericsUse use_;
  json base_;
  std::uint64_t together_ = 1;  ///< repeats of all seeds; 1 if repeats of single seeds are given
  Seeds repeats_;               ///< repeats of each seed
  std::uint64_t points_ = 1;
  std::vector<Axis> axes_;
  std::vector<std::string> best_over_;
  json evaluation_tokens_;            ///< /validation/tokens of the spec without its sweep
  std::vector<PlannedRun> resolved_;  ///< a run of each point
  std::set<std::string> used_;
  std::vector<comm::Violation> violations_;
  std::map<std::string, Failure> failures_;
  std::unordered_map<std::string, std::size_t> by_id_;
  /// The network's seed of runs that do not depend on it, by the seeds of weights and data.
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> first_network_;
};

}  // namespace

std::size_t SweepPlan::same_runs() const {
  std::size_t same = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) same += runs[i].same_as != i ? 1 : 0;
  return same;
}

SweepPlan plan_sweep(const Spec& spec, FileHashes* files, NumericsUse use) {
  try {
    SweepPlan plan = Planner(spec, files, use).plan();
    if (spec.document.contains("search")) (void)SearchPlan(spec);
    return plan;
  } catch (const ConfigError& error) {
    std::string message = error.what();
    for (const auto& [parent, tokens] : spec.made) message += hint_of_absent(json::object(), tokens, error.what());
    throw ConfigError(message);
  }
}

}  // namespace droptest::experiments
