// SPDX-License-Identifier: Apache-2.0
// Follows a metrics.jsonl, or another file of JSON lines, that another process is writing.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace droptest::experiments {

/// A whole line of a file of JSON lines.
struct NumberedLine {
  std::uint64_t number;     ///< counts the lines of the file from 1
  nlohmann::json value;     ///< the line as JSON, an object
  bool is_checked = false;  ///< whether a MetricsTail::Shorten made the value
};

/// Reads only the lines that were appended since the last update(), one at a time.
class MetricsTail {
 public:
  using Take = std::function<void(NumberedLine line)>;
  /// An object with a part of the line, with values of their types; null: the line is taken as a whole.
  using Shorten = std::function<nlohmann::json(const std::string& line)>;

  explicit MetricsTail(std::string path) : path_(std::move(path)) {}

  /// Takes in the whole lines that are new, and calls take(line) for each; a file that is not there yet is an empty
  /// one. All lines of another file under that name, or of one that has become shorter or lacks the last line that was
  /// taken in, are new: file systems give the number of a removed file to the next one.
  void update(const Take& take);

  /// update() for a file that is no longer written, if only its last values are needed: takes the last line, and the
  /// last line in which each of `members` is named. The others need only stand in braces.
  void update_to_last(const std::vector<std::string>& members, const Shorten& shorten, const Take& take);

  /// Number of files under that name so far: a change says that the last update() began with the first line of a new
  /// one.
  std::uint64_t files() const { return files_; }
  std::uint64_t step() const { return step_; }
  /// The first whole line of the present file that is no JSON object: "line 3: no JSON object"; empty: there is none.
  const std::string& bad_line() const { return bad_line_; }
  const std::string& path() const { return path_; }
  /// The last finite training loss.
  std::optional<double> train_loss() const { return train_loss_; }

 private:
  bool goes_on(std::istream& file) const;
  /// Calls take(line) for each whole line that is new, without its end; lines_ is its number.
  void read(const std::function<void(std::string line)>& take);
  void take_text(std::uint64_t number, const std::string& line, const Shorten& shorten, const Take& take);
  void note_bad_line(std::uint64_t number);

  std::string path_;
  std::streamoff offset_ = 0;
  ino_t inode_ = 0;
  std::string last_line_;  ///< last line with its end; it lies before offset_
  std::uint64_t files_ = 0;
  std::uint64_t lines_ = 0;  ///< lines of the present file that update() has read
  std::string bad_line_;
  std::uint64_t step_ = 0;
  std::optional<double> train_loss_;
};

}  // namespace droptest::experiments
