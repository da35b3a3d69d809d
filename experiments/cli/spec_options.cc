// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/spec_options.h"

#include <CLI/CLI.hpp>

#include "experiments/spec/json_text.h"
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

experiments::SweepPlan load_plan(const SpecOptions& options) {
  return experiments::plan_sweep(experiments::load_spec(options.file, options.overrides));
}

nlohmann::json parse_json_option(const std::string& text, const std::string& option) {
  return experiments::parse_json(text, option);
}

}  // namespace droptest::cli
