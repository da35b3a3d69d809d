// SPDX-License-Identifier: Apache-2.0
#include "experiments/watch/open_metrics.h"

#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace droptest::experiments {
namespace {

using nlohmann::json;
using Labels = std::vector<std::pair<std::string, std::string>>;

enum class MetricKind : std::uint8_t { kGauge, kCounter };

/// A label's value: backslash, quote and newline escaped.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') out += '\\';
    out += c;
  }
  return out;
}

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return json(value).dump();
}

/// The samples of metrics, each metric's together, in the order of their declarations.
class MetricFamilies {
 public:
  /// Declares a metric; its samples follow. The samples of a counter have its name and "_total", which the name
  /// itself must not end with. Source: OpenMetrics 1.0, "Counter".
  void family(const std::string& name, MetricKind kind, const std::string& help) {
    const std::string full = "droptest_" + name;
    const bool counts = kind == MetricKind::kCounter;
    const std::string type = counts ? "counter" : "gauge";
    families_.push_back(
        {"# TYPE " + full + " " + type + "\n# HELP " + full + " " + help + "\n", full + (counts ? "_total" : ""), ""});
    place_[name] = families_.size() - 1;
  }
  void add(const std::string& name, const Labels& labels, double value) {
    Family& metric = families_[place_.at(name)];
    std::string text = metric.sample + "{";
    std::string comma;
    for (const auto& [label, of_label] : labels) {
      text += comma + label + "=\"" + escaped(of_label) + "\"";
      comma = ",";
    }
    metric.samples += text + "} " + number_text(value) + "\n";
  }
  /// Null stands for a number that is not finite; other values that are no numbers have no sample.
  void add(const std::string& name, const Labels& labels, const json& line, const char* member_name) {
    if (!line.is_object() || !line.contains(member_name)) return;
    const json& value = line[member_name];
    if (value.is_number()) add(name, labels, value.get<double>());
    if (value.is_null()) add(name, labels, std::nan(""));
  }
  std::string text() const {
    std::string text;
    for (const Family& metric : families_) {
      if (!metric.samples.empty()) text += metric.head + metric.samples;
    }
    return text + "# EOF\n";
  }

 private:
  struct Family {
    std::string head;    ///< lines with type and help
    std::string sample;  ///< name of its samples
    std::string samples;
  };
  std::vector<Family> families_;
  std::map<std::string, std::size_t> place_;
};

Labels with(Labels labels, const std::string& name, const std::string& value) {
  labels.emplace_back(name, value);
  return labels;
}

constexpr std::array kStates = {WatchedRun::State::kWaiting,  WatchedRun::State::kRunning,
                                WatchedRun::State::kStopped,  WatchedRun::State::kCompleted,
                                WatchedRun::State::kDiverged, WatchedRun::State::kFailed};

void declare(MetricFamilies& metrics) {
  using enum MetricKind;
  metrics.family("runs", kGauge, "Runs of an experiment in a state.");
  metrics.family("run_steps", kCounter, "Finished optimizer steps.");
  metrics.family("run_wanted_steps", kGauge, "Optimizer steps that the run is to take.");
  metrics.family("run_tokens", kCounter, "Tokens trained on.");
  metrics.family("run_train_loss_nats", kGauge, "Last training loss.");
  metrics.family("run_validation_loss_nats", kGauge, "Last validation loss.");
  metrics.family("run_gradient_norm", kGauge, "Last gradient norm, before clipping.");
  metrics.family("run_tokens_per_second", kGauge, "Tokens trained on per second.");
  metrics.family("run_replica_divergence_rms", kGauge, "Root mean square difference between replicas.");
  metrics.family("run_anomalies", kCounter, "Lines of events.jsonl of a kind.");
  metrics.family("packets", kCounter, "Packets sent at first.");
  metrics.family("lost_packets", kCounter, "Packets lost at first.");
  metrics.family("rank_resident_memory_bytes", kGauge, "Memory of the rank's process.");
  metrics.family("rank_device_memory_bytes", kGauge, "Memory in use on the rank's GPU.");
  metrics.family("rank_cpu_seconds", kCounter, "Processor time of the rank.");
  metrics.family("rank_sent_bytes", kCounter, "Bytes that the rank handed to its backend.");
}

void add_run(MetricFamilies& metrics, const WatchedRun& run) {
  const Labels labels = {
      {"experiment", run.experiment()}, {"run", run.run_id()}, {"point", run.title()}, {"seed", run.seed()}};
  if (run.steps() != 0) metrics.add("run_wanted_steps", labels, static_cast<double>(run.steps()));
  if (!run.has_lines()) return;
  const json& last = run.last_line();
  metrics.add("run_steps", labels, last, "step");
  metrics.add("run_tokens", labels, last, "tokens");
  const json latest = {{"train_loss", run.last("train_loss")},
                       {"validation_loss", run.last("validation_loss")},
                       {"gradient_norm", run.last("gradient_norm")}};
  for (const auto& [name, metric] :
       {std::pair{"train_loss", "run_train_loss_nats"}, std::pair{"validation_loss", "run_validation_loss_nats"},
        std::pair{"gradient_norm", "run_gradient_norm"}}) {
    metrics.add(metric, labels, latest, name);
  }
  if (const auto speed = run.tokens_per_second()) metrics.add("run_tokens_per_second", labels, *speed);
  metrics.add("run_replica_divergence_rms", labels, run.last("divergence"), "rms");
  for (const auto& [kind, count] : run.events()) {
    metrics.add("run_anomalies", with(labels, "kind", kind), static_cast<double>(count));
  }
  if (run.losses().is_object()) {
    for (const auto& [name, counts] : run.losses().items()) {
      metrics.add("packets", with(labels, "class", name), counts, "packets");
      metrics.add("lost_packets", with(labels, "class", name), counts, "lost");
    }
  }
  const json ranks = run.last("ranks");
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Labels of_rank = with(labels, "rank", std::to_string(i));
    metrics.add("rank_resident_memory_bytes", of_rank, ranks[i], "resident_bytes");
    metrics.add("rank_device_memory_bytes", of_rank, ranks[i], "device_bytes");
    metrics.add("rank_cpu_seconds", of_rank, ranks[i], "cpu_seconds");
    metrics.add("rank_sent_bytes", of_rank, ranks[i], "sent_bytes");
  }
}

}  // namespace

std::string open_metrics_text(const WatchedRuns& runs) {
  MetricFamilies metrics;
  declare(metrics);
  std::map<std::string, std::map<WatchedRun::State, double>> counts;
  for (const WatchedRun* run : runs.runs()) ++counts[run->experiment()][run->state()];
  for (auto& [experiment, of_state] : counts) {
    for (const WatchedRun::State state : kStates) {
      metrics.add("runs", {{"experiment", experiment}, {"state", std::string(state_name(state))}}, of_state[state]);
    }
  }
  for (const WatchedRun* run : runs.runs()) add_run(metrics, *run);
  return metrics.text();
}

}  // namespace droptest::experiments
