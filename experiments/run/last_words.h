// SPDX-License-Identifier: Apache-2.0
// The last line in the log of a failed process.
#pragma once

#include <string>

namespace droptest::experiments {

/// The last line of a process's log that is not empty, without the "droptest: error: " of our own; empty where there
/// is no log.
std::string last_words(const std::string& log_path);

}  // namespace droptest::experiments
