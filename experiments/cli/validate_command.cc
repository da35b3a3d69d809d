// SPDX-License-Identifier: Apache-2.0
// droptest validate
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <sstream>

#include "experiments/cli/commands.h"
#include "experiments/cli/spec_options.h"
#include "sim/error.h"

namespace droptest::cli {
namespace {

struct ValidateOptions {
  std::vector<std::string> files;
  SpecOptions spec;
};

/// Checks all files, so that one wrong spec does not hide the next one's errors.
int validate(const ValidateOptions& options) {
  std::string errors;
  for (const std::string& file : options.files) {
    try {
      const experiments::SweepPlan plan = load_plan({file, options.spec.overrides}, Files::kHashed);
      std::cout << file << ": ok, " << plan.runs.size() << (plan.runs.size() == 1 ? " run\n" : " runs\n");
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
  command->footer(
      "Says everything that is wrong, with the JSON pointer, the value got and the values allowed.\n\n"
      "Examples:\n"
      "  droptest validate experiments/specs/*.json\n"
      "  droptest validate spec.json --set /network/loss/loss_rate=120%");
  command->callback([options, &chosen] { chosen = [options] { return validate(*options); }; });
}

}  // namespace droptest::cli
