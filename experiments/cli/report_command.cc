// SPDX-License-Identifier: Apache-2.0
// droptest report: hands over to the Python package `droptest`, of the source tree or installed.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>

#include "experiments/cli/commands.h"
#include "sim/error.h"

namespace droptest::cli {
namespace {

// Not `-m droptest`: its error would not say where the package was looked for.
constexpr char kProgram[] = R"(
import sys
try:
    from droptest.__main__ import main
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("droptest"):
        raise
    print(f"error: {sys.argv[1]} has no analysis/droptest, and {sys.executable} has no package droptest; set DROPTEST_HOME "
          "to the folder that droptest was built from, or install the package there: pip install .", file=sys.stderr)
    sys.exit(2)
sys.exit(main(sys.argv[2:]))
)";

struct ReportOptions {
  std::string directory;
  std::vector<std::string> arguments;
};

std::string variable_or(const char* name, const char* fallback) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : fallback;
}

int report(const ReportOptions& options) {
  if (!std::filesystem::is_directory(options.directory)) {
    throw ConfigError(options.directory + ": no such folder; want the folder of a sweep, e.g. results/quickstart");
  }
  const std::string home = variable_or("DROPTEST_HOME", DROPTEST_SOURCE_ROOT);
  const std::string python = variable_or("DROPTEST_PYTHON", "/usr/bin/python3");
  const std::string folder = home + "/analysis";
  if (std::filesystem::exists(folder + "/droptest/__main__.py")) {
    const std::string path = variable_or("PYTHONPATH", "");
    ::setenv("PYTHONPATH", (folder + (path.empty() ? "" : ":" + path)).c_str(), 1);
  }
  std::vector<std::string> command = {python, "-c", kProgram, home, "report", options.directory};
  command.insert(command.end(), options.arguments.begin(), options.arguments.end());
  std::vector<char*> argv;
  for (std::string& argument : command) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::cout.flush();
  ::execvp(argv[0], argv.data());
  throw ConfigError(python + ": cannot run: " + std::strerror(errno) + "; set DROPTEST_PYTHON to a Python 3");
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
