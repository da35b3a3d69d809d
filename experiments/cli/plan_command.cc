// SPDX-License-Identifier: Apache-2.0
// droptest plan
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <system_error>

#include "comm/json/json_text.h"
#include "experiments/cli/commands.h"
#include "experiments/cli/layout_text.h"
#include "experiments/cli/outcome_text.h"
#include "experiments/cli/schedule_svg.h"
#include "experiments/cli/spec_options.h"
#include "experiments/doctor/machine_checks.h"
#include "experiments/records/atomic_file.h"
#include "experiments/records/run_records.h"
#include "experiments/run/core_shares.h"
#include "experiments/run/layout_plan.h"
#include "experiments/run/memory_estimate.h"
#include "experiments/run/run_device.h"
#include "experiments/run/run_forecast.h"
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
  std::string memory;  ///< of a process, as a text
};

/// The plan, and why its runs have no ids, where a file of the spec is missing.
struct LoadedPlan {
  SweepPlan plan;
  std::string no_ids;
};

LoadedPlan load(const SpecOptions& spec) {
  SweepPlan plan = load_plan(spec, nullptr);
  try {
    experiments::FileHashes files;
    return {load_plan(spec, &files), ""};
  } catch (const ConfigError& error) {
    return {std::move(plan), error.what()};
  }
}

/// "1.2 million", "340".
std::string count_text(double count) {
  char text[64];
  if (count < 1e4) {
    std::snprintf(text, sizeof text, "%.0f", count);
  } else {
    const int thousands = std::min(4, static_cast<int>(std::log10(count) / 3));
    static constexpr const char* kNames[] = {"", "thousand", "million", "billion", "trillion"};
    std::snprintf(text, sizeof text, "%.3g %s", count / std::pow(1000, thousands), kNames[thousands]);
  }
  return text;
}

/// How long runs take: by finished runs of the same shape on this machine, else by a step that is measured here.
class TimeEstimate {
 public:
  /// `folder`: of the experiment's finished runs, this plan's or others.
  TimeEstimate(const SweepPlan& plan, const std::vector<json>& summaries, const std::string& folder) {
    for (const PlannedRun& planned : plan.runs) finished_[key_of(planned)];
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(folder, none)) take(entry.path().string());
    std::erase_if(finished_, [](const auto& shape) { return shape.second.count == 0; });
    measure(plan, summaries);
  }

  /// Wall seconds of the run alone; absent where nothing is known.
  std::optional<double> seconds(const PlannedRun& planned) const {
    const RunConfig& config = planned.run.config;
    if (const auto found = finished_.find(key_of(planned)); found != finished_.end()) {
      return found->second.mean() * static_cast<double>(config.training.steps);
    }
    if (!step_) return std::nullopt;
    return step_->wall_seconds * experiments::run_operations(config) / measured_operations_;
  }

  /// Core seconds of the run, for runs that share the cores of this machine.
  std::optional<double> core_seconds(const PlannedRun& planned, double jobs) const {
    const auto cores = static_cast<double>(experiments::allowed_cores().size());
    if (finished_.contains(key_of(planned))) return *seconds(planned) * cores / jobs;
    if (!step_) return std::nullopt;
    return step_->processor_seconds * experiments::run_operations(planned.run.config) / measured_operations_;
  }

  /// The source of the estimate, and its error.
  std::string basis() const {
    std::string text;
    if (records_ > 0) {
      double low = 1e300;
      double high = 0;
      for (const auto& [key, speeds] : finished_) {
        low = std::min(low, speeds.low / speeds.mean());
        high = std::max(high, speeds.high / speeds.mean());
      }
      char spread[96];
      std::snprintf(spread, sizeof spread, "they took %.2f to %.2f times their mean", low, high);
      text = "from " + std::to_string(records_) + (records_ == 1 ? " finished run" : " finished runs") +
             " of the same shape on this machine (" + spread + ")";
    }
    if (step_) {
      text += (text.empty() ? "" : "; others ") + std::string("from a training step measured here, ") +
              (shapes_ > 1 ? "scaled by floating-point operations; may be off by a factor of 3"
                           : "may be off by a factor of 2");
    }
    if (!why_not_.empty()) text += (text.empty() ? "" : "; no estimate for others: ") + why_not_;
    return text;
  }

 private:
  struct Speeds {
    double sum = 0;
    double low = 1e300;
    double high = 0;
    std::size_t count = 0;
    void add(double seconds) {
      sum += seconds;
      low = std::min(low, seconds);
      high = std::max(high, seconds);
      ++count;
    }
    double mean() const { return sum / static_cast<double>(count); }
  };

  static std::string key_of(const PlannedRun& planned) { return experiments::shape_of(planned.run.spec).dump(); }

  /// Learns from a run that is finished, on this machine.
  void take(const std::string& folder) {
    const experiments::RunDirectory run{folder};
    try {
      if (!experiments::has_result(run)) return;
      const json summary = *experiments::read_summary(run);
      if (summary.at("status") != "completed" || summary.at("provenance").at("host") != experiments::this_host())
        return;
      const double seconds = summary.at("seconds").get<double>() / summary.at("steps").get<double>();
      const auto shape = finished_.find(experiments::shape_of(comm::load_json(run.spec())).dump());
      if (shape == finished_.end()) return;
      shape->second.add(seconds);
      ++records_;
    } catch (const std::exception&) {  // a damaged record has no times
    }
  }

  /// Measures a step of the largest run without a finished run of its shape; of equal ones the last, which has more
  /// loss in most specs.
  void measure(const SweepPlan& plan, const std::vector<json>& summaries) {
    const PlannedRun* largest = nullptr;
    std::set<std::string> shapes;
    for (std::size_t i = 0; i < plan.runs.size(); ++i) {
      if (!summaries[i].is_null() || finished_.contains(key_of(plan.runs[i]))) continue;
      shapes.insert(key_of(plan.runs[i]));
      const double operations = experiments::step_operations(plan.runs[i].run.config);
      if (largest == nullptr || operations >= experiments::step_operations(largest->run.config))
        largest = &plan.runs[i];
    }
    if (largest == nullptr) return;
    shapes_ = shapes.size();
    try {
      step_ = experiments::measure_step(largest->run.config);
      measured_operations_ = experiments::step_operations(largest->run.config);
      if (!step_) {
        why_not_ = largest->run.config.device == experiments::Device::kCuda
                       ? "no run on such a GPU is finished here"
                       : "no such run is finished here, and a step is too long to be measured";
      }
    } catch (const std::exception& error) {
      why_not_ = error.what();
    }
  }

  std::map<std::string, Speeds> finished_;  ///< seconds per step, by shape
  std::size_t records_ = 0;
  std::optional<experiments::StepTime> step_;
  double measured_operations_ = 1;
  std::size_t shapes_ = 0;  ///< that the measured step stands for
  std::string why_not_;
};

