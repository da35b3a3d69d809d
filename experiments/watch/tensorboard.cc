// SPDX-License-Identifier: Apache-2.0
#include "experiments/watch/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "comm/json/read_file.h"
#include "experiments/files/atomic_file.h"
#include "experiments/watch/event_file.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kLongestName = 120;  ///< longest name of a folder, in bytes; file systems allow 255

/// A folder's name for the text: path separators and control characters become "_".
std::string folder_name(const std::string& text) {
  std::string name;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    name += c == '/' || c == '\\' || byte < 0x20 || byte == 0x7f ? '_' : c;
  }
  if (name.size() > kLongestName) {
    std::size_t end = kLongestName;
    while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xc0U) == 0x80U) --end;  // no half of a character
    name.resize(end);
  }
  return name.starts_with('.') || name.empty() ? "_" + name : name;
}

/// "5%" -> 0.05.
json hparam_of(const json& value) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    if (text.size() > 1 && end == text.c_str() + text.size() - 1 && *end == '%') return number / 100;
    return value;
  }
  return value.is_number() || value.is_boolean() ? value : json(value.dump());
}

void add_hyperparameters(const std::string& pointer, const json& value, json& all) {
  if (!value.is_object()) {
    all[pointer] = hparam_of(value);
    return;
  }
  for (const auto& [name, member_value] : value.items()) add_hyperparameters(pointer + "/" + name, member_value, all);
}

/// Null stands for a number that is not finite.
double scalar_of(const json& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

/// The numbers of an object under a tag each: "divergence/max".
void add_members(SummaryEvent& event, const std::string& tag, const json& value) {
  if (value.is_number() || value.is_null()) {
    event.add_scalar(tag, scalar_of(value));
  } else if (value.is_object()) {
    for (const auto& [name, part] : value.items()) add_members(event, tag + "/" + name, part);
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) add_members(event, tag + "/" + std::to_string(i), value[i]);
  }
}

std::string line_event(const json& line, const json* before, double started) {
  SummaryEvent event(started + line.value("seconds", 0.0), line.value("step", std::uint64_t{0}));
  for (const auto& [name, value] : line.items()) {
    if (name == "step" || name == "seconds") continue;
    add_members(event, name, value);
  }
  if (before != nullptr) {
    const double seconds = line.value("seconds", 0.0) - before->value("seconds", 0.0);
    const double tokens = line.value("tokens", 0.0) - before->value("tokens", 0.0);
    if (seconds > 0 && tokens > 0) event.add_scalar("tokens_per_second", tokens / seconds);
  }
  return framed_record(event.data());
}

/// The bursts of each class and half, and the end of the session.
std::string end_events(const WatchedRun& run, double started) {
  const json& summary = run.summary();
  const double end = started + std::max(scalar_of(summary.value("seconds", json(0.0))), 0.0);
  SummaryEvent bursts(end, run.step());
  const json statistics = run.statistics();
  const json classes = statistics.is_object() ? statistics.value("classes", json::object()) : json::object();
  for (const auto& [of_class, counts] : classes.items()) {
    const json halves = counts.value("halves", json::object());
    for (const auto& [half, of_half] : halves.items()) {
      std::vector<HistogramBucket> buckets;
      for (const json& bar : of_half.value("burst_histogram", json::array())) {
        buckets.push_back({bar.at("length").get<double>(), bar.at("count").get<double>()});
      }
      const std::string tag = of_class + "/" + half;
      if (!buckets.empty()) bursts.add_histogram("burst_packets/" + tag, buckets);
      bursts.add_scalar("configured_rate/" + tag, scalar_of(of_half.value("configured_rate", json())));
      bursts.add_scalar("realised_rate/" + tag, scalar_of(of_half.value("realised_rate", json())));
      bursts.add_scalar("z/" + tag, scalar_of(of_half.value("z", json())));
    }
  }
  SummaryEvent session(end, 0);
  session.add_session_end(run.state() == WatchedRun::State::kFailed ? SummaryEvent::SessionStatus::kFailure
                                                                    : SummaryEvent::SessionStatus::kSuccess);
  return (bursts.empty() ? "" : framed_record(bursts.data())) + framed_record(session.data());
}

