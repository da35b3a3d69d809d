// SPDX-License-Identifier: Apache-2.0
#include "experiments/watch/watched_runs.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <future>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "comm/allowed_cores.h"
#include "comm/json/json_text.h"
#include "comm/json/read_file.h"
#include "experiments/records/run_holder.h"
#include "experiments/watch/shown_values.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kRunsOfAThread = 256;  // the caller reads fewer by itself

struct FoundRecord {
  json value;           ///< null: not there, or not yet whole, or no such record
  std::string problem;  ///< reason why a file that is there has none, beginning with its path
};

/// "<where>: <pointer>: got VALUE, want ..." of the first violation; empty: there is none.
std::string problem_of(const json& value, SchemaKind kind, const std::string& where) {
  const auto unknown = kind == SchemaKind::kSummary ? comm::UnknownMembers::kAllowed : comm::UnknownMembers::kRefused;
  const std::vector<comm::Violation> violations = schema_of(kind).check(value, unknown);
  if (violations.empty()) return {};
  const comm::Violation& first = violations.front();
  return where + ": " + (first.pointer.empty() ? "/" : first.pointer) + ": " + first.message;
}

/// Whether this is the spec of a user's program, which has the settings of another framework (docs/records.md).
bool is_spec_of_program(const json& spec) {
  return spec.is_object() && !spec.contains("model") && spec.contains("network") && spec.contains("seeds");
}

FoundRecord record_in(const std::string& path, SchemaKind kind) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return {};
  try {
    json value = comm::parse_json(comm::read_file(path), path);
    if (kind == SchemaKind::kResolvedSpec && is_spec_of_program(value)) return {std::move(value), {}};
    std::string problem = problem_of(value, kind, path);
    if (problem.empty()) return {std::move(value), {}};
    return {{}, std::move(problem)};
  } catch (const ConfigError& unread) {
    return {{}, unread.what()};
  }
}

bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

/// Whether the folder is that of a run. A program of a user has lines before it has a spec.
bool is_run(const std::string& folder) { return exists(folder + "/spec.json") || exists(folder + "/metrics.jsonl"); }

std::vector<std::string> folders_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (at->is_directory(ignored)) names.push_back(at->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The object with those of its members that have these names.
json with_members(const json& object, std::initializer_list<const char*> names) {
  json result = json::object();
  for (const char* name : names) {
    if (object.contains(name)) result[name] = object[name];
  }
  return result;
}

const json& member(const json& object, const json::json_pointer& pointer) {
  static const json kNull;
  return object.contains(pointer) ? object.at(pointer) : kNull;
}

/// Seconds since 1970 of "2026-01-31T12:00:00Z"; absent for another text.
std::optional<double> seconds_of_utc(const std::string& text) {
  std::tm time{};
  const char* rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &time);
  if (rest == nullptr) return std::nullopt;
  return static_cast<double>(::timegm(&time));
}

}  // namespace

std::string read_new_records(MetricsTail& tail, SchemaKind kind, const std::function<void(json record)>& take,
                             Lines lines) {
  std::string first_problem;
  const auto take_line = [&](NumberedLine line) {
    std::string problem;
    if (!line.is_checked) {
      problem = problem_of(line.value, kind, tail.path() + ": line " + std::to_string(line.number));
    }
    if (problem.empty()) {
      take(std::move(line.value));
    } else if (first_problem.empty()) {
      first_problem = std::move(problem);
    }
  };
  if (lines == Lines::kAll) {
    tail.update(take_line);
  } else {
    tail.update_to_last(shown_members(), shown_of_line, take_line);
  }
  return tail.bad_line().empty() ? first_problem : tail.path() + ": " + tail.bad_line();
}

std::string_view state_name(WatchedRun::State state) {
  using enum WatchedRun::State;
  switch (state) {
    case kWaiting:
      return "waiting";
    case kRunning:
      return "running";
    case kStopped:
      return "stopped";
    case kCompleted:
      return "completed";
    case kDiverged:
      return "diverged";
    case kFailed:
      return "failed";
  }
  DROPTEST_CHECK(false, "unknown state of a run");
}

