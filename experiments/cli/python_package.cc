// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/python_package.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "sim/error.h"

namespace droptest::cli {
namespace {

// `-m droptest` is not used: its error would not say where the package was looked for.
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

std::string variable_or(const char* name, const char* fallback) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : fallback;
}

}  // namespace

void become_python_command(const std::vector<std::string>& arguments) {
  const std::string home = variable_or("DROPTEST_HOME", DROPTEST_SOURCE_ROOT);
  const std::string python = variable_or("DROPTEST_PYTHON", "/usr/bin/python3");
  const std::string folder = home + "/analysis";
  if (std::filesystem::exists(folder + "/droptest/__main__.py")) {
    const std::string path = variable_or("PYTHONPATH", "");
    ::setenv("PYTHONPATH", (folder + (path.empty() ? "" : ":" + path)).c_str(), 1);
  }
  std::vector<std::string> command = {python, "-c", kProgram, home};
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& argument : command) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::cout.flush();
  ::execvp(argv[0], argv.data());
  throw ConfigError(python + ": cannot run: " + std::strerror(errno) + "; set DROPTEST_PYTHON to a Python 3");
}

}  // namespace droptest::cli
