// SPDX-License-Identifier: Apache-2.0
// Starts ranks as processes (gloo_rank_main.cc) and collects their reports.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace droptest::comm {

/// A directory that is removed with its content.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct Scenario {
  int world_size = 2;
  std::string name;
  int culprit = -1;
  std::chrono::milliseconds timeout{30000};
  std::string launch_id = "test";
  int redis_port = 0;         ///< 0: rendezvous by files or by tcp_port
  int tcp_port = 0;           ///< port of a store on rank 0; 0: rendezvous by files or by redis_port
  std::vector<int> absent{};  ///< ranks that are not started
  int held_back = -1;         ///< a rank that waits until rank 0 has had twice the timeout
};

/// The report that a rank wrote before it ended; "" if it wrote nothing.
struct RankReport {
  std::string text;
  int wait_status = -1;  ///< status from waitpid; -1 if the process had to be killed
};

/// Runs the ranks until all except the culprit have ended, and then kills the remaining processes.
/// Fails the current test if a rank does not end in time.
std::vector<RankReport> run_processes(const Scenario& scenario, const std::filesystem::path& directory);

/// Starts a program with its output discarded.
pid_t start_process(const std::vector<std::string>& arguments);

}  // namespace droptest::comm
