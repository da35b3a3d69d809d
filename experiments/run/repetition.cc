// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/repetition.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "comm/json/json_text.h"
#include "experiments/checkpoint/checkpoint_folder.h"
#include "experiments/files/atomic_file.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

namespace fs = std::filesystem;

/// Files and folders of a run, without its summary.
constexpr std::array kRecords = {"spec.json",        "metrics.jsonl", "events.jsonl",        "loss_statistics.json",
                                 "diagnostics.json", "alert.log",     "weights.safetensors", "predictions.json",
                                 "trace.json",       "adapter",       "checkpoints",         "network.json",
                                 "program.log",      "ranks"};

void check(const std::error_code& error, const std::string& what, const std::string& path) {
  if (error) throw ConfigError(what + " " + path + ": " + error.message());
}

/// Moves a record within a file system. A file takes the place of another atomically, a folder does not.
void move_over(const std::string& from, const std::string& to) {
  std::error_code error;
  if (fs::is_directory(from, error)) fs::remove_all(to, error);
  check(error, "remove", to);
  fs::rename(from, to, error);
  check(error, "rename to", to);
}

/// Makes hard links if the file system has them: files of checkpoints are never written into.
void link_or_copy_folder(const std::string& from, const std::string& to) {
  make_directories(to);
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    const std::string name = to + "/" + entry.path().filename().string();
    std::error_code error;
    fs::create_hard_link(entry.path(), name, error);
    if (!error) continue;
    fs::copy_file(entry.path(), name, error);
    check(error, "copy to", name);
  }
}

void copy_where_it_is(const std::string& from, const std::string& to) {
  if (!fs::exists(from)) return;
  std::error_code error;
  fs::copy_file(from, to, fs::copy_options::overwrite_existing, error);
  check(error, "copy to", to);
}

/// Whether the attempt there has the same spec, so that the next one can go on from it.
bool is_attempt_of(const ResolvedRun& run, const RunDirectory& attempt) {
  try {
    return comm::load_json(attempt.spec()) == run.spec;
  } catch (const ConfigError&) {
    return false;
  }
}

void verify_checkpoint(const CheckpointFolder& checkpoints, std::uint64_t step) {
  for (const RankFile& file : checkpoints.manifest(step).ranks) verify_rank_file(checkpoints.of_step(step), file);
}

void remove_folder(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  check(error, "remove", path);
}

/// Removes checkpoints and metrics of earlier attempts: the run starts from its beginning.
void forget_attempts(const RunDirectory& directory) {
  CheckpointFolder(directory.checkpoints()).forget_after(0);
  std::error_code ignored;
  std::filesystem::remove(directory.metrics(), ignored);
}

}  // namespace

bool may_resume(const RunDirectory& directory, CheckpointPlace::Resume resume) {
  return resume == CheckpointPlace::Resume::kNewest && !CheckpointFolder(directory.checkpoints()).steps().empty();
}

RunDirectory attempt_folder(const RunDirectory& directory) {
  return keeps_records(directory) ? RunDirectory{directory.again()} : directory;
}

RunDirectory prepare_attempt(const ResolvedRun& run, const RunDirectory& directory, CheckpointPlace::Resume resume,
                             std::optional<std::uint64_t> from_step) {
  const CheckpointFolder checkpoints(directory.checkpoints());
  if (from_step) verify_checkpoint(checkpoints, *from_step);
  const RunDirectory attempt = attempt_folder(directory);
  const bool repeats = attempt.path != directory.path;
  if (!repeats) remove_folder(directory.again());  // the repetition of a result that somebody removed
  if (from_step && repeats) {
    remove_folder(attempt.path);
    for (const std::uint64_t step : checkpoints.steps()) {
      if (step > *from_step) continue;
      link_or_copy_folder(checkpoints.of_step(step), CheckpointFolder(attempt.checkpoints()).of_step(step));
    }
    copy_where_it_is(directory.metrics(), attempt.metrics());
    copy_where_it_is(directory.events(), attempt.events());
    copy_where_it_is(directory.path + "/alert.log", attempt.path + "/alert.log");
    copy_where_it_is(directory.trace(), attempt.trace());
  } else if (from_step) {
    checkpoints.forget_after(*from_step);
  } else if (repeats && (resume == CheckpointPlace::Resume::kNever || !is_attempt_of(run, attempt))) {
    remove_folder(attempt.path);
  } else if (resume == CheckpointPlace::Resume::kNever) {
    forget_attempts(attempt);
  }
  std::error_code ignored;
  fs::remove(attempt.summary(), ignored);  // the summary of an attempt that failed
  // The program of a command may go on from a state of its own.
  const bool goes_on = run.config.command && resume == CheckpointPlace::Resume::kNewest;
  if (!goes_on && !may_resume(attempt, resume)) fs::remove(attempt.metrics(), ignored);
  return attempt;
}

std::string finished_text(const RunDirectory& directory, std::uint64_t from_step) {
  return directory.path + ": finished; --again runs it once more from step " + std::to_string(from_step) +
         ", and its records stay until the new ones are complete";
}

void complete_repetition(const RunDirectory& directory) {
  const RunDirectory again{directory.again()};
  const std::string list = directory.moved();
  const auto remove_rest = [&] {
    std::error_code error;
    fs::remove(list, error);
    check(error, "remove", list);
    fs::remove_all(again.path, error);  // nothing in it counts once the list is gone
  };
  // The summary is moved last: everything else is in its place by then.
  if (fs::exists(list) && !fs::exists(again.summary())) return remove_rest();
  if (!has_result(again)) return;
  // The records are listed before they are moved: a listed record that is not there was moved already.
  nlohmann::json moved = nlohmann::json::array();
  if (fs::exists(list)) {
    moved = comm::load_json(list);
  } else {
    for (const char* name : kRecords) {
      if (fs::exists(again.path + "/" + name)) moved.push_back(name);
    }
    write_file_atomically(list, moved.dump() + "\n");
  }
  for (const std::string name : kRecords) {
    const std::string from = again.path + "/" + name;
    const std::string to = directory.path + "/" + name;
    if (std::find(moved.begin(), moved.end(), name) == moved.end()) {
      remove_folder(to);
    } else if (fs::exists(from)) {
      move_over(from, to);
    }
  }
  move_over(again.summary(), directory.summary());
  remove_rest();
}

}  // namespace droptest::experiments
