// SPDX-License-Identifier: Apache-2.0
// droptest plan
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/allowed_cores.h"
#include "comm/json/json_text.h"
#include "experiments/cli/commands.h"
#include "experiments/cli/finished_runs.h"
#include "experiments/cli/layout_text.h"
#include "experiments/cli/number_options.h"
#include "experiments/cli/outcome_text.h"
#include "experiments/cli/plan_text.h"
#include "experiments/cli/schedule_svg.h"
#include "experiments/cli/spec_options.h"
#include "experiments/cli/time_estimate.h"
#include "experiments/doctor/machine_checks.h"
#include "experiments/files/atomic_file.h"
#include "experiments/records/run_records.h"
#include "experiments/run/layout_plan.h"
#include "experiments/run/run_forecast.h"
#include "experiments/training/memory_estimate.h"
#include "experiments/training/run_device.h"
#include "models/process_settings.h"
#include "sim/error.h"

namespace droptest::cli {
namespace {

using experiments::PlannedRun;
using experiments::RunConfig;
using experiments::SweepPlan;
using nlohmann::json;

struct PlanOptions {
  SpecOptions spec;
  std::string out = "results";
  bool json = false;
  bool layout = false;
  bool check_shapes = false;
  std::string schedule_svg;
  std::uint64_t memory = 0;  ///< memory of a process; 0: not given
};

/// Null if this build or this machine does not know it.
json memory_of_rank(const RunConfig& config) {
  if (config.device == experiments::Device::kCpu) return experiments::least_memory_bytes(config, {1, 0});
  try {
    const auto ranks = static_cast<std::uint64_t>(config.backend.name == "local" ? config.parallel.world_size() : 1);
    return experiments::run_device_bytes(config) / ranks;
  } catch (const std::exception&) {
    return nullptr;
  }
}

/// Packets by class; null if the packets of the network cannot be counted.
json packets_of(const RunConfig& config) {
  try {
    return experiments::expected_packets(config);
  } catch (const ConfigError&) {
    return nullptr;
  }
}

/// Number of runs that a sweep has at once on this machine; 1 if it could not run them.
int jobs_here(const SweepPlan& plan) {
  try {
    return experiments::jobs_at_once(0, experiments::most_demanding(plan.runs));
  } catch (const std::exception&) {
    return 1;
  }
}

/// The values that the points have, each once, by pointer.
json differences(const SweepPlan& plan) {
  json values = json::object();
  for (const PlannedRun& planned : plan.runs) {
    for (const auto& [pointer, value] : planned.point.items()) {
      json& list = values[pointer];
      if (list.is_null()) list = json::array();
      if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
    }
  }
  return values;
}

/// Members of the estimate; null if this build or this machine does not know it.
json memory_plan_of(const RunConfig& config, const std::optional<std::uint64_t>& bytes) {
  try {
    return experiments::memory_plan_json(config, bytes);
  } catch (const std::exception&) {
    return nullptr;
  }
}

/// Null: only float32. The type of messages is null if no rank has tensor-parallel peers.
json precision_of(const experiments::ResolvedRun& run) {
  json precision = run.spec.at("training").value("precision", json());
  if (!precision.is_null() && run.config.parallel.tensor == 1) precision["message"] = json();
  return precision;
}

/// JSON text; names of files in it may have bytes that are not UTF-8, which U+FFFD replaces.
std::string printed(const json& document) { return document.dump(2, ' ', false, json::error_handler_t::replace); }

/// The needs of runs that are equal but for without_rates().
struct Needs {
  std::size_t first;  ///< number of a run that has them
  RunConfig config;   ///< config of the last of them, which has more loss than the others in most specs
  json packets;
  json memory_of_rank;
  json memory;
  json precision;
};

/// The runs with the whole memory plan in their entries; other entries have null.
enum class WhichMemory : std::uint8_t { kAll, kOneOfEach };

/// A plan as it is printed. It keeps only the parts of thousands of runs from which their entries are made.
class PrintedRuns {
 public:
  PrintedRuns(const PlanOptions& options, WhichMemory which_memory)
      : which_memory_(which_memory), memory_(options.memory) {
    auto [plan, no_ids] = plan_of_files(options.spec);
    require_training(options.spec.file, plan);
    const std::string folder = options.out + "/" + plan.name;
    about_ = {{"name", plan.name},
              {"folder", folder},
              {"points", plan.points},
              {"seeds", plan.runs.size() / plan.points},
              {"differs", differences(plan)},
              {"names", experiments::PointNames(plan.swept).to_json()},
              {"best_over", plan.best_over},
              {"no_ids", no_ids.empty() ? json() : json(no_ids)}};
    jobs_ = jobs_here(plan);
    runs_.reserve(plan.runs.size());
    for (std::size_t i = 0; i < plan.runs.size(); ++i) add(i, plan.runs[i], options.out, no_ids.empty());
    plan = {};
    models::return_freed_memory();  // frees memory before a step is measured
    std::vector<TimeEstimate::Run> timed;
    for (const Run& run : runs_) timed.push_back(timed_of(run));
    estimate_.emplace(timed, folder);
    add_estimate();
  }