void append_to(const std::string& path, std::string_view text) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (descriptor < 0) comm::fail_on_file("write", path, errno);
  while (!text.empty()) {
    const ssize_t count = ::write(descriptor, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int error = errno;
      ::close(descriptor);
      comm::fail_on_file("write", path, error);
    }
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  ::close(descriptor);
}

/// The number in the names of our event files in the folder, and the files.
std::pair<int, std::vector<fs::path>> event_files_in(const std::string& folder) {
  int last = 0;
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    int number = 0;
    int end = 0;
    (void)std::sscanf(name.c_str(), "events.out.tfevents.%d.droptest%n", &number, &end);
    if (end == 0 || static_cast<std::size_t>(end) != name.size()) continue;  // another program's
    last = std::max(last, number);
    files.push_back(entry.path());
  }
  return {last, files};
}

}  // namespace

json hyperparameters(const json& point) {
  json all = json::object();
  for (const auto& [pointer, value] : point.items()) add_hyperparameters(pointer, value, all);
  return all;
}

void TensorBoardFolder::update(const WatchedRuns& runs) {
  for (const WatchedRun* run : runs.runs()) {
    if (!run->has_lines() && !run->has_ended()) continue;
    const std::string& path = run->directory().path;
    auto written = written_.find(path);
    if (written == written_.end()) {
      written = written_.emplace(path, Written{folder_of(*run), "", MetricsTail(run->directory().metrics())}).first;
    }
    update_run(*run, written->second);
  }
}

std::string TensorBoardFolder::folder_of(const WatchedRun& run) {
  const std::string point = run.point().empty() ? "" : "/" + folder_name(run.title());
  std::string folder = folder_ + point + "/" + folder_name("seed " + run.seed());
  if (!taken_by_.emplace(folder, run.directory().path).second) folder += " " + run.run_id();
  taken_by_.emplace(folder, run.directory().path);
  return folder;
}

void TensorBoardFolder::update_run(const WatchedRun& run, Written& written) {
  if (written.ended && run.has_ended()) return;
  if (written.ended) written.lines = MetricsTail(run.directory().metrics());
  const double started = run.started();
  std::string events;
  const auto write = [&] {
    if (!events.empty()) append_to(written.file, events);
    events.clear();
  };
  const auto note_file = [&] {
    const bool began_anew = written.lines.files() != written.attempt;
    if (written.file.empty() || began_anew || written.ended) begin_file(run, written);
  };
  constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  (void)read_new_records(written.lines, SchemaKind::kMetrics, [&](json line) {
    note_file();
    events += line_event(line, written.last_line.is_null() ? nullptr : &written.last_line, started);
    written.last_line = std::move(line);
    if (events.size() >= kMostBytes) write();
  });
  note_file();
  if (run.has_ended() && !written.ended) {
    events += end_events(run, started);
    written.ended = true;
  }
  write();
}

void TensorBoardFolder::begin_file(const WatchedRun& run, Written& written) {
  make_directories(written.folder);
  const auto [last, old_files] = event_files_in(written.folder);
  // TensorBoard reads the files of a folder in the order of their names, and leaves a file that it has finished.
  char name[64];
  std::snprintf(name, sizeof name, "/events.out.tfevents.%010d.droptest", last + 1);
  written.file = written.folder + name;
  const double started = run.started();
  SummaryEvent session(started, 0);
  session.add_session_start(hyperparameters(run.point()), run.experiment() + ": " + run.title());
  write_file_atomically(written.file, framed_record(version_event(started)) + framed_record(session.data()));
  for (const fs::path& old : old_files) {
    std::error_code ignored;
    fs::remove(old, ignored);
  }
  written.attempt = written.lines.files();
  written.last_line = {};
  written.ended = false;
}

}  // namespace droptest::experiments
