// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/spec_options.h"
#include "experiments/cli/known_names.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>

#include "experiments/cli/number_options.h"
#include "experiments/spec/spec.h"

namespace droptest::cli {

void add_spec_options(CLI::App& command, SpecOptions& options) {
  command.add_option("SPEC", options.file, "Spec file (docs/specs.md)")->required();
  add_set_option(command, options);
}

void add_set_option(CLI::App& command, SpecOptions& options) {
  command
      .add_option("--set", options.overrides,
                  "Override a value of the spec: /pointer=value, e.g. /training/steps=100; may be given again")
      ->type_name("/POINTER=VALUE")
      ->take_all();
}

void add_out_option(CLI::App& command, std::string& out) {
  command.add_option("--out", out, "Folder of all results")->capture_default_str();
}

void add_jobs_option(CLI::App& command, int& jobs) {
  add_integer(command, "--jobs,-j", jobs,
              "Runs at once; default: one for each core that this process may use,\n"
              "on a GPU at most 8, and no more than fit into its memory",
              {1, 4096});
}

void add_if_busy_option(CLI::App& command, experiments::IfBusy& if_busy, const std::vector<std::string>& choices) {
  using experiments::IfBusy;
  static const std::map<std::string, IfBusy> kNames = {
      {"wait", IfBusy::kWait}, {"skip", IfBusy::kSkip}, {"fail", IfBusy::kFail}};
  std::string by_default;
  for (const auto& [name, value] : kNames) {
    if (value == if_busy) by_default = name;
  }
  command
      .add_option_function<std::string>(
          "--if-busy", [&if_busy](const std::string& name) { if_busy = kNames.at(name); },
          "If another process is at work on a run: wait until it ends, skip the run, or fail")
      ->check(one_of(choices))
      ->default_str(by_default);
}

experiments::SweepPlan load_plan(const SpecOptions& options, experiments::FileHashes* files,
                                 experiments::NumericsUse use) {
  return experiments::plan_sweep(experiments::read_spec(options.file, options.overrides), files, use);
}

PlanOfFiles plan_of_files(const SpecOptions& options) {
  try {
    experiments::FileHashes files;
    return {load_plan(options, &files), ""};
  } catch (const ConfigError& error) {
    return {load_plan(options, nullptr), error.what()};
  }
}

experiments::RunConfig load_run(SpecOptions options) {
  if (!options.overrides.empty()) options.overrides.emplace_back("/sweep=null");
  const experiments::SweepPlan plan = load_plan(options, nullptr, experiments::NumericsUse::kToRead);
  require_training(options.file, plan);
  return plan.runs.front().run.config;
}

void require_training(const std::string& file, const experiments::SweepPlan& plan) {
  if (!plan.runs.front().run.config.command) return;
  throw ConfigError(file + ": /command: got a program of your own, whose model and messages droptest does not know; " +
                    "want a spec that trains a model of droptest's");
}

void say_warnings(const SpecOptions& options, const experiments::SweepPlan& plan) {
  for (const experiments::PlanWarning& one : plan.warnings) {
    std::cerr << "droptest: warning: " << options.file << ": " << one.warning.pointer << ": " << one.warning.message;
    if (plan.points > 1) std::cerr << " (" << one.points << " of " << plan.points << " points)";
    std::cerr << "\n";
  }
}

}  // namespace droptest::cli
