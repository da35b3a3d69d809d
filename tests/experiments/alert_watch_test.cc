// SPDX-License-Identifier: Apache-2.0
// events.jsonl and the actions of alerts.
#include "experiments/training/alert_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "comm/json/json_text.h"
#include "comm/json/read_file.h"
#include "experiments/checkpoint/checkpoint_folder.h"
#include "sim/error.h"
#include "tests/comm/temporary_folder.h"
#include "tests/experiments/tiny_run.h"

namespace droptest::experiments::alert_watch_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Action = AlertConfig::Action;

json line_at(std::uint64_t step, const json& loss) {
  return {{"step", step}, {"tokens", 10 * step}, {"seconds", static_cast<double>(step)}, {"train_loss", loss}};
}

class Alerts : public ::testing::Test {
 protected:
  AlertWatch watch(std::vector<AlertConfig> alerts) {
    return {alerts, directory_, [this](const std::string& text) { reported_.push_back(text); }};
  }
  std::vector<json> events() const {
    std::vector<json> all;
    if (!std::filesystem::exists(directory_.events())) return all;
    for_each_line(directory_.events(), [&all](const json& event) { all.push_back(event); });
    return all;
  }
  /// Fifteen lines that waver, then one that is far off.
  static void take_spike(AlertWatch& watch, double spike = 50) {
    for (std::uint64_t step = 1; step <= 15; ++step) watch.take(line_at(step, 5 + 0.1 * static_cast<double>(step % 3)));
    watch.take(line_at(16, spike));
  }

  TemporaryFolder folder_;
  RunDirectory directory_{folder_.path()};
  std::vector<std::string> reported_;
};

TEST_F(Alerts, AnomalyIsLoggedWithoutAnAlert) {
  AlertWatch alerts = watch({});
  alerts.start(std::nullopt);
  take_spike(alerts);
  ASSERT_EQ(events().size(), 1U);
  const json event = events().front();
  EXPECT_EQ(event["step"], 16);
  EXPECT_EQ(event["kind"], "loss_spike");
  EXPECT_EQ(event["value"], 50);
  EXPECT_EQ(event["threshold"], 8);
  EXPECT_EQ(event["actions"], json({"log"}));
  EXPECT_TRUE(schema_of(SchemaKind::kEvent).check(event).empty());
  const AlertRequest request = alerts.take_request();
  EXPECT_FALSE(request.checkpoint);
  EXPECT_EQ(request.stop, "");
}

TEST_F(Alerts, HealthyRunHasNoFile) {
  AlertWatch alerts = watch({});
  alerts.start(std::nullopt);
  for (std::uint64_t step = 1; step <= 15; ++step) alerts.take(line_at(step, 5));
  EXPECT_FALSE(std::filesystem::exists(directory_.events()));
}

TEST_F(Alerts, RequestsComeOnce) {
  AlertWatch alerts =
      watch({{"loss_spike", std::nullopt, Action::kStop, {}}, {"any", std::nullopt, Action::kCheckpoint, {}}});
  alerts.start(std::nullopt);
  take_spike(alerts);
  ASSERT_EQ(events().size(), 1U) << "two alerts of one anomaly";
  EXPECT_EQ(events().front()["actions"], json({"stop", "checkpoint"}));
  const AlertRequest request = alerts.take_request();
  EXPECT_TRUE(request.checkpoint);
  EXPECT_THAT(request.stop, HasSubstr("an alert stopped the run at step 16: loss spike: train_loss is 50"));
  EXPECT_FALSE(alerts.take_request().checkpoint);
}

TEST_F(Alerts, ThresholdOfAnAlertReplacesTheUsualOne) {
  AlertWatch alerts = watch({{"loss_spike", 1e6, Action::kStop, {}}});
  alerts.start(std::nullopt);
  take_spike(alerts);
  EXPECT_THAT(events(), IsEmpty());
  AlertWatch two = watch({{"loss_spike", 1e6, Action::kStop, {}}, {"loss_spike", 20, Action::kLog, {}}});
  two.start(std::nullopt);
  take_spike(two);
  ASSERT_EQ(events().size(), 1U);
  EXPECT_EQ(events().front()["threshold"], 20);
  EXPECT_EQ(two.take_request().stop, "");
}

TEST_F(Alerts, CommandGetsTheEvent) {
  const std::string out = folder_.path() + "/out";
  AlertWatch alerts = watch({{"loss_spike",
                              std::nullopt,
                              Action::kCommand,
                              {"/bin/sh", "-c", "echo \"$DROPTEST_STEP $DROPTEST_RUN $DROPTEST_EVENT\" > " + out}}});
  alerts.start(std::nullopt);
  take_spike(alerts);
  alerts.finish(std::chrono::seconds(10));
  const std::string text = comm::read_file(out);
  EXPECT_THAT(text, HasSubstr("16 " + folder_.path() + " {"));
  EXPECT_EQ(json::parse(text.substr(text.find('{')))["kind"], "loss_spike");
  EXPECT_THAT(reported_, IsEmpty());
}

