// SPDX-License-Identifier: Apache-2.0
// metrics.jsonl: one line per logged step, written while the run goes on. docs/records.md is the format.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace droptest::experiments {

/// Largest and root-mean-square difference of replicated values between ranks.
struct Divergence {
  double max = 0;
  double rms = 0;
};

/// How far sampled collectives were from exact ones.
struct CollectiveError {
  double nmse = 0;
  double cosine = 1;
};

/// A stage of a pipeline has lost its weights before a step.
struct StageFailure {
  std::uint64_t step = 0;
  int stage = 0;
};

/// One logged step; values that were not measured are absent. Values that are not finite become null.
struct MetricsLine {
  std::uint64_t step = 0;  ///< finished optimizer steps
  std::uint64_t tokens = 0;
  double seconds = 0;
  std::optional<double> virtual_seconds;  ///< the latest clock; absent without a time model
  std::optional<double> train_loss;
  std::optional<double> learning_rate;
  std::optional<double> gradient_norm;
  std::optional<double> validation_loss;
  std::optional<double> selection_loss;  ///< after the last step, where the config has selection tokens
  std::optional<Divergence> divergence;
  std::map<std::string, Divergence> divergence_groups;  ///< by parameter group; written with `divergence`
  std::map<std::string, CollectiveError> classes;       ///< by traffic class; written where not empty
};

nlohmann::json to_json_line(const MetricsLine& line);

/// Appends lines to a file. Each line is on its way to the disk when append() returns, so that a crash of the process
/// loses none and at most tears the last one.
class MetricsWriter {
 public:
  /// Starts a new file; one that is there is replaced. Throws: ConfigError with the path and the system's reason.
  static MetricsWriter create(const std::string& path);
  /// Goes on after the last whole line of a step up to `step`; the lines after it are cut off.
  static MetricsWriter resume(const std::string& path, std::uint64_t step);

  ~MetricsWriter();
  MetricsWriter(MetricsWriter&& other) noexcept;
  MetricsWriter& operator=(MetricsWriter&& other) noexcept;

  /// Throws: ConfigError with the path and the system's reason, e.g. a full disk; the torn line is cut off again.
  void append(const MetricsLine& line);

 private:
  MetricsWriter(std::string path, int descriptor);
  std::string path_;
  int descriptor_ = -1;
};

/// The lines of a file; a torn last line is left out. Throws: ConfigError for a torn line elsewhere, or no file.
std::vector<nlohmann::json> read_metrics(const std::string& path);

}  // namespace droptest::experiments
