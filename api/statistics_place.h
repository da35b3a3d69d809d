// SPDX-License-Identifier: Apache-2.0
// The choice of the network of a process that writes the counts of a rank into a folder.
#pragma once

#include <sys/types.h>

#include <string>
#include <tuple>

namespace droptest::api {

/// A rank's file in the folder of the counts. Only one network of the process and the library has it at a time, because
/// another one's counts would be lost.
/// Thread safety: any thread.
class StatisticsPlace {
 public:
  /// Removes the rank's file of an earlier program, so that the counts of a rank that is killed later are missing
  /// instead of old. An empty name: no place. `where`: name of the network's text. Throws: ConfigError if another
  /// network of this process has the place, or with the path and the system's reason.
  StatisticsPlace(const std::string& folder, int rank, const std::string& where);
  ~StatisticsPlace();
  StatisticsPlace(const StatisticsPlace&) = delete;
  StatisticsPlace& operator=(const StatisticsPlace&) = delete;

 private:
  // The process id, because a forked child does not have its parent's networks.
  std::tuple<pid_t, std::string, int> key_;
};

}  // namespace droptest::api
