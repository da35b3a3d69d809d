// SPDX-License-Identifier: Apache-2.0
// metrics.jsonl: one line per logged step, written while the run goes on. docs/records.md is the format.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "comm/file_descriptor.h"
#include "sim/state_visitor.h"

namespace droptest::experiments {

/// Largest and root-mean-square difference of replicated values between ranks.
struct Divergence {
  double max = 0;
  double rms = 0;
};

/// The distance of sampled collectives from exact ones.
struct CollectiveError {
  double nmse = 0;
  double cosine = 1;
};

/// Packets of a traffic class since the start of the run.
struct RealisedLoss {
  std::uint64_t packets = 0;
  std::uint64_t lost = 0;
  double configured_rate = 0;
  double realised_rate = 0;
  double z = 0;  ///< follows from the variance of the process
};

/// The use of the machine by a rank. Rates are over the time since the line before.
struct RankUsage {
  std::uint64_t resident_bytes = 0;
  std::optional<std::uint64_t> device_bytes;
  double cpu_seconds = 0;
  double cpu_percent = 0;
  double busy_seconds = 0;  ///< wall time outside of the backend's calls
  std::uint64_t sent_bytes = 0;
  double sent_bytes_per_second = 0;
  /// Seconds of the rank's thread by phase, and in communication by traffic class; they add up to the time.
  std::map<std::string, double> phase_seconds;
  std::map<std::string, double> communication_seconds;
};
nlohmann::json to_json(const RankUsage& usage);

/// A stage of a pipeline lost its weights before a step.
struct StageFailure {
  std::uint64_t step = 0;
  int stage = 0;
  void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, step, stage); }
};

/// A replica took no part in steps of a run.
struct ReplicaAbsenceRecord {
  int data_rank = 0;
  std::uint64_t from = 0;   ///< the step before which it left
  std::uint64_t steps = 0;  ///< steps without it
  /// The step of the checkpoint that the others went on from; absent: none was needed.
  std::optional<std::uint64_t> reload_step{};
};

/// The checkpoints that a run has taken since it was last started.
struct CheckpointTotals {
  std::uint64_t completed = 0;
  std::uint64_t failed = 0;
  std::uint64_t bytes = 0;      ///< bytes of the last one's files, of all ranks
  double snapshot_seconds = 0;  ///< time in which training waited for copies of its state, on rank 0
};

/// The checkpoint that a run began with.
struct StartRecord {
  std::string run_id;
  std::uint64_t step = 0;
  int membership = 1;
  double copies_max = 0;             ///< largest difference of stored copies from the ones that count
  std::uint64_t copies_tensors = 0;  ///< pieces with copies that differ
  void visit_state(sim::StateVisitor& visitor) {
    visit_values(visitor, run_id, step, membership, copies_max, copies_tensors);
  }
};

/// One logged step; values that were not measured are absent. Values that are not finite become null. A number is
/// declared here and in experiments/schema/metrics.schema.json; all readers find it by its name.
struct MetricsLine {
  std::uint64_t step = 0;  ///< finished optimizer steps
  std::uint64_t tokens = 0;
  double seconds = 0;
  std::optional<double> virtual_seconds;  ///< the latest clock; absent without a time model
  std::optional<double> train_loss;
  std::optional<double> learning_rate;
  std::optional<double> gradient_norm;
  std::optional<double> loss_scale;            ///< loss scale of the step; absent: losses are not scaled
  std::optional<std::uint64_t> skipped_steps;  ///< steps with an overflow so far; absent: losses are not scaled
  std::optional<double> validation_loss;
  nlohmann::json classification{};       ///< ClassificationQuality of that validation; null: not measured
  std::optional<int> replicas;           ///< replicas that took the step; absent: all
  std::optional<double> selection_loss;  ///< loss after the last step, if the config has selection tokens
  std::optional<Divergence> divergence;
  std::map<std::string, Divergence> divergence_groups;  ///< divergence by parameter group; written with `divergence`
  std::map<std::string, CollectiveError> classes;       ///< errors by traffic class; written if not empty
  std::uint64_t lost_samples = 0;                       ///< samples so far in shards set aside; written if not 0
  std::uint64_t failed_checkpoints = 0;                 ///< failed checkpoints so far; written if not 0
  std::map<std::string, RealisedLoss> losses;           ///< losses by traffic class; written if not empty
  nlohmann::json ranks = nlohmann::json::array();       ///< RankUsage of each rank; written if not empty

  /// Calls visit(name, value) for each number that some lines lack: an optional, or a count that is not written if 0.
  template <class Visit>
  void visit_numbers(const Visit& visit) const {
    visit("virtual_seconds", virtual_seconds);
    visit("train_loss", train_loss);
    visit("learning_rate", learning_rate);
    visit("gradient_norm", gradient_norm);
    visit("loss_scale", loss_scale);
    visit("skipped_steps", skipped_steps);
    visit("validation_loss", validation_loss);
    visit("replicas", replicas);
    visit("selection_loss", selection_loss);
    visit("lost_samples", lost_samples);
    visit("failed_checkpoints", failed_checkpoints);
  }
};

nlohmann::json to_json_line(const MetricsLine& line);

/// Appends lines with a `step` each to a file, metrics.jsonl or another one. Each line is on its way to the disk when
/// append() returns, so that a crash of the process loses none and at most tears the last one.
class MetricsWriter {
 public:
  /// Starts a new file; one that is there is replaced. Throws: ConfigError with the path and the system's reason.
  static MetricsWriter create(const std::string& path);
  /// Goes on after the last whole line of a step up to `step`, in a new file without the lines after it. No file is an
  /// empty one. `on_line` gets each line that stays.
  static MetricsWriter resume(
      const std::string& path, std::uint64_t step,
      const std::function<void(const nlohmann::json& line)>& on_line = [](const nlohmann::json&) {});

  /// Throws: ConfigError with the path and the system's reason, e.g. a full disk; the torn line is cut off again.
  void append(const MetricsLine& line) { append(to_json_line(line)); }
  void append(const nlohmann::json& line);

 private:
  MetricsWriter(std::string path, int descriptor);
  std::string path_;
  comm::FileDescriptor file_;
};

/// Calls take(line) for each line of a file, which is read a line at a time; a torn last line is left out. Throws:
/// ConfigError for a torn line elsewhere, or no file.
void for_each_line(const std::string& path, const std::function<void(const nlohmann::json& line)>& take);

/// The multiples of a number, up to a step, for which a file of metrics lacks lines.
class MissingLines {
 public:
  /// `every_steps`: 0 asks for no lines.
  explicit MissingLines(std::uint64_t every_steps) : every_(every_steps) {}

  /// The file has a line of this step; steps ascend.
  void has(std::uint64_t step);
  /// The file ends here: "steps 4 to 10, 14" for every two steps, "and more" behind eight ranges; empty: no line is
  /// missing.
  std::string text_up_to(std::uint64_t step);

 private:
  const std::uint64_t every_;
  std::uint64_t next_ = 0;  ///< the first multiple that is not known to have a line
  int ranges_ = 0;          ///< ranges of missing steps so far
  std::string text_;
};

}  // namespace droptest::experiments