WatchedRun::WatchedRun(const std::string& experiment, RunDirectory directory, const json& listed, PointNames names)
    : experiment_(comm::with_valid_utf8(experiment)),
      directory_(std::move(directory)),
      names_(std::move(names)),
      metrics_(directory_.metrics()),
      event_tail_(directory_.events()) {
  if (listed.is_null()) return;
  point_ = listed.value("point", point_);
  labels_ = listed.value("labels", labels_);
  seeds_ = listed.value("seeds", seeds_);
}

std::string WatchedRun::run_id() const { return comm::with_valid_utf8(fs::path(directory_.path).filename().string()); }

void WatchedRun::update() {
  if (has_ended() && exists(directory_.summary())) return;
  // The summary comes before the lines: all lines of a run with a summary are there.
  json summary = read(directory_.summary(), SchemaKind::kSummary);
  const auto forget_lines = [this] {
    last_line_ = {};
    last_values_ = json::object();
    losses_ = {};
    first_.reset();
    before_.reset();
  };
  read_lines(
      metrics_, SchemaKind::kMetrics, attempts_seen_, forget_lines, [this](const json& line) { take_line(line); },
      summary.is_object() ? Lines::kShown : Lines::kAll);
  const auto forget_events = [this] {
    last_events_.clear();
    events_.clear();
  };
  read_lines(event_tail_, SchemaKind::kEvent, event_files_seen_, forget_events,
             [this](json event) { take_event(std::move(event)); });
  summary_ = {};
  if (summary.is_object()) take_summary(std::move(summary));
  if (steps_ == 0 || seeds_.is_null()) {
    const json spec = read(directory_.spec(), SchemaKind::kResolvedSpec);
    if (!spec.is_null()) {
      if (!is_spec_of_program(spec)) steps_ = spec["training"]["steps"].get<std::uint64_t>();
      if (seeds_.is_null()) seeds_ = spec["seeds"];
    }
  }
  if (summary_.is_null()) {
    holder_ = holder_of(directory_);
    state_ = holder_ && holder_->works() ? State::kRunning : has_lines() ? State::kStopped : State::kWaiting;
  }
}

// Only the shown values are kept: a folder may have thousands of runs.
void WatchedRun::take_summary(json summary) {
  point_ = summary.value("point", point_);
  labels_ = summary.value("labels", labels_);
  if (seeds_.is_null()) seeds_ = summary.value("seeds", json());
  const std::string status = summary.value("status", "");
  state_ = status == "completed" ? State::kCompleted : status == "diverged" ? State::kDiverged : State::kFailed;
  if (state_ == State::kCompleted) steps_ = summary.value("steps", steps_);
  read_losses();
  summary_ = json::object();
  for (const char* name : {"status", "error", "diverged_step", "warnings", "seconds", "tokens_per_second"}) {
    if (summary.contains(name)) summary_[name] = std::move(summary[name]);
  }
  const json& started = member(summary, json::json_pointer("/provenance/started"));
  if (!started.is_null()) summary_["provenance"]["started"] = started;
}

void WatchedRun::take_losses(const json& classes) {
  losses_ = json::object();
  for (const auto& [name, counts] : classes.items()) {
    losses_[name] = with_members(counts, {"packets", "lost"});
  }
}

void WatchedRun::read_losses() {
  const std::string path = directory_.loss_statistics();
  std::error_code error;
  json losses;
  try {
    if (fs::is_regular_file(path, error)) losses = shown_of_statistics(comm::read_file(path));
  } catch (const ConfigError&) {
    losses = nullptr;
  }
  if (losses.is_object()) {
    losses_ = std::move(losses);
    return;
  }
  const json statistics = read(path, SchemaKind::kLossStatistics);  // reports the error
  if (statistics.is_object()) take_losses(statistics.value("classes", json::object()));
}

json WatchedRun::statistics() const {
  return has_ended() ? record_in(directory_.loss_statistics(), SchemaKind::kLossStatistics).value : json();
}

json WatchedRun::read(const std::string& path, SchemaKind kind) {
  FoundRecord found = record_in(path, kind);
  problems_[path] = std::move(found.problem);
  return std::move(found.value);
}

