// SPDX-License-Identifier: Apache-2.0
// What a process that failed said last.
#pragma once

#include <string>

namespace droptest::experiments {

/// The last line of a process's log that is not empty, without the "droptest: error: " of our own; empty where there
/// is no log.
std::string last_words(const std::string& log_path);

}  // namespace droptest::experiments
