// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/alert_watch.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "comm/json/json_text.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kCommandGrace{1000};

/// One alert for each kind that an alert names, "any" taken apart; kinds without an alert are logged.
std::vector<AlertConfig> one_by_one(const std::vector<AlertConfig>& alerts) {
  std::vector<AlertConfig> all;
  for (const AnomalyKind& kind : anomaly_kinds()) {
    const std::size_t before = all.size();
    for (const AlertConfig& alert : alerts) {
      if (alert.when != "any" && alert.when != kind.name) continue;
      all.push_back(alert);
      all.back().when = kind.name;
    }
    if (all.size() == before) all.push_back({std::string(kind.name), std::nullopt, AlertConfig::Action::kLog, {}});
  }
  return all;
}

std::vector<AnomalyDetector::Rule> rules_of(const std::vector<AlertConfig>& alerts) {
  std::vector<AnomalyDetector::Rule> rules;
  for (const AlertConfig& alert : alerts) {
    const AnomalyKind& kind = anomaly_kind(alert.when);
    rules.push_back({&kind, alert.threshold.value_or(kind.threshold)});
  }
  return rules;
}

const char* action_name(AlertConfig::Action action) {
  switch (action) {
    case AlertConfig::Action::kLog:
      return "log";
    case AlertConfig::Action::kStop:
      return "stop";
    case AlertConfig::Action::kCheckpoint:
      return "checkpoint";
    case AlertConfig::Action::kCommand:
      return "command";
  }
  DROPTEST_CHECK(false, "unknown action of an alert");
}

/// Whether two alerts found the same: the line of events.jsonl is one then.
bool is_same(const json& event, const Anomaly& anomaly) {
  return event.at("kind") == anomaly.kind->name && event.at("quantity") == anomaly.quantity &&
         (!anomaly.threshold || event.at("threshold") == *anomaly.threshold);
}

}  // namespace

bool can_request(const std::vector<AlertConfig>& alerts) {
  return std::any_of(alerts.begin(), alerts.end(), [](const AlertConfig& alert) {
    return alert.action == AlertConfig::Action::kStop || alert.action == AlertConfig::Action::kCheckpoint;
  });
}

AlertWatch::AlertWatch(const std::vector<AlertConfig>& alerts, RunDirectory directory, Report report)
    : alerts_(one_by_one(alerts)),
      directory_(std::move(directory)),
      report_(std::move(report)),
      detector_(rules_of(alerts_)) {}

void AlertWatch::start(std::optional<std::uint64_t> step) {
  detector_ = AnomalyDetector(rules_of(alerts_));  // a run of several parts starts several times
  std::error_code error;
  if (!step) {
    std::filesystem::remove(directory_.events(), error);
    if (error) throw ConfigError(directory_.events() + ": cannot remove: " + error.message());
    std::filesystem::remove(log_path(), error);
    return;
  }
  for (const json& line : read_metrics(directory_.metrics())) (void)detector_.take(line);
  if (std::filesystem::exists(directory_.events(), error)) {
    events_ = MetricsWriter::resume(directory_.events(), *step);
  }
}

void AlertWatch::take(const json& line) {
  end_commands(std::chrono::milliseconds(0));
  std::vector<json> events;
  for (const Anomaly& anomaly : detector_.take(line)) {
    if (events.empty() || !is_same(events.back(), anomaly)) events.push_back(event_json(anomaly, line));
    json& event = events.back();
    const AlertConfig& alert = alerts_[anomaly.rule];
    event["actions"].push_back(action_name(alert.action));
    if (alert.action == AlertConfig::Action::kCheckpoint) request_.checkpoint = true;
    if (alert.action == AlertConfig::Action::kStop && request_.stop.empty()) {
      request_.stop = "an alert stopped the run at step " + line.at("step").dump() + ": " + anomaly.message();
    }
    if (alert.action == AlertConfig::Action::kCommand) run_command(alert.command, event);
  }
  for (const json& event : events) {
    const auto violations = schema_of(SchemaKind::kEvent).check(event);
    DROPTEST_CHECK(violations.empty(), "event: " + violations.at(0).pointer + ": " + violations.at(0).message);
    if (!events_) events_ = MetricsWriter::create(directory_.events());
    events_->append(event);
  }
}

AlertRequest AlertWatch::take_request() { return std::exchange(request_, {}); }

void AlertWatch::run_command(const std::vector<std::string>& command, const json& event) {
  ChildProcess::Options options;
  options.arguments = command;
  options.environment = {{"DROPTEST_RUN", directory_.path},
                         {"DROPTEST_STEP", event.at("step").dump()},
                         {"DROPTEST_EVENT", comm::canonical_json(event)}};
  options.log = log_path();
  options.log_mode = ChildProcess::Options::Log::kAppend;
  try {
    commands_.push_back({ChildProcess::start(options), command.front(), event.at("step").get<std::uint64_t>()});
  } catch (const std::exception& error) {
    report_(std::string("alert: ") + error.what());
  }
}

void AlertWatch::end_commands(std::chrono::milliseconds longest) {
  const auto until = std::chrono::steady_clock::now() + longest;
  for (auto command = commands_.begin(); command != commands_.end();) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    std::optional<ExitStatus> status = command->process.poll();
    if (!status && left.count() > 0) status = command->process.wait_for(left);
    if (!status) {
      ++command;
      continue;
    }
    if (!status->succeeded()) {
      report_("alert of step " + std::to_string(command->step) + ": the command " + command->program + " " +
              status->describe());
    }
    command = commands_.erase(command);
  }
}

void AlertWatch::finish(std::chrono::milliseconds patience) {
  end_commands(patience);
  for (RunningCommand& command : commands_) command.process.tell(SIGTERM);
  const auto until = std::chrono::steady_clock::now() + kCommandGrace;  // of all
  for (RunningCommand& command : commands_) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    (void)command.process.stop(std::max(left, std::chrono::milliseconds(0)));
    report_("alert of step " + std::to_string(command.step) + ": the command " + command.program +
            " was ended with the run");
  }
  commands_.clear();
}

}  // namespace droptest::experiments
