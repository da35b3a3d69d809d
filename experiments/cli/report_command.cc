// SPDX-License-Identifier: Apache-2.0
// droptest report
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "experiments/cli/commands.h"
#include "experiments/cli/python_package.h"
#include "sim/error.h"

namespace droptest::cli {
namespace {

struct ReportOptions {
  std::string directory;
  std::vector<std::string> arguments;
};

int report(const ReportOptions& options) {
  if (!std::filesystem::is_directory(options.directory)) {
    throw ConfigError(options.directory + ": no such folder; want the folder of a sweep, e.g. results/quickstart");
  }
  std::vector<std::string> arguments = {"report", options.directory};
  arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());
  become_python_command(arguments);
}

}  // namespace

void add_report_command(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("report", "Draw the plots of a sweep and write report.html");
  const auto options = std::make_shared<ReportOptions>();  // shared by CLI11's bindings and the action
  command->add_option("DIR", options->directory, "Folder of the sweep: <out>/<name>")->required();
  command->allow_extras();
  command->footer(
      "Works on a sweep that is not finished, too. Further options go to the Python package droptest, which is run by\n"
      "$DROPTEST_PYTHON (default /usr/bin/python3).\n\n"
      "Examples:\n"
      "  droptest report results/quickstart\n"
      "  droptest report results/quickstart --effect 0.01 --equivalent 0.02   seeds needed, and equal values");
  command->callback([options, command, &chosen] {
    options->arguments = command->remaining();
    chosen = [options] { return report(*options); };
  });
}

}  // namespace droptest::cli
