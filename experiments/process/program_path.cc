// SPDX-License-Identifier: Apache-2.0
#include "experiments/process/program_path.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <system_error>

namespace droptest::experiments {

std::optional<std::string> program_path(const std::string& name) {
  const auto runs = [](const std::string& path) {
    std::error_code error;
    return std::filesystem::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
  };
  if (name.find('/') != std::string::npos) return runs(name) ? std::optional(name) : std::nullopt;
  const char* const variable = std::getenv("PATH");
  std::istringstream folders(variable == nullptr ? "" : variable);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string path = (folder.empty() ? "." : folder) + "/" + name;
    if (runs(path)) return path;
  }
  return std::nullopt;
}

}  // namespace droptest::experiments
