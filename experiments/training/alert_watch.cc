// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/alert_watch.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "comm/json/json_text.h"
#include "experiments/process/last_words.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kCommandGrace{1000};

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

/// Whether two alerts found the same anomaly; they share a line of events.jsonl then.
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

/// A rule for each (kind, alert that names it); an alert for "any" names each kind. Kinds without an alert are logged.
std::vector<AlertWatch::Rule> AlertWatch::one_by_one(const std::vector<AlertConfig>& alerts) {
  std::vector<Rule> rules;
  for (const AnomalyKind& kind : anomaly_kinds()) {
    const std::size_t before = rules.size();
    for (std::size_t i = 0; i < alerts.size(); ++i) {
      if (alerts[i].when != "any" && alerts[i].when != kind.name) continue;
      rules.push_back({alerts[i], i});
      rules.back().config.when = kind.name;
    }
    if (rules.size() > before) continue;
    rules.push_back({{std::string(kind.name), std::nullopt, AlertConfig::Action::kLog, {}}, alerts.size()});
  }
  return rules;
}

AnomalyDetector AlertWatch::new_detector() const {
  std::vector<AnomalyDetector::Rule> rules;
  for (const Rule& rule : rules_) {
    const AnomalyKind& kind = anomaly_kind(rule.config.when);
    rules.push_back({&kind, rule.config.threshold.value_or(kind.threshold)});
  }
  return AnomalyDetector(std::move(rules));
}

AlertWatch::AlertWatch(const std::vector<AlertConfig>& alerts, RunDirectory directory, Report report)
    : alerts_(alerts),
      rules_(one_by_one(alerts)),
      directory_(std::move(directory)),
      report_(std::move(report)),
      detector_(new_detector()),
      turns_(alerts.size()) {}

AlertWatch::~AlertWatch() {
  try {
    say_left_out();                  // of a run that an error ended
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
  }
}

void AlertWatch::start(std::optional<std::uint64_t> step) {
  detector_ = new_detector();                                // a run of several parts starts several times
  for (CommandTurns& turns : turns_) turns.started.reset();  // the seconds of the run begin anew
  std::error_code error;
  if (!step) {
    std::filesystem::remove(directory_.events(), error);
    if (error) throw ConfigError(directory_.events() + ": cannot remove: " + error.message());
    std::filesystem::remove(log_path(), error);
    return;
  }
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
    const AlertConfig& alert = rules_[anomaly.rule].config;
    const bool runs = alert.action == AlertConfig::Action::kCommand;
    event["actions"].push_back(runs ? run_command(rules_[anomaly.rule], event) : action_name(alert.action));
    if (alert.action == AlertConfig::Action::kCheckpoint) request_.checkpoint = true;
    if (alert.action == AlertConfig::Action::kStop && request_.stop.empty()) {
      request_.stop = "an alert stopped the run at step " + line.at("step").dump() + ": " + anomaly.message();
    }
  }
  for (const json& event : events) {
    const auto violations = schema_of(SchemaKind::kEvent).check(event);
    DROPTEST_CHECK(violations.empty(), "event: " + violations.at(0).pointer + ": " + violations.at(0).message);
    if (!events_) events_ = MetricsWriter::create(directory_.events());
    events_->append(event);
  }
}

AlertRequest AlertWatch::take_request() { return std::exchange(request_, {}); }

const char* AlertWatch::run_command(const Rule& rule, const json& event) {
  CommandTurns& turns = turns_[rule.alert];
  const auto seconds = event.at("seconds").get<double>();
  const bool is_running = std::any_of(commands_.begin(), commands_.end(),
                                      [&rule](const RunningCommand& one) { return one.alert == rule.alert; });
  if (is_running || (turns.started && seconds - *turns.started < rule.config.interval_seconds)) {
    ++turns.left_out;
    ++turns.all_left_out;
    return "command_left_out";
  }
  json told = event;
  told["actions"].push_back(action_name(rule.config.action));
  ChildProcess::Options options;
  options.arguments = rule.config.command;
  options.environment = {{"DROPTEST_RUN", directory_.path},
                         {"DROPTEST_STEP", event.at("step").dump()},
                         {"DROPTEST_EVENT", comm::canonical_json(told)},
                         {"DROPTEST_LEFT_OUT", std::to_string(std::exchange(turns.left_out, 0))}};
  options.hidden_variables = {kSpokenWordsVariable};  // the words are the rank's
  options.log = log_path();
  options.log_mode = ChildProcess::Options::Log::kAppend;
  try {
    commands_.push_back(
        {ChildProcess::start(options), rule.config.command.front(), event.at("step").get<std::uint64_t>(), rule.alert});
  } catch (const std::exception& error) {
    report_(std::string("alert: ") + error.what());
  }
  turns.started = seconds;
  return action_name(rule.config.action);
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
  const auto until = std::chrono::steady_clock::now() + kCommandGrace;  // one deadline for all commands
  for (RunningCommand& command : commands_) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    (void)command.process.stop(std::max(left, std::chrono::milliseconds(0)));
    report_("alert of step " + std::to_string(command.step) + ": the command " + command.program +
            " was ended with the run");
  }
  commands_.clear();
  say_left_out();
}

void AlertWatch::say_left_out() {
  for (std::size_t i = 0; i < turns_.size(); ++i) {
    const std::uint64_t left_out = std::exchange(turns_[i].all_left_out, 0);
    if (left_out == 0) continue;
    report_("alert " + std::to_string(i) + ": the command " + alerts_[i].command.front() + " was left out " +
            std::to_string(left_out) + (left_out == 1 ? " time" : " times") +
            ", while it was running or within its interval of " + comm::quote_json(alerts_[i].interval_seconds) +
            " s (events.jsonl has the anomalies)");
  }
}

}  // namespace droptest::experiments
