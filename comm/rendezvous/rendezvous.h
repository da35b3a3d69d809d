// SPDX-License-Identifier: Apache-2.0
// The place where the processes of a launch find each other, for every backend.
#pragma once

#include <cstdint>
#include <string>

namespace droptest::comm {

struct Rendezvous {
  enum class Kind : std::uint8_t { kFile, kRedis, kTcp };
  Kind kind = Kind::kFile;
  std::string directory;           ///< kFile: a directory that all ranks see
  std::string host = "127.0.0.1";  ///< kRedis: host of the server; kTcp: host of rank 0
  int port = 6379;                 ///< port, for kRedis and kTcp
  /// Separates launches that share a store: no launch reads stale keys of an earlier one.
  std::string launch_id;
};

}  // namespace droptest::comm