/// Absent where this build or this machine does not know it.
json memory_of_rank(const RunConfig& config) {
  if (config.device == experiments::Device::kCpu) return experiments::least_memory_bytes(config, {1, 0});
  try {
    const auto ranks = static_cast<std::uint64_t>(config.backend.name == "local" ? config.parallel.world_size() : 1);
    return experiments::run_device_bytes(config) / ranks;
  } catch (const std::exception&) {
    return nullptr;
  }
}

/// By class; null where the packets of the network cannot be counted.
json packets_of(const RunConfig& config) {
  try {
    return experiments::expected_packets(config);
  } catch (const ConfigError&) {
    return nullptr;
  }
}

/// Runs that a sweep has at once on this machine; 1 where it could not run them.
int jobs_here(const SweepPlan& plan) {
  try {
    return experiments::jobs_at_once(0, experiments::most_demanding(plan.runs));
  } catch (const std::exception&) {
    return 1;
  }
}

/// Pointer -> the values that the points have there, each once.
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

/// Members of the estimate; null where this build or this machine does not know it.
json memory_plan_of(const RunConfig& config, const std::optional<std::uint64_t>& bytes) {
  try {
    return experiments::memory_plan_json(config, bytes);
  } catch (const std::exception&) {
    return nullptr;
  }
}

