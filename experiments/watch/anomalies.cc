// SPDX-License-Identifier: Apache-2.0
#include "experiments/watch/anomalies.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

constexpr std::size_t kWindow = 32;    ///< numbers that a new one is compared with
constexpr std::size_t kFewest = 8;     ///< nothing is judged before so many numbers
constexpr double kNormalMad = 0.6745;  ///< the MAD of the standard normal distribution
constexpr double kLeastMadShare = 1e-3;
constexpr double kLeastBusySeconds = 0.01;  ///< shorter times are those of the scheduler
constexpr double kSpeedSeconds = 5;         ///< shortest time of the lines over which a speed is judged

constexpr std::array kKinds = {
    AnomalyKind{
        "not_finite", AnomalyRule::kNotFinite, 0,
        "the gradient norms of the lines before, the learning rate, and the losses of that step: a sum with few "
        "arrivals under count_rescale or inverse_probability can be huge"},
    AnomalyKind{"loss_spike", AnomalyRule::kSpike, 8,
                "the gradient norm of that step, bursts in loss_statistics.json, and the learning rate"},
    AnomalyKind{"gradient_norm_spike", AnomalyRule::kSpike, 10,
                "the realised loss rates and nmse of the classes of gradients, and training.gradient_clip"},
    AnomalyKind{"throughput_drop", AnomalyRule::kShareOfMedian, 0.5,
                "other processes on the machine, ranks/*/cpu_percent, and checkpoints at that step"},
    AnomalyKind{"straggling_rank", AnomalyRule::kAbove, 3,
                "the host of that rank: its cores, other processes, temperature; the other ranks wait for it"},
    AnomalyKind{"loss_rate", AnomalyRule::kAbove, 5,
                "the loss process and the digest of that class: droptest fates shows single links"},
    AnomalyKind{"divergence_growth", AnomalyRule::kSpike, 8,
                "divergence/groups for the parameters that drift, and the loss of the class that carries them"},
    AnomalyKind{
        "overflow", AnomalyRule::kAbove, 0.25,
        "loss_scale of these lines: where it still falls, a smaller training.loss_scale.initial, and where it is "
        "small, the learning rate and fills that rescale"},
    AnomalyKind{"memory_growth", AnomalyRule::kGrowth, 1.5,
                "ranks/*/resident_bytes of the lines before; buffers of error feedback and stale values do not grow"},
    AnomalyKind{"checkpoint_failed", AnomalyRule::kAbove, 0,
                "space and rights of the run's folder; the older checkpoints are there: droptest checkpoint verify"},
    AnomalyKind{"lost_samples", AnomalyRule::kAbove, 0,
                "the shards that cannot be read: the run's messages name them, summary.json has them at the end"},
};

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

std::vector<double> kept(const std::deque<double>& before) { return {before.begin(), before.end()}; }

/// Absent if the member is no number, also if it is null.
std::optional<double> number_in(const json& object, const char* name) {
  if (!object.is_object() || !object.contains(name) || !object[name].is_number()) return std::nullopt;
  return object[name].get<double>();
}

/// The share of skipped steps since the line before.
std::optional<double> skipped_share(const json& line, const json& before) {
  const auto skipped = number_in(line, "skipped_steps");
  const auto step = number_in(line, "step");
  const double first = number_in(before, "step").value_or(0);
  if (!skipped || !step || *step <= first) return std::nullopt;
  return (*skipped - number_in(before, "skipped_steps").value_or(0)) / (*step - first);
}

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

std::string words_of(std::string_view name) {
  std::string words(name);
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

std::string score_text(AnomalyRule rule, double score, double threshold) {
  const char* name = rule == AnomalyRule::kSpike           ? "robust z "
                     : rule == AnomalyRule::kShareOfMedian ? "share of the median "
                     : rule == AnomalyRule::kGrowth        ? "times the first ones: "
                                                           : "size ";
  return name + short_number(score) + ", threshold " + short_number(threshold);
}

bool is_beyond(AnomalyRule rule, double score, double threshold) {
  return rule == AnomalyRule::kShareOfMedian ? score < threshold : score > threshold;
}

}  // namespace

std::span<const AnomalyKind> anomaly_kinds() { return kKinds; }

