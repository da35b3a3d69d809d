// SPDX-License-Identifier: Apache-2.0
// Where a record comes from: version, commit, machine, libraries.
#pragma once

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace droptest::experiments {

struct Provenance {
  std::string version;   ///< of droptest
  std::string commit;    ///< of the tree that was built, "-dirty" appended where it was changed; "unknown" without git
  std::string host;      ///< this machine's name
  std::string compiler;  ///< e.g. "GNU 12.2.0"
  std::map<std::string, std::string> libraries;  ///< name -> version
  std::string started;                           ///< ISO 8601, UTC
  std::string finished;
};

/// All but the two times.
Provenance build_provenance();

/// "2025-03-01T12:34:56Z".
std::string utc_text(std::chrono::system_clock::time_point time);

nlohmann::json to_json(const Provenance& provenance);

}  // namespace droptest::experiments