json everything(const SpecOptions& spec, const std::string& out, const std::optional<std::uint64_t>& memory) {
  const auto [plan, no_ids] = load(spec);
  std::vector<json> summaries(plan.runs.size());
  for (std::size_t i = 0; i < plan.runs.size() && no_ids.empty(); ++i) {
    const auto folder = experiments::run_directory(out, plan.name, plan.runs[i].run.run_id);
    if (experiments::has_result(folder)) summaries[i] = *experiments::read_summary(folder);
  }
  const TimeEstimate estimate(plan, summaries, out + "/" + plan.name);
  const int jobs = jobs_here(plan);
  std::map<std::string, json> known_packets;  // seeds and learning rates change nothing
  std::map<std::string, json> known_memory;
  json runs = json::array();
  std::size_t to_do = 0;
  std::optional<double> alone = 0.0;
  std::optional<double> together = 0.0;
  const auto add = [](std::optional<double>& sum, const std::optional<double>& more) {
    sum = sum && more ? std::optional(*sum + *more) : std::nullopt;
  };
  for (std::size_t i = 0; i < plan.runs.size(); ++i) {
    const PlannedRun& planned = plan.runs[i];
    const RunConfig& config = planned.run.config;
    const json key = {planned.run.spec.at("network"), planned.run.spec.at("training"),
                      planned.run.spec.at("validation"), planned.run.spec.at("model"), planned.run.spec.at("parallel")};
    const auto packets = known_packets.find(key.dump());
    const json counted = packets != known_packets.end() ? packets->second : packets_of(config);
    known_packets[key.dump()] = counted;
    const std::string memory_key = json({key, planned.run.spec.value("memory", json())}).dump();
    if (!known_memory.contains(memory_key)) known_memory[memory_key] = memory_plan_of(config, memory);
    const bool is_new = summaries[i].is_null() && planned.same_as == i;
    const std::optional<double> seconds = estimate.seconds(planned);
    if (is_new) {
      ++to_do;
      add(alone, seconds);
      add(together, estimate.core_seconds(planned, jobs));
    }
    runs.push_back({{"run_id", no_ids.empty() ? json(planned.run.run_id) : json()},
                    {"point", planned.point},
                    {"labels", planned.run.labels},
                    {"seeds", experiments::seeds_json(planned.seeds)},
                    {"same_as", planned.same_as == i ? json() : json(planned.same_as)},
                    {"finished", !summaries[i].is_null()},
                    {"steps", config.training.steps},
                    {"memory_per_rank_bytes", memory_of_rank(config)},
                    {"memory", known_memory[memory_key]},
                    {"packets", counted},
                    {"seconds", seconds ? json(*seconds) : json()}});
  }
  std::optional<double> left = together;
  if (left) *left /= static_cast<double>(experiments::allowed_cores().size());
  return {{"name", plan.name},
          {"folder", out + "/" + plan.name},
          {"points", plan.points},
          {"seeds", plan.runs.size() / plan.points},
          {"differs", differences(plan)},
          {"best_over", plan.best_over},
          {"no_ids", no_ids.empty() ? json() : json(no_ids)},
          {"runs", std::move(runs)},
          {"estimate",
           {{"runs", to_do},
            {"jobs", jobs},
            {"seconds_one_by_one", alone ? json(*alone) : json()},
            {"seconds", left ? json(*left) : json()},
            {"basis", estimate.basis()}}}};
}

std::string run_text(const json& all, const json& run) {
  if (!run.at("same_as").is_null()) {
    const json& same = all.at("runs").at(run.at("same_as").get<std::size_t>());
    return "the run of " + point_text(same.at("point"), same.at("labels"));
  }
  return run.at("run_id").is_null() ? "-" : run.at("run_id").get<std::string>();
}

std::string packets_text(const json& packets) {
  if (packets.is_null()) return "?";
  std::string text;
  for (const auto& [traffic_class, count] : packets.items()) {
    text += (text.empty() ? "" : ", ") + traffic_class + " " + count_text(count.get<double>());
  }
  return text.empty() ? "none can be lost" : text;
}

/// Of the run that takes most: a rank, with the spec's choice and with each strategy.
void print_memory(const json& runs) {
  const auto process_of = [](const json& run) {
    return run.at("memory").is_null() ? std::uint64_t{0} : run.at("memory").at("process").get<std::uint64_t>();
  };
  const auto largest = std::max_element(runs.begin(), runs.end(),
                                        [&](const json& a, const json& b) { return process_of(a) < process_of(b); });
  if (largest == runs.end() || process_of(*largest) == 0) return;
  const json& memory = largest->at("memory");
  static constexpr std::array<std::pair<const char*, const char*>, 9> kColumns = {{{"parameters", "parameters"},
                                                                                   {"gradients", "gradients"},
                                                                                   {"optimizer", "optimizer"},
                                                                                   {"activations", "activations"},
                                                                                   {"slot", "of a slot"},
                                                                                   {"collectives", "collectives"},
                                                                                   {"loss_layer", "loss layer"},
                                                                                   {"total", "rank"},
                                                                                   {"process", "process"}}};
  std::vector<std::vector<std::string>> rows = {{"memory"}};
  for (const auto& [member, title] : kColumns) rows[0].emplace_back(title);
  const bool asks = memory.contains("largest_micro_batch");
  if (asks) rows[0].emplace_back("largest micro-batch");
  const auto add = [&](const std::string& name, const json& of) {
    std::vector<std::string>& row = rows.emplace_back(1, name);
    for (const auto& [member, title] : kColumns) {
      row.push_back(experiments::bytes_text(of.at(member).get<std::uint64_t>()));
    }
    if (asks) row.push_back(of.at("largest_micro_batch").dump());
  };
  add("as the spec says", memory);
  for (const auto& [name, of] : memory.at("strategies").items()) add(name, of);
  std::cout << table_text(rows);
}

