// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace droptest::experiments {

/// The file of a program that this process may run: a name with a slash is a path, another one is sought in the folders
/// of PATH. Absent: there is none.
std::optional<std::string> program_path(const std::string& name);

}  // namespace droptest::experiments