TEST_F(Alerts, CommandThatFailsIsReported) {
  AlertWatch alerts = watch({{"loss_spike", std::nullopt, Action::kCommand, {"/bin/false"}}});
  alerts.start(std::nullopt);
  take_spike(alerts);
  alerts.finish(std::chrono::seconds(10));
  EXPECT_THAT(reported_, ElementsAre(HasSubstr("alert of step 16: the command /bin/false ended with exit code 1")));
  AlertWatch absent = watch({{"loss_spike", std::nullopt, Action::kCommand, {"/no/such/program"}}});
  absent.start(std::nullopt);
  take_spike(absent);
  absent.finish(std::chrono::seconds(10));
  EXPECT_EQ(reported_.size(), 2U);
}

TEST_F(Alerts, OneCommandOfAnAlertRunsAtATime) {
  // Each line has two anomalies of new kinds; the command waits for a reader of its pipe until the end of the run.
  const std::string pipe = folder_.path() + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  AlertWatch alerts = watch({{"any", std::nullopt, Action::kCommand, {"/bin/sh", "-c", ": > " + pipe}, 0},
                             {"loss_spike", std::nullopt, Action::kCommand, {"/bin/true"}, 0}});
  alerts.start(std::nullopt);
  json line = line_at(1, nullptr);
  line["gradient_norm"] = nullptr;
  alerts.take(line);
  line = line_at(2, nullptr);
  line["lost_samples"] = 1;
  alerts.take(line);
  std::vector<json> actions;
  for (const json& event : events()) actions.push_back(event["actions"]);
  EXPECT_THAT(actions, ElementsAre(json({"command"}), json({"command_left_out"}), json({"command_left_out"})));
  for (const json& event : events()) EXPECT_TRUE(schema_of(SchemaKind::kEvent).check(event).empty());
  alerts.finish(std::chrono::milliseconds(0));
  EXPECT_THAT(reported_, ElementsAre(HasSubstr("alert of step 1: the command /bin/sh was ended with the run"),
                                     HasSubstr("alert 0: the command /bin/sh was left out 2 times")));
}

TEST_F(Alerts, CommandsThatWereLeftOutAreToldOfARunThatAnErrorEnds) {
  {
    AlertWatch alerts = watch({{"lost_samples", std::nullopt, Action::kCommand, {"/bin/true"}, 100}});
    alerts.start(std::nullopt);
    for (std::uint64_t step = 1; step <= 6; ++step) {
      json line = line_at(step, 5);
      line["lost_samples"] = (step + 1) / 2;
      alerts.take(line);
    }
    EXPECT_THAT(reported_, IsEmpty());
  }
  EXPECT_THAT(reported_, ElementsAre(HasSubstr("alert 0: the command /bin/true was left out 2 times")));
}

TEST_F(Alerts, ACommandStartsAgainAfterItsInterval) {
  const std::string out = folder_.path() + "/out";
  AlertWatch alerts = watch({{"lost_samples",
                              std::nullopt,
                              Action::kCommand,
                              {"/bin/sh", "-c", "echo \"$DROPTEST_STEP $DROPTEST_LEFT_OUT\" >> " + out},
                              10}});
  alerts.start(std::nullopt);
  // A second each; samples are lost before every other line, so that each loss is a new anomaly.
  for (std::uint64_t step = 1; step <= 23; ++step) {
    json line = line_at(step, 5);
    line["lost_samples"] = (step + 1) / 2;
    alerts.take(line);
    alerts.end_commands(std::chrono::seconds(10));
  }
  alerts.finish(std::chrono::seconds(10));
  EXPECT_EQ(comm::read_file(out), "1 0\n11 4\n21 4\n");
  EXPECT_THAT(reported_, ElementsAre(HasSubstr("/bin/sh was left out 9 times, while it was running or within its "
                                               "interval of 10")));
}

TEST_F(Alerts, RunThatContinuesKeepsItsEventsAndItsWindows) {
  {
    AlertWatch alerts = watch({});
    alerts.start(std::nullopt);
    MetricsWriter metrics = MetricsWriter::create(directory_.metrics());
    for (std::uint64_t step = 1; step <= 20; ++step) {
      const json line = line_at(step, step == 12 || step == 18 ? 50 : 5 + 0.1 * static_cast<double>(step % 3));
      metrics.append(line);
      alerts.take(line);
    }
    EXPECT_EQ(events().size(), 2U);
  }
  AlertWatch alerts = watch({});
  alerts.start(15);
  (void)MetricsWriter::resume(directory_.metrics(), 15, [&alerts](const json& line) { alerts.see(line); });
  EXPECT_EQ(events().size(), 1U) << "that of step 18 is forgotten";
  alerts.take(line_at(16, 50));
  ASSERT_EQ(events().size(), 2U) << "the 15 lines before count";
  EXPECT_EQ(events().back()["step"], 16);
  alerts.start(std::nullopt);
  EXPECT_FALSE(std::filesystem::exists(directory_.events()));
}