void print(const json& all) {
  const auto number = [](const json& of, const char* name) { return of.at(name).get<std::size_t>(); };
  const json& runs = all.at("runs");
  const auto plural = [](std::size_t count, const std::string& noun) {
    return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
  };
  std::cout << all.at("name").get<std::string>() << ": " << plural(runs.size(), "run") << ", "
            << plural(number(all, "points"), "point") << " with " << plural(number(all, "seeds"), "seed")
            << " each; records go to " << all.at("folder").get<std::string>() << "\n";
  for (const auto& [pointer, values] : all.at("differs").items()) {
    const json& best_over = all.at("best_over");
    const bool chosen = std::find(best_over.begin(), best_over.end(), json(pointer)) != best_over.end();
    std::cout << (chosen ? "the best of " : "differs: ") << pointer << ": " << plural(values.size(), "value") << "\n";
  }
  if (!all.at("no_ids").is_null()) std::cout << "no run ids: " << all.at("no_ids").get<std::string>() << "\n";
  std::vector<std::vector<std::string>> rows = {
      {"point", "seed", "steps", "least memory per rank", "packets", "time", "state", "run"}};
  for (const json& run : runs) {
    const json& memory = run.at("memory_per_rank_bytes");
    const json& seconds = run.at("seconds");
    const json& seeds = run.at("seeds");
    rows.push_back({point_text(run.at("point"), run.at("labels")),
                    seeds_text({seeds.at("weights"), seeds.at("data"), seeds.at("network")}), run.at("steps").dump(),
                    memory.is_null() ? "?" : experiments::bytes_text(memory.get<std::uint64_t>()),
                    packets_text(run.at("packets")), seconds.is_null() ? "?" : duration_text(seconds.get<double>()),
                    run.at("finished").get<bool>() ? "finished" : "to do", run_text(all, run)});
  }
  std::cout << table_text(rows);
  print_memory(runs);
  const json& estimate = all.at("estimate");
  const std::size_t to_do = number(estimate, "runs");
  if (to_do == 0) {
    std::cout << "nothing is to do\n";
    return;
  }
  std::cout << plural(to_do, "run") << " to do: ";
  if (estimate.at("seconds").is_null()) {
    std::cout << "no estimate of their time: " << estimate.at("basis").get<std::string>() << "\n";
    return;
  }
  std::cout << "about " << duration_text(estimate.at("seconds").get<double>()) << " with "
            << plural(number(estimate, "jobs"), "run") << " at once, " << estimate.at("basis").get<std::string>()
            << "\n";
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
  json layouts = json::array();
  for (const PlannedRun& planned : plan.runs) {
    json layout = experiments::layout_plan(planned.run.config);
    const json point = point_text(planned);
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
    std::cout << json{{"name", plan.name}, {"layouts", layouts}}.dump(2) << "\n";
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
  std::optional<std::uint64_t> memory;
  if (!options.memory.empty()) memory = experiments::bytes_from_text(options.memory, "--memory");
  const json all = everything(options.spec, options.out, memory);
  if (options.json) {
    std::cout << all.dump(2) << "\n";
  } else {
    print(all);
  }
  return kExitSuccess;
}

}  // namespace

void add_plan_command(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("plan", "Say what a spec asks for, before anything runs");
  const auto options = std::make_shared<PlanOptions>();  // shared by CLI11's bindings and the action
  add_spec_options(*command, options->spec);
  add_out_option(*command, options->out);
  command->add_flag("--json", options->json, "Print JSON");
  command
      ->add_option(
          "--memory", options->memory,
          "Also say the largest /training/batch_sequences that fits into so much memory of a process or device")
      ->type_name("SIZE");
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
