// SPDX-License-Identifier: Apache-2.0
// Whole files as text.
#pragma once

#include <string>
#include <string_view>

namespace droptest::comm {

/// The contents of the whole file. Throws: ConfigError with the path and the system's reason.
std::string read_file(const std::string& path);

/// Throws ConfigError "<operation> <path>: <the system's reason for errno value `error`>".
[[noreturn]] void fail_on_file(std::string_view operation, const std::string& path, int error);

}  // namespace droptest::comm
