// SPDX-License-Identifier: Apache-2.0
// Anomalies of a run: written to events.jsonl, and followed by the actions that the spec asks for. docs/watching.md.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "experiments/records/metrics.h"
#include "experiments/records/run_records.h"
#include "experiments/run/child_process.h"
#include "experiments/run_config.h"
#include "experiments/watch/anomalies.h"

namespace droptest::experiments {

/// The actions that all ranks have to take, since the last question.
struct AlertRequest {
  bool checkpoint = false;
  std::string stop;  ///< why the run is to end; empty: it is not
};

/// Whether an alert can ask all ranks for something.
bool can_request(const std::vector<AlertConfig>& alerts);

/// Used by rank 0 alone, on one thread.
class AlertWatch {
 public:
  /// Hears of commands that fail.
  using Report = std::function<void(const std::string& text)>;
  AlertWatch(const std::vector<AlertConfig>& alerts, RunDirectory directory, Report report);

  /// Before the first line. The run continues from that step: the lines that metrics.jsonl still has are taken in
  /// again, and events.jsonl keeps its lines up to the step. Absent: an older events.jsonl is removed. Throws:
  /// ConfigError.
  void start(std::optional<std::uint64_t> step);
  /// Takes in the next line: writes its anomalies, and starts the commands of their alerts. Throws: ConfigError.
  void take(const nlohmann::json& line);
  AlertRequest take_request();
  /// Waits for the commands, that long at most, and ends those that go on. On the thread that called take().
  void finish(std::chrono::milliseconds patience);

 private:
  struct RunningCommand {
    ChildProcess process;
    std::string program;
    std::uint64_t step = 0;
  };
  /// The output of commands.
  std::string log_path() const { return directory_.path + "/alert.log"; }
  void run_command(const std::vector<std::string>& command, const nlohmann::json& event);
  void end_commands(std::chrono::milliseconds longest);
  const std::vector<AlertConfig> alerts_;  ///< of rule i of the detector is alerts_[i]
  const RunDirectory directory_;
  const Report report_;
  AnomalyDetector detector_;
  std::optional<MetricsWriter> events_;  ///< absent: no event yet
  AlertRequest request_;
  std::list<RunningCommand> commands_;
};

}  // namespace droptest::experiments
