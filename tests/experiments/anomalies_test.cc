// SPDX-License-Identifier: Apache-2.0
// Each kind of anomaly on synthetic lines: found once at its place, and nowhere else.
#include "experiments/watch/anomalies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "experiments/schema/schema_kinds.h"
#include "sim/error.h"

namespace droptest::experiments::anomalies_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<AnomalyDetector::Rule> all_rules() {
  std::vector<AnomalyDetector::Rule> rules;
  for (const AnomalyKind& kind : anomaly_kinds()) rules.push_back({&kind, kind.threshold});
  return rules;
}

/// A healthy line: values waver by some percent, losses fall.
json line_at(std::uint64_t step) {
  const double waver = 1 + 0.02 * std::sin(7.0 * static_cast<double>(step));
  return {
      {"step", step},
      {"tokens", 1000 * step},
      {"seconds", 0.5 * static_cast<double>(step) * (1 + 1e-4 * waver)},
      {"train_loss", (5 - 0.01 * static_cast<double>(step)) * waver},
      {"gradient_norm", 2 * waver},
      {"divergence", {{"max", 1.0}, {"rms", 0.001 * static_cast<double>(step) * waver}, {"groups", json::object()}}},
      {"losses", {{"tp_forward", {{"packets", 1000}, {"lost", 50}, {"z", 1.5 * std::sin(static_cast<double>(step))}}}}},
      {"ranks", json::array({{{"resident_bytes", 1000000}, {"busy_seconds", 0.2 * waver}},
                             {{"resident_bytes", 1000000}, {"busy_seconds", 0.21}},
                             {{"resident_bytes", 1000000}, {"busy_seconds", 0.19}}})}};
}

/// "step kind quantity" of all anomalies, after `change` of each line.
std::vector<std::string> found_in(std::uint64_t lines, const std::function<void(std::uint64_t, json&)>& change) {
  AnomalyDetector detector(all_rules());
  std::vector<std::string> found;
  for (std::uint64_t step = 1; step <= lines; ++step) {
    json line = line_at(step);
    change(step, line);
    for (const Anomaly& anomaly : detector.take(line)) {
      found.push_back(std::to_string(step) + " " + std::string(anomaly.kind->name) + " " + anomaly.quantity);
    }
  }
  return found;
}

TEST(Anomalies, HealthyRunHasNone) {
  EXPECT_THAT(found_in(500, [](std::uint64_t, json&) {}), IsEmpty());
}

TEST(Anomalies, NullIsNotFinite) {
  EXPECT_THAT(found_in(30,
                       [](std::uint64_t step, json& line) {
                         if (step == 20) line["train_loss"] = nullptr;
                         if (step == 1) line["validation_loss"] = nullptr;
                       }),
              ElementsAre("1 not_finite validation_loss", "20 not_finite train_loss"));
}

TEST(Anomalies, LastingAnomalyIsReportedOnceAndAgainAfterItsEnd) {
  EXPECT_THAT(found_in(30,
                       [](std::uint64_t step, json& line) {
                         if (step >= 10 && step <= 12) line["gradient_norm"] = nullptr;
                         if (step == 15) line["gradient_norm"] = nullptr;
                       }),
              ElementsAre("10 not_finite gradient_norm", "15 not_finite gradient_norm"));
}

TEST(Anomalies, SpikesOfLossAndNormAreUpwards) {
  EXPECT_THAT(found_in(60,
                       [](std::uint64_t step, json& line) {
                         if (step == 40) line["train_loss"] = 9.0;
                         if (step == 45) line["train_loss"] = 0.5;
                         if (step == 50) line["gradient_norm"] = 20.0;
                         if (step == 55) line["gradient_norm"] = 0.01;
                       }),
              ElementsAre("40 loss_spike train_loss", "50 gradient_norm_spike gradient_norm"));
  EXPECT_THAT(found_in(8,
                       [](std::uint64_t step, json& line) {
                         if (step == 8) line["train_loss"] = 90.0;
                       }),
              IsEmpty())
      << "seven numbers are too few to judge";
  EXPECT_THAT(found_in(9,
                       [](std::uint64_t step, json& line) {
                         if (step == 9) line["train_loss"] = 90.0;
                       }),
              ElementsAre("9 loss_spike train_loss"));
}

