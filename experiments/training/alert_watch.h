// SPDX-License-Identifier: Apache-2.0
// Anomalies of a run: they are written to events.jsonl, and the spec's actions follow. docs/watching.md.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "experiments/process/child_process.h"
#include "experiments/records/metrics.h"
#include "experiments/records/run_records.h"
#include "experiments/spec/run_config.h"
#include "experiments/watch/anomalies.h"

namespace droptest::experiments {

/// The actions that all ranks have to take, asked for since the last AlertWatch::take_request().
struct AlertRequest {
  bool checkpoint = false;
  std::string stop;  ///< the reason to end the run; empty: it goes on
};

/// Whether an alert can ask all ranks for something.
bool can_request(const std::vector<AlertConfig>& alerts);

/// Used only by rank 0, on one thread. Each alert has at most one command that runs.
class AlertWatch {
 public:
  /// Hears of commands that fail.
  using Report = std::function<void(const std::string& text)>;
  AlertWatch(const std::vector<AlertConfig>& alerts, RunDirectory directory, Report report);
  /// Reports how many commands were left out, if finish() was not called.
  ~AlertWatch();
  AlertWatch(const AlertWatch&) = delete;
  AlertWatch& operator=(const AlertWatch&) = delete;

  /// Called before the first line. With `step` the run continues from that step: events.jsonl keeps its lines up to
  /// `step`, and the caller then passes the earlier lines of metrics.jsonl to see(). Without `step`, an older
  /// events.jsonl is removed. Throws: ConfigError.
  void start(std::optional<std::uint64_t> step);
  /// Takes in a line of an earlier attempt, and writes no event.
  void see(const nlohmann::json& line) { (void)detector_.take(line); }
  /// Takes in the next line: writes its anomalies, and starts the commands of their alerts. Throws: ConfigError.
  void take(const nlohmann::json& line);
  AlertRequest take_request();
  /// Waits for the commands, that long at most, and reports commands that failed. Called on the thread of take().
  void end_commands(std::chrono::milliseconds longest);
  /// Waits for the commands, that long at most, ends commands that go on, and reports how many were left out. Called on
  /// the thread of take().
  void finish(std::chrono::milliseconds patience);

 private:
  /// A rule of the detector.
  struct Rule {
    AlertConfig config;
    std::size_t alert;  ///< index of the alert in the spec; the number of alerts if it belongs to none
  };
  /// The starts of one alert's command.
  struct CommandTurns {
    std::optional<double> started;   ///< second of the run at the last start
    std::uint64_t left_out = 0;      ///< starts left out since the last start
    std::uint64_t all_left_out = 0;  ///< starts left out since say_left_out()
  };
  struct RunningCommand {
    ChildProcess process;
    std::string program;
    std::uint64_t step = 0;
    std::size_t alert = 0;
  };
  static std::vector<Rule> one_by_one(const std::vector<AlertConfig>& alerts);
  AnomalyDetector new_detector() const;
  /// The output of commands.
  std::string log_path() const { return directory_.path + "/alert.log"; }
  /// Starts the command of the rule's alert, unless an earlier one still runs or the interval has not passed. Returns
  /// the action for events.jsonl: "command" or "command_left_out".
  const char* run_command(const Rule& rule, const nlohmann::json& event);
  /// Reports how many starts of each alert's command were left out since the last report.
  void say_left_out();

  const std::vector<AlertConfig> alerts_;
  const std::vector<Rule> rules_;  ///< rule i of the detector is rules_[i]
  const RunDirectory directory_;
  const Report report_;
  AnomalyDetector detector_;
  std::optional<MetricsWriter> events_;  ///< absent: no event yet
  AlertRequest request_;
  std::list<RunningCommand> commands_;
  std::vector<CommandTurns> turns_;  ///< one for each alert of the spec
};

}  // namespace droptest::experiments
