// SPDX-License-Identifier: Apache-2.0
// Anomalies of a run, found in its lines of metrics.jsonl. docs/watching.md has the rules.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace droptest::experiments {

/// The rule by which a number is judged.
enum class AnomalyRule : std::uint8_t {
  kNotFinite,      ///< the number is null
  kSpike,          ///< robust z over the numbers before: 0.6745 (x - median) / MAD
  kShareOfMedian,  ///< x / median of the numbers before, below the threshold
  kAbove,          ///< |x| above the threshold
  kGrowth,         ///< x / median of the first numbers, above the threshold
};

/// A row of the table of anomalies.
struct AnomalyKind {
  std::string_view name;  ///< name in specs and in events.jsonl
  AnomalyRule rule;
  double threshold;  ///< threshold, unless an alert gives another one; kNotFinite has none
  std::string_view look_at;
};
std::span<const AnomalyKind> anomaly_kinds();
/// Throws: CheckError for an unknown name.
const AnomalyKind& anomaly_kind(std::string_view name);

/// An anomaly of one line.
struct Anomaly {
  const AnomalyKind* kind = nullptr;
  std::size_t rule = 0;             ///< index of the watched rule that found it
  std::string quantity;             ///< "train_loss", "losses/tp_forward/z": the number's place in the line
  std::optional<double> value;      ///< absent: not finite
  std::optional<double> score;      ///< the number that was compared with the threshold; absent with kNotFinite
  std::optional<double> threshold;  ///< absent with kNotFinite
  /// The anomaly in words: "loss spike: train_loss is 5.1 (robust z 12.1, threshold 8); look at ..."
  std::string message() const;
};

/// The anomaly as a line of events.jsonl, without actions. `line` is the line of metrics.jsonl, by its schema.
nlohmann::json event_json(const Anomaly& anomaly, const nlohmann::json& line);

/// 0.6745 (x - median) / MAD of `before`, which is not empty. The MAD counts as at least a thousandth of the median, so
/// that equal numbers make no spike of rounding errors. Source: Iglewicz and Hoaglin 1993, modified z-score.
double robust_z(double x, std::span<const double> before);

/// Watches one run. An anomaly that lasts is reported once, at its first line; after a line without it, again. The
/// answer depends only on the lines.
class AnomalyDetector {
 public:
  struct Rule {
    const AnomalyKind* kind;
    double threshold;
  };
  explicit AnomalyDetector(std::vector<Rule> rules);

  /// Takes in the next line of metrics.jsonl; returns its anomalies in the order of the rules. Members of
  /// another type than the schema's are ignored.
  std::vector<Anomaly> take(const nlohmann::json& line);

 private:
  /// One number of a line, with the place of its history.
  struct Reading {
    std::string_view kind;
    std::string quantity;
    std::string history;
    std::optional<double> value;
    std::optional<double> size = {};  ///< judged in place of the value by kAbove
  };
  /// The beginning of the lines over which the next speed is judged.
  struct SpeedStart {
    double seconds = 0;
    double tokens = 0;
    bool measured = false;  ///< whether a line since then has a measurement
  };
  std::vector<Reading> readings_of(const nlohmann::json& line);
  void add_increase(const nlohmann::json& line, std::string_view kind, const char* counter,
                    std::vector<Reading>& readings) const;
  void add_speed(const nlohmann::json& line, std::vector<Reading>& readings);
  void add_drift(const nlohmann::json& line, std::vector<Reading>& readings);
  void add_ranks(const nlohmann::json& line, std::vector<Reading>& readings);
  std::optional<double> score(const AnomalyKind& kind, const Reading& reading) const;

  std::vector<Rule> rules_;
  std::map<std::string, std::deque<double>> before_;  ///< numbers before, by history
  std::map<std::string, bool> active_;                ///< whether the last line had the anomaly, by rule and quantity
  nlohmann::json last_line_;
  std::optional<SpeedStart> speed_from_;  ///< absent: no line yet
  nlohmann::json last_drift_;             ///< the last line with a divergence
};

}  // namespace droptest::experiments