TEST(Anomalies, SlowerStepsAreADropUnlessTheyMeasured) {
  const auto later = [](json& line, double seconds) { line["seconds"] = line["seconds"].get<double>() + seconds; };
  // A line without divergence, which every healthy line has here.
  const auto plain = [](json& line) { line.erase("divergence"); };
  // Lines of half a second, of which more than five seconds are judged at once: from step 111 on these take twice and
  // thrice the time.
  const auto slower = [&](double more) {
    return found_in(160, [&](std::uint64_t step, json& line) {
      plain(line);
      later(line, step > 110 ? more * static_cast<double>(step - 110) : 0);
    });
  };
  EXPECT_THAT(slower(0.4), IsEmpty());
  EXPECT_THAT(slower(1), ElementsAre(testing::EndsWith(" throughput_drop tokens_per_second")));
  EXPECT_THAT(found_in(400,
                       [&](std::uint64_t step, json& line) {
                         plain(line);
                         if (step % 40 == 0) line["validation_loss"] = 1;
                         later(line, static_cast<double>(step / 40) * 20);
                       }),
              IsEmpty());
}

TEST(Anomalies, OneSlowLineOfManyIsNoDrop) {
  EXPECT_THAT(found_in(40000,
                       [](std::uint64_t step, json& line) {
                         line.erase("divergence");
                         line.erase("losses");
                         line["train_loss"] = 2;
                         line["gradient_norm"] = 1;
                         // A millisecond each, and every seventh ten of them.
                         line["seconds"] = 1e-3 * static_cast<double>(step + 9 * (step / 7));
                       }),
              IsEmpty());
}

TEST(Anomalies, RankThatIsBusyWhileOthersWaitStraggles) {
  EXPECT_THAT(found_in(5,
                       [](std::uint64_t step, json& line) {
                         if (step == 3) line["ranks"][1]["busy_seconds"] = 0.7;
                         if (step == 4) line["ranks"][1]["busy_seconds"] = 0.4;
                       }),
              ElementsAre("3 straggling_rank ranks/1/busy_seconds"));
  EXPECT_THAT(found_in(5,
                       [](std::uint64_t, json& line) {
                         for (json& rank : line["ranks"]) rank["busy_seconds"] = 0.001;
                         line["ranks"][1]["busy_seconds"] = 0.009;
                       }),
              IsEmpty())
      << "times of the scheduler";
}

TEST(Anomalies, RealisedRateOffItsProcess) {
  EXPECT_THAT(found_in(5,
                       [](std::uint64_t step, json& line) {
                         if (step == 2) line["losses"]["tp_forward"]["z"] = -5.1;
                         if (step == 4) line["losses"]["tp_forward"]["z"] = 5.0;
                         if (step == 5) line["losses"]["tp_forward"]["z"] = nullptr;
                       }),
              ElementsAre("2 loss_rate losses/tp_forward/z"));
}

TEST(Anomalies, ReplicasThatDriftFasterThanBefore) {
  EXPECT_THAT(found_in(40,
                       [](std::uint64_t step, json& line) {
                         if (step >= 30) line["divergence"]["rms"] = 0.03 + 0.1 * static_cast<double>(step - 29);
                       }),
              ElementsAre("30 divergence_growth divergence/rms per step"));
}

TEST(Anomalies, MemoryThatGrowsOverItsFirstLines) {
  const auto grow = [](double factor) {
    return found_in(60, [factor](std::uint64_t step, json& line) {
      const double bytes = step <= 2 ? 1000 : 1e6 * (1 + factor * static_cast<double>(step) / 60);
      for (json& rank : line["ranks"]) rank["resident_bytes"] = bytes;
    });
  };
  EXPECT_EQ(grow(1.0).size(), 1U);
  EXPECT_THAT(grow(0.4), IsEmpty());
}