/// All ranks end after the same step, with a result that says why.
TEST(AlertsOfARun, StopEndsAllRanksAfterTheStep) {
  RunConfig config = tiny_config();
  config.record.every_steps = 1;
  config.alerts = {{"any", std::nullopt, Action::kStop, {}}};
  std::vector<TrainingOutcome> outcomes(2);
  std::uint64_t last = 0;
  bool ended = false;
  const Corpus corpus = tiny_corpus();
  comm::run_ranks(2, std::chrono::seconds(30), [&](comm::Communicator& group) {
    TrainingHooks hooks;
    hooks.on_line = [&](const MetricsLine& line) { last = line.step; };
    hooks.take_alert_request = [&] { return AlertRequest{false, last == 5 ? "because" : ""}; };
    hooks.on_end = [&] { ended = true; };
    outcomes[static_cast<std::size_t>(group.rank())] = train(config, corpus, group, hooks);
  });
  for (const TrainingOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.steps, 5U);
    EXPECT_EQ(outcome.alert, "because");
    EXPECT_FALSE(outcome.diverged_step.has_value());
  }
  EXPECT_TRUE(ended);
}

/// The line before the first step has no checkpoint of its own.
TEST(AlertsOfARun, ACheckpointThatTheFirstLineAsksForIsTakenAfterTheFirstStep) {
  const TemporaryFolder folder;
  RunConfig config = tiny_config();
  config.record.every_steps = 1;
  config.checkpoint.emplace();
  config.alerts = {{"any", std::nullopt, Action::kCheckpoint, {}}};
  const Corpus corpus = tiny_corpus();
  comm::run_ranks(2, std::chrono::seconds(30), [&](comm::Communicator& group) {
    TrainingHooks hooks;
    hooks.checkpoints =
        CheckpointPlace{folder.path() + "/checkpoints", "alerts", "0123456789abcdef", std::string(64, '0')};
    hooks.take_alert_request = [first = true]() mutable { return AlertRequest{std::exchange(first, false), ""}; };
    EXPECT_EQ(train(config, corpus, group, hooks).checkpoints.completed, 1U);
  });
  EXPECT_THAT(CheckpointFolder(folder.path() + "/checkpoints").steps(), ElementsAre(1U));
}

TEST(AlertsOfARun, StopAtTheLastStepIsNone) {
  RunConfig config = tiny_config();
  config.alerts = {{"any", std::nullopt, Action::kStop, {}}};
  std::uint64_t last = 0;
  const Corpus corpus = tiny_corpus();
  comm::run_ranks(2, std::chrono::seconds(30), [&](comm::Communicator& group) {
    TrainingHooks hooks;
    hooks.on_line = [&](const MetricsLine& line) { last = line.step; };
    hooks.take_alert_request = [&] { return AlertRequest{false, last == 12 ? "because" : ""}; };
    EXPECT_EQ(train(config, corpus, group, hooks).alert, "");
  });
}

TEST(AlertsOfARun, LinesHaveTheUseOfTheMachineAndRealisedLosses) {
  RunConfig config = tiny_config();
  config.record.sample_every_steps = 6;
  lose(config, sim::TrafficClass::kTpForward, 0.1);
  const TinyResult result = train_locally(config, tiny_corpus());
  const MetricsLine& last = result.lines.back();
  ASSERT_EQ(last.ranks.size(), 2U);
  EXPECT_TRUE(schema_of(SchemaKind::kMetrics).check(to_json_line(last)).empty());
  for (const json& rank : last.ranks) {
    EXPECT_GT(rank["resident_bytes"], 1000000);
    EXPECT_GT(rank["cpu_seconds"], 0);
    EXPECT_GT(rank["sent_bytes"], 1000);
    EXPECT_GE(rank["busy_seconds"], 0);
    EXPECT_FALSE(rank.contains("device_bytes"));
  }
  const comm::LossCounts total = result.outcome.statistics.front().total();
  const RealisedLoss& loss = last.losses.at("tp_forward");
  EXPECT_EQ(loss.packets, total.packets);
  EXPECT_EQ(loss.lost, total.lost_packets);
  EXPECT_EQ(loss.z, total.z());
  EXPECT_EQ(result.lines.front().losses.size(), 0U);
}

}  // namespace
}  // namespace droptest::experiments::alert_watch_test
