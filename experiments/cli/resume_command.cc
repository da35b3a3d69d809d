// SPDX-License-Identifier: Apache-2.0
// droptest resume
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "comm/json/json_text.h"
#include "comm/json/read_file.h"
#include "experiments/checkpoint/checkpoint_folder.h"
#include "experiments/cli/commands.h"
#include "experiments/cli/number_options.h"
#include "experiments/cli/run_one.h"
#include "experiments/cli/spec_options.h"
#include "experiments/run/repetition.h"
#include "experiments/spec/dry_run.h"
#include "experiments/spec/recorded_files.h"
#include "experiments/spec/spec.h"
#include "sim/error.h"
#include "sim/traffic_class.h"

namespace droptest::cli {
namespace {

namespace fs = std::filesystem;
using experiments::CheckpointFolder;
using experiments::RunDirectory;

struct ResumeOptions {
  std::string folder;
  std::optional<std::uint64_t> at;
  SpecOptions changes;  ///< only overrides
  RunManner how;
};

/// The step to continue from; absent: there is no checkpoint, and none was asked for.
std::optional<std::uint64_t> chosen_step(const CheckpointFolder& checkpoints, const std::optional<std::uint64_t>& at) {
  const std::vector<std::uint64_t> steps = checkpoints.steps();
  if (!at) return steps.empty() ? std::nullopt : std::optional(steps.back());
  if (std::find(steps.begin(), steps.end(), *at) != steps.end()) return at;
  std::string known;
  for (const std::uint64_t step : steps) known += (known.empty() ? "" : ", ") + std::to_string(step);
  throw ConfigError("--at: got " + std::to_string(*at) + ", want a step with a checkpoint in " + checkpoints.path() +
                    ": " + (known.empty() ? "there is none" : known));
}

/// Takes the labels and the point of a run that its sweep has recorded; nothing if it belongs to no sweep.
void take_place_in_sweep(experiments::PlannedRun& planned, const RunDirectory& directory) {
  const std::string path = directory.path + "/../sweep.json";
  if (!fs::exists(path)) return;
  try {
    for (const nlohmann::json& run : comm::load_json(path).at("runs")) {
      if (run.at("run_id") != planned.run.run_id) continue;
      planned.point = run.at("point");
      planned.run.labels = run.value("labels", nlohmann::json::array());
      planned.run.warnings = experiments::warnings_from_json(run.value("warnings", nlohmann::json::array()));
    }
  } catch (const std::exception& error) {
    std::cerr << "droptest: warning: " << path << ": " << error.what() << "; the run gets no point of a sweep\n";
  }
}

int resume_in_place(const ResumeOptions& options, const RunDirectory& directory, const CheckpointFolder& checkpoints) {
  experiments::PlannedRun planned;
  planned.run = experiments::resolve(comm::load_json(directory.spec()), directory.spec());
  planned.seeds = planned.run.config.seeds;
  planned.point = nlohmann::json::object();
  take_place_in_sweep(planned, directory);
  RunManner how = options.how;
  experiments::FileHashes files;
  if (options.at || !experiments::has_result(directory)) {
    experiments::require_recorded_files(planned.run, directory.spec(), files, experiments::ShardFiles::kCompared);
  }
  (void)chosen_step(checkpoints, options.at);
  if (options.at && how.again == experiments::Again::kNo && experiments::has_result(directory)) {
    throw ConfigError(experiments::finished_text(directory, *options.at));
  }
  how.from_step = options.at;
  return run_one(planned, directory, files, how, [] {});
}

/// The classes that a run of this spec sends; nullopt if the spec is refused: load_plan() reports its errors.
std::optional<std::vector<std::string>> classes_of_layout(const nlohmann::json& spec) {
  try {
    std::vector<std::string> names;
    const experiments::ResolvedRun run = experiments::resolve(spec, "a changed layout");
    for (const auto of :
         experiments::classes_with_network(*experiments::shared_dry_run(run.spec, run.config), run.config)) {
      names.emplace_back(sim::traffic_class_name(of));
    }
    return names;
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

/// Whether an override sets the member at the pointer, one around it or one in it.
bool concerns(const std::string& change, const std::string& pointer) {
  const std::string changed = change.substr(0, change.find('=')) + "/";
  return changed.starts_with(pointer + "/") || (pointer + "/").starts_with(changed);
}

/// Classes of a resolved spec with a network that the changed layout has no use for, except those that the changes are
/// about.
std::vector<std::string> idle_classes(nlohmann::json spec, const std::vector<std::string>& overrides) {
  const nlohmann::json classes = spec.value(nlohmann::json::json_pointer("/network/classes"), nlohmann::json::object());
  for (const std::string& change : overrides) experiments::apply_override(spec, change);
  const std::optional<std::vector<std::string>> sent = classes_of_layout(spec);
  std::vector<std::string> idle;
  for (const auto& [name, network] : classes.items()) {
    const std::string pointer = "/network/classes/" + name;
    const bool is_changed =
        std::ranges::any_of(overrides, [&](const std::string& change) { return concerns(change, pointer); });
    if (sent && !is_changed && std::ranges::count(*sent, name) == 0) idle.push_back(name);
  }
  return idle;
}

/// Starts a run of its own from the checkpoint of the first one.
int resume_elsewhere(const ResumeOptions& options, const RunDirectory& directory, const CheckpointFolder& checkpoints) {
  const std::optional<std::uint64_t> step = chosen_step(checkpoints, options.at);
  if (!step) throw ConfigError(checkpoints.path() + ": no checkpoint; a run with changes needs one to begin with");
  if (comm::with_valid_utf8(checkpoints.path()) != checkpoints.path()) {
    throw ConfigError(checkpoints.path() +
                      ": is not UTF-8, which /start/manifest of a spec has to be; rename the folder");
  }
  SpecOptions spec = options.changes;
  spec.file = directory.spec();
  spec.overrides.push_back("/start=" +
                           nlohmann::json({{"manifest", checkpoints.of_step(*step) + "/manifest.json"}}).dump());
  const std::vector<std::string> idle = idle_classes(comm::load_json(directory.spec()), options.changes.overrides);
  for (const std::string& name : idle) {
    spec.overrides.insert(spec.overrides.begin(), "/network/classes/" + name + "=null");
  }
  experiments::FileHashes files;
  const experiments::SweepPlan plan = load_plan(spec, &files);
  if (plan.runs.size() != 1) {
    throw ConfigError("--set: the changes ask for " + std::to_string(plan.runs.size()) + " runs, want one");
  }
  const std::string out = fs::path(directory.path).parent_path().parent_path().string();
  const RunDirectory there =
      experiments::run_directory(out.empty() ? "." : out, plan.name, plan.runs.front().run.run_id);
  return run_one(plan.runs.front(), there, files, options.how, [&] {
    for (const std::string& name : idle) {
      std::cerr << "droptest: the changed layout sends no " << name << ": its network is left out\n";
    }
    say_warnings(spec, plan);
  });
}

int resume(const ResumeOptions& options) {
  const std::string path =
      fs::absolute(options.folder + "/").lexically_normal().parent_path().lexically_proximate(fs::current_path());
  const RunDirectory directory{path};
  if (!fs::exists(directory.spec())) {
    throw ConfigError(options.folder + ": no spec.json; want the folder of a run, e.g. results/quickstart/<run_id>");
  }
  const CheckpointFolder checkpoints(directory.checkpoints());
  if (comm::load_json(directory.spec()).contains("command")) {
    if (options.at || !options.changes.overrides.empty()) {
      throw ConfigError(directory.spec() + ": /command: got a program of your own with " +
                        (options.at ? "--at" : "--set") + ", want the folder alone: its checkpoints are the program's");
    }
    if (!options.how.quiet) {
      std::cerr << "droptest: the command is called again; where it goes on is up to checkpoints of its own\n";
    }
  }
  return options.changes.overrides.empty() ? resume_in_place(options, directory, checkpoints)
                                           : resume_elsewhere(options, directory, checkpoints);
}

}  // namespace

void add_resume_command(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("resume", "Continue an interrupted run from a checkpoint");
  const auto options = std::make_shared<ResumeOptions>();  // shared by CLI11's bindings and the action
  command->add_option("RUN", options->folder, "Folder of a run")->required();
  CLI::Option* const at = add_integer(*command, "--at", options->at,
                                      "Step of the checkpoint; later ones are removed. Without it: the newest", {});
  command
      ->add_flag_callback(
          "--again", [options] { options->how.again = experiments::Again::kYes; },
          "With --at: run a finished run once more from there; its records stay until the new ones are complete")
      ->needs(at);
  add_set_option(*command, options->changes);
  add_if_busy_option(*command, options->how.if_busy, {"wait", "skip", "fail"});
  command->add_flag("--quiet", options->how.quiet, "Print only errors");
  command->footer(
      "With --set the checkpoint becomes the start of another run, whose layout may be another one: parameters and\n"
      "optimizer are cut anew, and its links have fates of their own (docs/checkpoints.md).\n\n"
      "Examples:\n"
      "  droptest resume results/big/0123456789abcdef\n"
      "  droptest resume results/big/0123456789abcdef --at 400\n"
      "  droptest resume results/big/0123456789abcdef --at 400 --again\n"
      "  droptest resume results/big/0123456789abcdef --set /parallel/tensor=2");
  command->callback([options, &chosen] { chosen = [options] { return resume(*options); }; });
}

}  // namespace droptest::cli