TEST(Anomalies, CountersThatGrow) {
  const auto found = found_in(30, [](std::uint64_t step, json& line) {
    if (step >= 10) line["failed_checkpoints"] = step < 20 ? 1 : 2;
    if (step >= 12) line["lost_samples"] = step;
  });
  EXPECT_THAT(found, ElementsAre("10 checkpoint_failed failed_checkpoints", "12 lost_samples lost_samples",
                                 "20 checkpoint_failed failed_checkpoints"));
  const auto restarted = found_in(30, [](std::uint64_t step, json& line) {
    if (step >= 10) line["failed_checkpoints"] = step < 20 ? 5 : 1;
  });
  EXPECT_THAT(restarted,
              ElementsAre("10 checkpoint_failed failed_checkpoints", "20 checkpoint_failed failed_checkpoints"))
      << "the count begins anew with a restart";
}

TEST(Anomalies, OverflowsOfMoreThanAQuarterOfTheSteps) {
  std::uint64_t skipped = 0;
  EXPECT_THAT(found_in(40,
                       [&skipped](std::uint64_t step, json& line) {
                         line["step"] = 4 * step;
                         if (step == 10) skipped += 1;
                         if (step >= 20 && step <= 22) skipped += 2;
                         line["skipped_steps"] = skipped;
                       }),
              ElementsAre("20 overflow skipped_steps per step"))
      << "one of four steps is no anomaly, two are, once while they last";
}

TEST(Anomalies, AnswersAreAFunctionOfTheLines) {
  const auto spike = [](std::uint64_t step, json& line) {
    if (step % 17 == 0) line["train_loss"] = 20.0;
  };
  EXPECT_EQ(found_in(100, spike), found_in(100, spike));
  EXPECT_FALSE(found_in(100, spike).empty());
}

TEST(Anomalies, LinesThatAreNoneDoNoHarm) {
  AnomalyDetector detector(all_rules());
  for (const char* text : {"1", "null", "[]", "{}", R"({"train_loss": "x", "seconds": [], "tokens": {}})",
                           R"({"losses": 3, "ranks": {"0": 1}, "divergence": null, "step": -1})",
                           R"({"losses": {"a": 1}, "ranks": [1, null], "divergence": {"rms": "a"}, "step": 1})"}) {
    EXPECT_THAT(detector.take(json::parse(text)), IsEmpty()) << text;
  }
}

TEST(Anomalies, RobustZIsThatOfIglewiczAndHoaglin) {
  const std::vector<double> before = {1, 2, 3, 4, 100};
  EXPECT_DOUBLE_EQ(robust_z(7, before), 0.6745 * (7 - 3) / 1);
  EXPECT_DOUBLE_EQ(robust_z(3, before), 0);
  const std::vector<double> even = {1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(robust_z(4.5, even), 0.6745 * 2 / 1);
  const std::vector<double> equal(8, 10.0);
  EXPECT_DOUBLE_EQ(robust_z(10.02, equal), 0.6745 * (10.02 - 10) / 0.01) << "a thousandth of the median";
}

TEST(Anomalies, MessagesNameNumbersAndPlaces) {
  const AnomalyKind& kind = anomaly_kind("loss_spike");
  const Anomaly spike{&kind, 0, "train_loss", 5.125, 12.5, 8.0};
  EXPECT_THAT(spike.message(), HasSubstr("loss spike: train_loss is 5.125 (robust z 12.5, threshold 8); look at "));
  const Anomaly none{&anomaly_kind("not_finite"), 0, "gradient_norm", std::nullopt, std::nullopt, std::nullopt};
  EXPECT_THAT(none.message(), HasSubstr("not finite: gradient_norm is not finite; look at "));
  EXPECT_THROW((void)anomaly_kind("surprise"), CheckError);
}

TEST(Anomalies, SchemasHaveAllKinds) {
  std::set<std::string> kinds;
  for (const AnomalyKind& kind : anomaly_kinds()) kinds.emplace(kind.name);
  const json of_event = schema_document("event")["properties"]["kind"]["enum"];
  EXPECT_EQ(std::set<std::string>(of_event.begin(), of_event.end()), kinds);
  const json of_spec = schema_document("spec")["properties"]["alerts"]["items"]["properties"]["when"]["enum"];
  kinds.insert("any");
  EXPECT_EQ(std::set<std::string>(of_spec.begin(), of_spec.end()), kinds);
}

}  // namespace
}  // namespace droptest::experiments::anomalies_test