const AnomalyKind& anomaly_kind(std::string_view name) {
  const auto found =
      std::find_if(kKinds.begin(), kKinds.end(), [name](const AnomalyKind& k) { return k.name == name; });
  DROPTEST_CHECK(found != kKinds.end(), "unknown anomaly " + std::string(name));
  return *found;
}

std::string Anomaly::message() const {
  std::string text = words_of(kind->name) + ": " + quantity + " is " + (value ? short_number(*value) : "not finite");
  if (score && threshold) text += " (" + score_text(kind->rule, *score, *threshold) + ")";
  return text + "; look at " + std::string(kind->look_at);
}

json event_json(const Anomaly& anomaly, const json& line) {
  json event = {{"step", line.at("step")},
                {"seconds", line.at("seconds")},
                {"kind", anomaly.kind->name},
                {"quantity", anomaly.quantity},
                {"value", anomaly.value ? json(*anomaly.value) : json()},
                {"message", anomaly.message()},
                {"actions", json::array()}};
  if (anomaly.score) event["score"] = comm::finite_or_null(*anomaly.score);
  if (anomaly.threshold) event["threshold"] = *anomaly.threshold;
  return event;
}

double robust_z(double x, std::span<const double> before) {
  const double median = median_of({before.begin(), before.end()});
  std::vector<double> deviations;
  for (const double one : before) deviations.push_back(std::abs(one - median));
  const double mad = std::max(median_of(std::move(deviations)), kLeastMadShare * std::abs(median));
  if (x == median) return 0;
  return kNormalMad * (x - median) / mad;
}

AnomalyDetector::AnomalyDetector(std::vector<Rule> rules) : rules_(std::move(rules)) {}

std::vector<AnomalyDetector::Reading> AnomalyDetector::readings_of(const json& line) {
  std::vector<Reading> readings;
  for (const char* name : {"train_loss", "gradient_norm", "validation_loss", "selection_loss"}) {
    if (!line.contains(name)) continue;
    if (line[name].is_null() || line[name].is_number()) {
      readings.push_back({"not_finite", name, "", number_in(line, name)});
    }
  }
  if (const auto loss = number_in(line, "train_loss")) readings.push_back({"loss_spike", "train_loss", "loss", loss});
  if (const auto norm = number_in(line, "gradient_norm")) {
    readings.push_back({"gradient_norm_spike", "gradient_norm", "norm", norm});
  }
  add_increase(line, "checkpoint_failed", "failed_checkpoints", readings);
  add_increase(line, "lost_samples", "lost_samples", readings);
  add_speed(line, readings);
  if (line.contains("losses") && line["losses"].is_object()) {
    for (const auto& [name, counts] : line["losses"].items()) {
      if (const auto z = number_in(counts, "z")) readings.push_back({"loss_rate", "losses/" + name + "/z", "", z});
    }
  }
  if (const auto share = skipped_share(line, last_line_)) {
    readings.push_back({"overflow", "skipped_steps per step", "", share});
  }
  add_drift(line, readings);
  add_ranks(line, readings);
  return readings;
}

/// A counter that is absent is 0. After a restart it may begin anew.
void AnomalyDetector::add_increase(const json& line, std::string_view kind, const char* counter,
                                   std::vector<Reading>& readings) const {
  const double now = number_in(line, counter).value_or(0);
  const double before = number_in(last_line_, counter).value_or(0);
  readings.push_back({kind, counter, "", now, now < before ? now : now - before});
}

/// Lines with an evaluation or a sample took longer: they are compared only with each other.
void AnomalyDetector::add_speed(const json& line, std::vector<Reading>& readings) {
  const auto seconds = number_in(line, "seconds");
  const auto tokens = number_in(line, "tokens");
  if (!seconds || !tokens) return;
  const bool goes_on = speed_from_ && *seconds >= speed_from_->seconds && *tokens >= speed_from_->tokens;
  if (!goes_on) {  // the first line, or that of another attempt
    speed_from_ = {*seconds, *tokens};
    return;
  }
  speed_from_->measured |= line.contains("validation_loss") || line.contains("classes") || line.contains("divergence");
  if (*seconds - speed_from_->seconds < kSpeedSeconds) return;
  readings.push_back({"throughput_drop", "tokens_per_second", speed_from_->measured ? "speed of measured" : "speed",
                      (*tokens - speed_from_->tokens) / (*seconds - speed_from_->seconds)});
  speed_from_ = {*seconds, *tokens};
}