  PrintedPlan print() const {
    return {about_, runs_.size(), [this](std::size_t i) { return entry(i); }};
  }

 private:
  struct Run {
    json run_id;  ///< null: it has none
    json point;
    json labels;
    json seeds;
    std::size_t same_as;
    bool is_finished;
    const std::string* shape;
    const Needs* needs;
  };

  /// Copies the kept parts: then the plan's memory can be freed as a whole.
  void add(std::size_t i, const PlannedRun& planned, const std::string& out, bool has_id) {
    const experiments::ResolvedRun& run = planned.run;
    const auto directory = experiments::run_directory(out, run.config.name, run.run_id);
    const auto [known, is_first] = known_.try_emplace(experiments::without_rates(run.spec).dump());
    if (is_first) {
      known->second = {i,
                       run.config,
                       packets_of(run.config),
                       memory_of_rank(run.config),
                       memory_plan_of(run.config, memory_ != 0 ? std::optional(memory_) : std::nullopt),
                       precision_of(run)};
    }
    known->second.config = run.config;
    runs_.push_back({has_id ? json(run.run_id) : json(), planned.point, run.labels,
                     experiments::seeds_json(planned.seeds), planned.same_as,
                     has_id && experiments::has_result(directory, say_unread),
                     &*shapes_.insert(experiments::shape_of(run.spec).dump()).first, &known->second});
  }

  static TimeEstimate::Run timed_of(const Run& run) { return {&run.needs->config, run.shape, run.is_finished}; }

  void add_estimate() {
    std::size_t to_do = 0;
    std::uint64_t weights_bytes = 0;
    std::optional<double> alone = 0.0;
    std::optional<double> together = 0.0;
    const auto add_to = [](std::optional<double>& sum, const std::optional<double>& more) {
      sum = sum && more ? std::optional(*sum + *more) : std::nullopt;
    };
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      if (runs_[i].is_finished || runs_[i].same_as != i) continue;
      ++to_do;
      weights_bytes += experiments::kept_weights_bytes(runs_[i].needs->config);
      add_to(alone, estimate_->seconds(timed_of(runs_[i])));
      add_to(together, estimate_->core_seconds(timed_of(runs_[i]), jobs_));
    }
    if (together) *together /= static_cast<double>(comm::allowed_cores().size());
    about_["estimate"] = {{"runs", to_do},
                          {"weights_bytes", weights_bytes},
                          {"jobs", jobs_},
                          {"seconds_one_by_one", alone ? json(*alone) : json()},
                          {"seconds", together ? json(*together) : json()},
                          {"basis", estimate_->basis()}};
  }

  json entry(std::size_t i) const {
    const Run& run = runs_[i];
    const Needs& needs = *run.needs;
    const std::optional<double> seconds = estimate_->seconds(timed_of(run));
    return {{"run_id", run.run_id},
            {"point", run.point},
            {"labels", run.labels},
            {"seeds", run.seeds},
            {"same_as", run.same_as == i ? json() : json(run.same_as)},
            {"finished", run.is_finished},
            {"steps", needs.config.training.steps},
            {"memory_per_rank_bytes", needs.memory_of_rank},
            {"memory", needs.first == i || which_memory_ == WhichMemory::kAll ? needs.memory : json()},
            {"precision", needs.precision},
            {"packets", needs.packets},
            {"seconds", seconds ? json(*seconds) : json()}};
  }

