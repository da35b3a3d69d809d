// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/known_names.h"

#include <algorithm>

#include "comm/json/nearest_name.h"
#include "experiments/cli/number_options.h"

namespace droptest::cli {
namespace {

using comm::known_names_hint;

/// The commands that --help shows.
std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> options_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

}  // namespace

CLI::Validator one_of(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ",") + name;
  return {[names](const std::string& got) -> std::string {
            if (std::find(names.begin(), names.end(), got) != names.end()) return {};
            return "got \"" + got + "\"; " + known_names_hint(got, names, "values");
          },
          "{" + all + "}"};
}

std::string unknown_arguments(const CLI::App& app) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const std::vector<std::string> unknown = app.remaining(true);
  if (unknown.empty()) return {};
  const auto option =
      std::find_if(unknown.begin(), unknown.end(), [](const std::string& text) { return text.starts_with("-"); });
  if (chosen.empty() && !unknown.front().starts_with("-")) {
    return "unknown command \"" + unknown.front() + "\"; " +
           known_names_hint(unknown.front(), commands_of(app), "commands");
  }
  const CLI::App& command = chosen.empty() ? app : *chosen.front();
  if (option != unknown.end()) {
    const std::string name = option->substr(0, option->find('='));
    return command.get_name() + ": unknown option \"" + name + "\"; " +
           known_names_hint(name, options_of(command), "options");
  }
  std::string text = command.get_name() + ": got \"" + unknown.front() + "\" beyond its last argument";
  for (const CLI::Option* given : command.get_options()) {
    if (given->count() == 0 || given->get_type_name() != kIntegersType) continue;
    text += "; the values of " + given->get_name() + " have commas between them";
  }
  return text;
}

}  // namespace droptest::cli