void WatchedRun::read_lines(MetricsTail& tail, SchemaKind kind, std::uint64_t& seen,
                            const std::function<void()>& forget, const std::function<void(json record)>& take,
                            Lines lines) {
  const std::uint64_t before = seen;
  const auto note_file = [&] {
    if (std::exchange(seen, tail.files()) != tail.files()) forget();
  };
  const auto take_record = [&](json record) {
    note_file();
    take(std::move(record));
  };
  std::string found = read_new_records(tail, kind, take_record, lines);
  note_file();  // notes a file without lines
  // A problem stays until another file takes the place of the one that has it.
  std::string& problem = problems_[tail.path()];
  if (seen != before || problem.empty()) problem = std::move(found);
}

std::vector<std::string> WatchedRun::unreadable() const {
  std::vector<std::string> texts;
  for (const auto& [path, problem] : problems_) {
    if (!problem.empty()) texts.push_back(problem);
  }
  return texts;
}

WatchedRun::Progress WatchedRun::progress_of(const json& line) {
  return {line.value("step", 0.0), line.value("tokens", 0.0), line.value("seconds", 0.0)};
}

void WatchedRun::take_line(const json& line) {
  const Progress now = progress_of(line);
  if (!first_) first_ = now;
  if (has_lines()) {
    const Progress last = progress_of(last_line_);
    if (now.tokens > last.tokens && now.seconds > last.seconds) before_ = last;
  }
  for (const char* name : {"train_loss", "validation_loss", "gradient_norm"}) {
    if (line.contains(name)) last_values_[name] = line[name];
  }
  if (line.contains("divergence")) last_values_["divergence"] = with_members(line["divergence"], {"rms"});
  if (line.contains("losses")) take_losses(line["losses"]);
  if (line.contains("ranks")) {
    json& ranks = last_values_["ranks"] = json::array();
    for (const json& rank : line["ranks"]) {
      ranks.push_back(with_members(rank, {"resident_bytes", "device_bytes", "cpu_seconds", "sent_bytes"}));
    }
  }
  last_line_ = with_members(line, {"step", "tokens", "seconds"});
}

void WatchedRun::take_event(json event) {
  ++events_[event.at("kind").get<std::string>()];
  last_events_.push_back(std::move(event));
  if (last_events_.size() > kLastEvents) last_events_.pop_front();
}

json WatchedRun::last(const std::string& name) const { return last_values_.value(name, json()); }

std::optional<double> WatchedRun::tokens_per_second() const {
  if (summary_.contains("tokens_per_second") && summary_["tokens_per_second"].is_number()) {
    return summary_["tokens_per_second"].get<double>();
  }
  if (!before_) return std::nullopt;
  const Progress last = progress_of(last_line_);
  const double tokens = last.tokens - before_->tokens;
  const double seconds = last.seconds - before_->seconds;
  if (tokens <= 0 || seconds <= 0) return std::nullopt;
  return tokens / seconds;
}

std::optional<double> WatchedRun::seconds_left() const {
  if (has_ended() || !first_) return std::nullopt;
  const Progress last = progress_of(last_line_);
  const double steps = last.step - first_->step;
  const double seconds = last.seconds - first_->seconds;
  if (steps <= 0 || seconds <= 0 || steps_ == 0) return std::nullopt;
  return std::max(0.0, static_cast<double>(steps_) - last.step) * seconds / steps;
}

std::optional<double> WatchedRun::realised_loss_rate() const {
  double packets = 0;
  double lost = 0;
  if (losses_.is_object()) {
    for (const json& counts : losses_) {
      packets += counts.value("packets", 0.0);
      lost += counts.value("lost", 0.0);
    }
  }
  if (packets == 0) return std::nullopt;
  return lost / packets;
}

double WatchedRun::started() const {
  const json& started = member(summary_, json::json_pointer("/provenance/started"));
  if (started.is_string()) {
    if (const auto seconds = seconds_of_utc(started.get<std::string>())) return *seconds;
  }
  std::error_code error;
  const auto written = fs::last_write_time(directory_.spec(), error);
  if (error) return 0;
  return std::chrono::duration<double>(std::chrono::file_clock::to_sys(written).time_since_epoch()).count();
}