/// The increase of the RMS divergence per step since the last sample.
void AnomalyDetector::add_drift(const json& line, std::vector<Reading>& readings) {
  if (!line.contains("divergence")) return;
  const auto rms = number_in(line["divergence"], "rms");
  const auto step = number_in(line, "step");
  if (last_drift_.is_object() && rms && step) {
    const auto rms_before = number_in(last_drift_["divergence"], "rms");
    const auto step_before = number_in(last_drift_, "step");
    if (rms_before && step_before && *step > *step_before) {
      readings.push_back(
          {"divergence_growth", "divergence/rms per step", "drift", (*rms - *rms_before) / (*step - *step_before)});
    }
  }
  last_drift_ = line;
}

/// A rank straggles if it spends more time outside of collectives than the median of the others, which wait for it.
void AnomalyDetector::add_ranks(const json& line, std::vector<Reading>& readings) {
  if (!line.contains("ranks") || !line["ranks"].is_array() || line["ranks"].empty()) return;
  const json& ranks = line["ranks"];
  std::vector<double> busy;
  double bytes = 0;
  for (const json& rank : ranks) {
    bytes += number_in(rank, "resident_bytes").value_or(0);
    if (const auto seconds = number_in(rank, "busy_seconds")) busy.push_back(*seconds);
  }
  if (bytes > 0) readings.push_back({"memory_growth", "ranks/*/resident_bytes", "memory", bytes});
  if (busy.size() != ranks.size() || busy.size() < 2) return;
  for (std::size_t i = 0; i < busy.size(); ++i) {
    std::vector<double> others = busy;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    const double median = median_of(std::move(others));
    if (median < kLeastBusySeconds) continue;
    readings.push_back(
        {"straggling_rank", "ranks/" + std::to_string(i) + "/busy_seconds", "", busy[i], busy[i] / median});
  }
}

std::optional<double> AnomalyDetector::score(const AnomalyKind& kind, const Reading& reading) const {
  if (!reading.value) return std::nullopt;
  if (kind.rule == AnomalyRule::kNotFinite) return std::nullopt;
  if (kind.rule == AnomalyRule::kAbove) return std::abs(reading.size.value_or(*reading.value));
  const auto found = before_.find(reading.history);
  if (found == before_.end() || found->second.size() < kFewest) return std::nullopt;
  const std::vector<double> before = kept(found->second);
  if (kind.rule == AnomalyRule::kSpike) return robust_z(*reading.value, before);
  const double median = median_of(before);
  if (median <= 0) return std::nullopt;
  return *reading.value / median;
}

std::vector<Anomaly> AnomalyDetector::take(const json& line) {
  std::vector<Anomaly> found;
  if (!line.is_object()) return found;
  const std::vector<Reading> readings = readings_of(line);
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    const AnomalyKind& kind = *rules_[i].kind;
    for (const Reading& reading : readings) {
      if (reading.kind != kind.name) continue;
      const std::optional<double> scored = score(kind, reading);
      const bool beyond = kind.rule == AnomalyRule::kNotFinite
                              ? !reading.value.has_value()
                              : scored && is_beyond(kind.rule, *scored, rules_[i].threshold);
      bool& active = active_[std::to_string(i) + reading.quantity];
      if (beyond && !active) {
        const bool has_threshold = kind.rule != AnomalyRule::kNotFinite;
        found.push_back({&kind, i, reading.quantity, reading.value, scored,
                         has_threshold ? std::optional(rules_[i].threshold) : std::nullopt});
      }
      active = beyond;
    }
  }
  for (const Reading& reading : readings) {
    if (reading.history.empty() || !reading.value) continue;
    std::deque<double>& before = before_[reading.history];
    if (anomaly_kind(reading.kind).rule == AnomalyRule::kGrowth) {
      // The first numbers stay the reference.
      if (before.size() < kFewest) before.push_back(*reading.value);
      continue;
    }
    before.push_back(*reading.value);
    if (before.size() > kWindow) before.pop_front();
  }
  last_line_ = line;
  return found;
}

}  // namespace droptest::experiments
