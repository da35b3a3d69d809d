// SPDX-License-Identifier: Apache-2.0
// Finds another program, runs it to its end, and returns its output.
#pragma once

#include <string>
#include <vector>

namespace droptest::experiments {

struct ProgramOutput {
  int exit_code = 0;   ///< 128 + the signal's number if a signal killed it
  std::string output;  ///< standard output
  std::string errors;  ///< standard error

  bool succeeded() const { return exit_code == 0; }
};

/// Starts the program, which is searched in PATH, with an empty standard input, and waits for its end. Blocks.
/// Throws: ConfigError with the system's reason if it cannot be started.
ProgramOutput run_program(const std::vector<std::string>& arguments);

/// The path of a program that PATH has. Throws: ConfigError that names the folders of PATH.
std::string path_of_program(const std::string& name);

}  // namespace droptest::experiments
