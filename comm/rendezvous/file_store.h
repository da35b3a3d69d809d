// SPDX-License-Identifier: Apache-2.0
// A launch's keys as files that all its processes see.
#pragma once

#include <memory>
#include <string>

#include "comm/rendezvous/launch_store.h"

namespace droptest::comm {

/// Files in a directory of the launch: `<directory>/<launch_id>/<key>`, each written whole and then linked in place.
/// Throws: ConfigError for a directory that is empty or cannot be made.
std::unique_ptr<LaunchStore> open_file_store(const std::string& directory, const std::string& launch_id);

}  // namespace droptest::comm
