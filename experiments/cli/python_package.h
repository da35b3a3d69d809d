// SPDX-License-Identifier: Apache-2.0
// The Python package `droptest`, of the source tree or installed.
#pragma once

#include <string>
#include <vector>

namespace droptest::cli {

/// Hands this process over to the package's command line, run by $DROPTEST_PYTHON (default /usr/bin/python3). Throws:
/// ConfigError if there is no such program.
[[noreturn]] void become_python_command(const std::vector<std::string>& arguments);

}  // namespace droptest::cli
