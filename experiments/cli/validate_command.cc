// SPDX-License-Identifier: Apache-2.0
// droptest validate
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "experiments/cli/commands.h"
#include "experiments/cli/spec_options.h"
#include "experiments/doctor/machine_checks.h"
#include "experiments/run/run_forecast.h"
#include "experiments/training/memory_estimate.h"
#include "sim/error.h"

namespace droptest::cli {
namespace {

struct ValidateOptions {
  std::vector<std::string> files;
  SpecOptions spec;
  bool spec_only = false;
};

/// The backends, files and memory that a plan's runs need and this machine lacks, line by line.
class Shortcomings {
 public:
  /// `no_files`: the reason why the runs of `plan` have no hashes of their files; empty: they have.
  Shortcomings(const experiments::SweepPlan& plan, const std::string& no_files, std::string where)
      : where_(std::move(where)) {
    if (!no_files.empty()) lines_.push_back(no_files);
    // Seeds do not change the needs: the first runs are those of all points.
    for (std::size_t i = 0; i < plan.points; ++i) {
      const experiments::PlannedRun& planned = plan.runs[i];
      if (planned.same_as != i || planned.run.config.command) continue;
      const std::string& backend = planned.run.config.backend.name;
      if (backends_.insert(backend).second) add("/backend/name", experiments::check_backend(backend));
      if (no_files.empty()) check_corpus(planned.run);
      if (memories_.insert(experiments::without_rates(planned.run.spec).dump()).second) {
        check_memory(planned.run.config);
      }
    }
  }

  const std::vector<std::string>& lines() const { return lines_; }

 private:
  void add(const std::string& pointer, const experiments::Finding& finding) {
    if (finding.health != experiments::Health::kFailed) return;
    const std::string line = where_ + ": " + pointer + ": " + finding.seen + "; " + finding.advice;
    if (std::find(lines_.begin(), lines_.end(), line) == lines_.end()) lines_.push_back(line);
  }

  void check_corpus(const experiments::ResolvedRun& run) {
    const nlohmann::json key = {run.spec.at("data"), run.spec.at("model"), run.spec.at("training"),
                                run.spec.at("validation")};
    if (corpora_.insert(key.dump()).second) add("/data", experiments::check_corpus(run.config));
  }

  /// Checks the memory of ranks on the host: a device has a memory of its own.
  void check_memory(const experiments::RunConfig& config) {
    const std::optional<std::uint64_t> total = experiments::total_memory_bytes();
    if (config.device == experiments::Device::kCuda || !total) return;
    const std::uint64_t state = experiments::state_bytes(config);
    const bool state_fits = state <= *total;  // else activations need no plan
    const std::uint64_t least =
        state_fits ? experiments::least_memory_bytes(config, {config.parallel.world_size(), 0}) : state;
    if (least <= *total) return;
    const std::string memory = experiments::memory_that_fits(config, *total);
    const std::string smaller = memory.empty() ? "" : "/memory " + memory + ", ";
    add("/model", {"memory", "", experiments::Health::kFailed,
                   "weights, gradients, moments and activations take " + experiments::bytes_text(least) +
                       ", but this machine, or its job, has " + experiments::bytes_text(*total),
                   "take " + smaller +
                       "a smaller model or /training/batch_sequences, or ranks on several machines (--spec-only "
                       "checks the spec for them)"});
  }

  std::string where_;
  std::set<std::string> backends_;
  std::set<std::string> corpora_;
  std::set<std::string> memories_;
  std::vector<std::string> lines_;
};

std::string runs_text(const experiments::SweepPlan& plan) {
  const std::size_t same = plan.same_runs();
  return std::to_string(plan.runs.size()) + (plan.runs.size() == 1 ? " run" : " runs") +
         (same == 0 ? "" : ", " + std::to_string(same) + " of them the same as others");
}

/// Checks all files, so that one wrong spec does not hide the next one's errors.
int validate(const ValidateOptions& options) {
  std::string errors;
  for (const std::string& file : options.files) {
    const SpecOptions spec{file, options.spec.overrides};
    try {
      const auto [plan, no_files] = options.spec_only ? PlanOfFiles{load_plan(spec, nullptr), ""} : plan_of_files(spec);
      say_warnings(spec, plan);
      std::vector<std::string> lacking;
      if (!options.spec_only) lacking = Shortcomings(plan, no_files, file).lines();
      for (const std::string& line : lacking) errors += (errors.empty() ? "" : "\n") + line;
      if (lacking.empty()) std::cout << file << ": ok, " << runs_text(plan) << "\n";
    } catch (const ConfigError& error) {
      errors += (errors.empty() ? "" : "\n") + std::string(error.what());
    }
  }
  if (!errors.empty()) throw ConfigError(errors);
  return kExitSuccess;
}

}  // namespace

void add_validate_command(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("validate", "Check specs without running anything");
  const auto options = std::make_shared<ValidateOptions>();  // shared by CLI11's bindings and the action
  command->add_option("SPEC", options->files, "Spec files (docs/specs.md)")->required();
  add_set_option(*command, options->spec);
  command->add_flag("--spec-only", options->spec_only,
                    "Check the specs alone, for runs on another machine: not files, backends and memory");
  command->footer(
      "Says everything that is wrong, with the JSON pointer, the value got and the values allowed, and what this\n"
      "machine lacks: data, initial weights, the backend, memory.\n\n"
      "Examples:\n"
      "  droptest validate experiments/specs/*.json\n"
      "  droptest validate spec.json --set /network/loss/loss_rate=120%");
  command->callback([options, &chosen] { chosen = [options] { return validate(*options); }; });
}

}  // namespace droptest::cli
