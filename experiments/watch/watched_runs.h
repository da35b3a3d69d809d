// SPDX-License-Identifier: Apache-2.0
// Runs as their record files show them, while other processes write the files, on this machine or another one.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "experiments/records/metrics_tail.h"
#include "experiments/records/point_text.h"
#include "experiments/records/run_holder.h"
#include "experiments/records/run_records.h"
#include "experiments/schema/schema_kinds.h"

namespace droptest::experiments {

/// All lines of a file; or, of metrics.jsonl, only the lines with the last values that are shown (shown_values.h), with
/// only these values.
enum class Lines : std::uint8_t { kAll, kShown };

/// Calls take(record) for each line of a file of JSON lines that is new, and that the schema allows. Returns the reason
/// why a line is left out, with its file; empty: no line is left out.
std::string read_new_records(MetricsTail& tail, SchemaKind kind, const std::function<void(nlohmann::json record)>& take,
                             Lines lines = Lines::kAll);

/// One run, by the last of its records: the memory does not grow with its lines.
class WatchedRun {
 public:
  enum class State : std::uint8_t { kWaiting, kRunning, kStopped, kCompleted, kDiverged, kFailed };

  /// `experiment`: its name, which need not be UTF-8. `listed`: the run's entry in sweep.json, by its schema; null if
  /// it has none. `names`: the names of its point's pointers.
  WatchedRun(const std::string& experiment, RunDirectory directory, const nlohmann::json& listed, PointNames names);

  /// Reads the parts of the records that are new. A file that is missing or not yet whole is read another time; a line
  /// that its schema does not allow is left out.
  void update();

  /// The path and the reason for each file that this version cannot read.
  std::vector<std::string> unreadable() const;

  const std::string& experiment() const { return experiment_; }  ///< name of the spec
  const RunDirectory& directory() const { return directory_; }
  std::string run_id() const;
  const nlohmann::json& point() const { return point_; }
  std::string title() const { return names_.text(point_, labels_); }
  std::string seed() const { return seeds_.is_null() ? "-" : seeds_text(seeds_); }
  State state() const { return state_; }
  bool has_ended() const { return state_ >= State::kCompleted; }
  /// The process that works on the run, or that had left its lock when it fell silent; only before the end.
  const std::optional<RunHolder>& holder() const { return holder_; }

  bool has_lines() const { return !last_line_.is_null(); }
  /// step, tokens and seconds of the last line of metrics.jsonl; null before it. A run that continues from a checkpoint
  /// forgets the lines after it.
  const nlohmann::json& last_line() const { return last_line_; }
  /// Anomalies: the last ones, at most kLastEvents, and how many there are of each kind.
  static constexpr std::size_t kLastEvents = 8;
  const std::deque<nlohmann::json>& last_events() const { return last_events_; }
  const std::map<std::string, std::uint64_t>& events() const { return events_; }
  std::uint64_t step() const { return has_lines() ? last_line_.value("step", std::uint64_t{0}) : 0; }
  std::uint64_t steps() const { return steps_; }  ///< wanted steps; 0: not known yet
  /// The last train_loss, validation_loss, gradient_norm, divergence (only its rms) or ranks (only memory, time and
  /// bytes); null before the first.
  nlohmann::json last(const std::string& member) const;
  /// Losses by traffic class {"packets": ..., "lost": ...}: of the whole run once it has ended, else of the last line
  /// that has them; null if there are none.
  const nlohmann::json& losses() const { return losses_; }
  /// Speed over the last two lines with progress, or over the whole run once it has ended; absent before.
  std::optional<double> tokens_per_second() const;
  /// Seconds at that speed for the steps not yet done; absent if there is no speed.
  std::optional<double> seconds_left() const;
  /// Lost packets over packets sent at first, of all classes; absent if no packet can be lost, or none is counted yet.
  std::optional<double> realised_loss_rate() const;
  /// The shown members of summary.json: status, error, diverged_step, warnings, seconds, tokens_per_second and the
  /// start; null before the end.
  const nlohmann::json& summary() const { return summary_; }
  /// Reads loss_statistics.json; null before the end, and if it cannot be read.
  nlohmann::json statistics() const;
  /// Start of the run in seconds since 1970: by its summary, or before that the time of its spec.json.
  double started() const;

 private:
  struct Progress {
    double step = 0;
    double tokens = 0;
    double seconds = 0;
  };
  static Progress progress_of(const nlohmann::json& line);
  nlohmann::json read(const std::string& path, SchemaKind kind);
  /// Calls take(record) for each new line, and forget() before those of another file than `seen` counts.
  void read_lines(MetricsTail& tail, SchemaKind kind, std::uint64_t& seen, const std::function<void()>& forget,
                  const std::function<void(nlohmann::json record)>& take, Lines lines = Lines::kAll);
  void take_summary(nlohmann::json summary);
  void read_losses();
  void take_losses(const nlohmann::json& classes);
  void take_line(const nlohmann::json& line);
  void take_event(nlohmann::json event);

  std::string experiment_;
  RunDirectory directory_;
  nlohmann::json point_ = nlohmann::json::object();
  nlohmann::json labels_ = nlohmann::json::array();
  PointNames names_;
  nlohmann::json seeds_;
  State state_ = State::kWaiting;
  std::optional<RunHolder> holder_;
  MetricsTail metrics_;
  MetricsTail event_tail_;
  std::uint64_t attempts_seen_ = 0;
  std::uint64_t event_files_seen_ = 0;
  nlohmann::json last_line_;
  nlohmann::json last_values_ = nlohmann::json::object();  ///< last values by name
  std::optional<Progress> first_;                          ///< progress at the first line
  std::optional<Progress> before_;  ///< progress at the last line with fewer tokens and less time than the last one
  std::deque<nlohmann::json> last_events_;
  std::map<std::string, std::uint64_t> events_;
  std::uint64_t steps_ = 0;
  nlohmann::json summary_;
  nlohmann::json losses_;
  std::map<std::string, std::string> problems_;  ///< reason why a file is left out, by its path
};

/// The name of a state: "running", "completed" and so on.
std::string_view state_name(WatchedRun::State state);

/// The path <folder>/tensorboard; the folder of a run has it in the folder of its experiment.
std::string tensorboard_folder(const std::string& folder);

/// The runs of a folder: of one run, of an experiment, or of several experiments.
class WatchedRuns {
 public:
  /// Throws: ConfigError for a folder that is none of these.
  explicit WatchedRuns(std::string folder);

  /// Looks for further runs, and updates all.
  void update();

  const std::string& folder() const { return folder_; }
  /// The runs in the order of sweep.json; then those that it does not list, by run id.
  std::vector<const WatchedRun*> runs() const;
  /// The path and the reason for each file of the folder that this version cannot read, lists of runs first.
  std::vector<std::string> unreadable() const;

 private:
  /// The entries of a folder's sweep.json; empty without one.
  struct List {
    /// Time at which the sweep.json that was read was last written.
    std::optional<std::filesystem::file_time_type> written;
    std::vector<nlohmann::json> runs;
    PointNames names;
    std::string problem;  ///< reason why the file is left out, with its path
  };
  const List& list_in(const std::string& folder);
  void find(const std::string& folder, int depth);
  void find_experiment(const std::string& folder);
  void add(const std::string& experiment, const std::string& path, const nlohmann::json& listed, const List& list);
  std::string folder_;
  std::vector<std::unique_ptr<WatchedRun>> runs_;
  std::map<std::string, std::size_t> place_of_;  ///< place in runs_, by the path of the run
  std::map<std::string, List> lists_;            ///< lists by folder of an experiment
};

}  // namespace droptest::experiments
