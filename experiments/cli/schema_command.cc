// SPDX-License-Identifier: Apache-2.0
// droptest schema
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "experiments/cli/commands.h"
#include "experiments/cli/known_names.h"
#include "experiments/schema/schema_kinds.h"

namespace droptest::cli {

void add_schema_command(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("schema", "Print the JSON Schema of specs or of a record file");
  const auto name = std::make_shared<std::string>();  // shared by CLI11's bindings and the action
  std::vector<std::string> names;
  for (const auto& [known, kind] : experiments::schema_names()) names.emplace_back(known);
  command->add_option("NAME", *name, "Which schema")->required()->check(one_of(names));
  command->footer(
      "resolved_spec follows from spec: every default is written out, every shorthand is gone.\n\n"
      "Examples:\n"
      "  droptest schema spec\n"
      "  droptest schema resolved_spec");
  command->callback([name, &chosen] {
    chosen = [name] {
      std::cout << experiments::self_contained_schema(*name).dump(2) << "\n";
      return kExitSuccess;
    };
  });
}

}  // namespace droptest::cli