  const WhichMemory which_memory_;
  const std::uint64_t memory_;
  json about_;
  int jobs_ = 1;
  std::set<std::string> shapes_;
  std::map<std::string, Needs> known_;
  std::vector<Run> runs_;
  std::optional<TimeEstimate> estimate_;
};

/// The plan as JSON with the member "runs". Each run is made, written and forgotten.
void write_json(const PrintedPlan& plan, std::ostream& out) {
  const auto write = [&out](const json& value, const std::string& indent) {
    for (const char c : printed(value)) {
      out << c;
      if (c == '\n') out << indent;
    }
  };
  json members = plan.about;
  members["runs"] = nullptr;
  const char* before = "{\n  ";
  for (const auto& [name, value] : members.items()) {
    out << std::exchange(before, ",\n  ") << '"' << name << "\": ";
    if (name != "runs") {
      write(value, "  ");
      continue;
    }
    for (std::size_t i = 0; i < plan.runs; ++i) {
      out << (i == 0 ? "[\n    " : ",\n    ");
      write(plan.run(i), "    ");
    }
    out << "\n  ]";
  }
  out << "\n}\n";
}

void draw_schedule(const json& layouts, const std::string& file) {
  if (layouts.size() != 1 || layouts[0]["plan"]["schedule"].is_null()) {
    throw ConfigError("--schedule-svg: got " + std::to_string(layouts.size()) +
                      (layouts.size() == 1 ? " layout without a pipeline" : " layouts") +
                      ", want one with a pipeline (/parallel/pipeline); see --set");
  }
  experiments::write_file_atomically(file, schedule_svg(layouts[0]["plan"]["schedule"]));
}

/// The different layouts among the runs, each with the points that have it.
int plan_layouts(const PlanOptions& options) {
  const SweepPlan plan = load_plan(options.spec, nullptr);
  require_training(options.spec.file, plan);
  json layouts = json::array();
  for (const PlannedRun& planned : plan.runs) {
    json layout = experiments::layout_plan(planned.run.config);
    const json point = point_text(plan, planned);
    const auto same = std::find_if(layouts.begin(), layouts.end(), [&](const json& e) { return e["plan"] == layout; });
    if (same != layouts.end()) {
      json& points = (*same)["points"];
      if (std::find(points.begin(), points.end(), point) == points.end()) points.push_back(point);
      continue;
    }
    const json shapes = options.check_shapes ? json(experiments::check_shapes(planned.run.config)) : json();
    layouts.push_back({{"points", {point}}, {"plan", std::move(layout)}, {"shapes", shapes}});
  }
  if (!options.schedule_svg.empty()) draw_schedule(layouts, options.schedule_svg);
  if (options.json) {
    std::cout << printed(json{{"name", plan.name}, {"layouts", layouts}}) << "\n";
    return kExitSuccess;
  }
  for (const json& entry : layouts) {
    std::cout << plan.name;
    if (layouts.size() > 1) {
      const json& points = entry["points"];
      std::cout << ", " << points[0].get<std::string>();
      if (points.size() > 1) std::cout << " and " << points.size() - 1 << " more";
    }
    std::cout << ": " << layout_text(entry["plan"]);
    if (!entry["shapes"].is_null()) std::cout << "\n" << entry["shapes"].get<std::string>() << "\n";
    if (&entry != &layouts.back()) std::cout << "\n";
  }
  return kExitSuccess;
}

int plan(const PlanOptions& options) {
  if (options.layout) return plan_layouts(options);
  const PrintedRuns runs(options, options.json ? WhichMemory::kAll : WhichMemory::kOneOfEach);
  if (options.json) {
    write_json(runs.print(), std::cout);
  } else {
    std::cout << plan_text(runs.print());
  }
  return kExitSuccess;
}

}  // namespace

void add_plan_command(CLI::App& app, Action& chosen) {
  CLI::App* command =
      app.add_subcommand("plan", "List the runs of a spec, with their memory and time, before anything runs");
  const auto options = std::make_shared<PlanOptions>();  // shared by CLI11's bindings and the action
  add_spec_options(*command, options->spec);
  add_out_option(*command, options->out);
  command->add_flag("--json", options->json, "Print JSON");
  add_size(*command, "--memory", options->memory,
           "Also say the largest /training/batch_sequences that fits into so much memory of a process or device",
           {1, std::uint64_t{1} << 62});
  CLI::Option* layout = command->add_flag(
      "--layout", options->layout,
      "In place of the runs: ranks, coordinates, groups, neighbours, each tensor's parts, each layer's collectives");
  command
      ->add_flag("--check-shapes", options->check_shapes,
                 "Also run a forward pass without memory on each part of the model, and check starting weights")
      ->needs(layout);
  command->add_option("--schedule-svg", options->schedule_svg, "Also draw the schedule of the pipeline into this file")
      ->type_name("FILE")
      ->needs(layout);
  command->footer(
      "Each run with its id, steps, least memory per rank, packets and time. Times are from finished runs in --out, "
      "or\n"
      "from a training step that is measured.\n\n"
      "Examples:\n"
      "  droptest plan experiments/specs/quickstart.json\n"
      "  droptest plan spec.json --set /model/preset=small --json\n"
      "  droptest plan spec.json --memory 24GiB\n"
      "  droptest plan spec.json --layout --check-shapes");
  command->callback([options, &chosen] { chosen = [options] { return plan(*options); }; });
}

}  // namespace droptest::cli