std::string tensorboard_folder(const std::string& folder) {
  if (!is_run(folder)) return folder + "/tensorboard";
  return (fs::absolute(folder + "/").lexically_normal().parent_path().parent_path() / "tensorboard")
      .lexically_proximate(fs::current_path())
      .string();
}

WatchedRuns::WatchedRuns(std::string folder) : folder_(std::move(folder)) {
  while (folder_.size() > 1 && folder_.ends_with('/')) folder_.pop_back();
  std::error_code error;
  if (!fs::is_directory(folder_, error)) {
    throw ConfigError(folder_ +
                      ": no such folder; want the folder of a run, of an experiment, or of several experiments, e.g. "
                      "results/quickstart");
  }
  update();
}

void WatchedRuns::update() {
  find(folder_, 0);
  const std::size_t parts = std::clamp<std::size_t>(runs_.size() / kRunsOfAThread, 1, comm::allowed_cores().size());
  const auto update_part = [this, parts](std::size_t part) {
    for (std::size_t i = part; i < runs_.size(); i += parts) runs_[i]->update();
  };
  std::vector<std::future<void>> others;
  for (std::size_t part = 1; part < parts; ++part) {
    try {
      others.push_back(std::async(std::launch::async, update_part, part));
    } catch (const std::system_error&) {  // no more threads
      update_part(part);
    }
  }
  update_part(0);
  for (std::future<void>& other : others) other.get();
}

std::vector<std::string> WatchedRuns::unreadable() const {
  std::vector<std::string> texts;
  for (const auto& [folder, list] : lists_) {
    if (!list.problem.empty()) texts.push_back(list.problem);
  }
  for (const auto& run : runs_) {
    for (std::string& text : run->unreadable()) texts.push_back(std::move(text));
  }
  return texts;
}

// A long list is not read again unless somebody has written it.
const WatchedRuns::List& WatchedRuns::list_in(const std::string& folder) {
  const std::string path = folder + "/sweep.json";
  std::error_code error;
  const auto written = fs::last_write_time(path, error);
  List& list = lists_[folder];
  if (error) {
    list = {};
  } else if (list.written != written) {
    FoundRecord sweep = record_in(path, SchemaKind::kSweep);
    list = {};
    if (sweep.problem.empty()) list.written = written;  // else it is read again: it may become readable as it is
    list.problem = std::move(sweep.problem);
    if (!sweep.value.is_null()) {
      list.runs = sweep.value.at("runs").get<std::vector<json>>();
      list.names = PointNames::from_json(sweep.value.value("names", json::array()));
    }
  }
  return list;
}

void WatchedRuns::find(const std::string& folder, int depth) {
  if (is_run(folder)) {
    const fs::path path = fs::absolute(folder + "/").lexically_normal().parent_path();
    json own;
    const List& list = list_in(path.parent_path().string());
    for (const json& listed : list.runs) {
      if (listed.value("run_id", "") == path.filename().string()) own = listed;
    }
    return add(path.parent_path().filename().string(), folder, own, list);
  }
  find_experiment(folder);
  if (depth > 0) return;
  for (const std::string& name : folders_in(folder)) {
    if (!is_run(folder + "/" + name)) find(folder + "/" + name, depth + 1);
  }
}

void WatchedRuns::find_experiment(const std::string& folder) {
  const std::string name = fs::absolute(folder + "/").lexically_normal().parent_path().filename().string();
  const List& list = list_in(folder);
  for (const json& listed : list.runs) {
    add(name, folder + "/" + listed.at("run_id").get<std::string>(), listed, list);
  }
  for (const std::string& found : folders_in(folder)) {
    if (is_run(folder + "/" + found)) add(name, folder + "/" + found, {}, list);
  }
}

void WatchedRuns::add(const std::string& experiment, const std::string& path, const json& listed, const List& list) {
  if (!place_of_.emplace(path, runs_.size()).second) return;
  runs_.push_back(std::make_unique<WatchedRun>(experiment, RunDirectory{path}, listed, list.names));
}

std::vector<const WatchedRun*> WatchedRuns::runs() const {
  std::vector<const WatchedRun*> all;
  for (const auto& run : runs_) all.push_back(run.get());
  return all;
}

}  // namespace droptest::experiments
