// SPDX-License-Identifier: Apache-2.0
// What a failed process said last: in its log, or in memory where the disk of the log is full.
#pragma once

#include <string>
#include <string_view>

namespace droptest::experiments {

/// The last line of a process's log that is not empty, without the "droptest: error: " of our own; empty where there
/// is no log.
std::string last_words(const std::string& log_path);

/// Why a program of somebody else has failed, as far as its log says: the last line that begins as errors of Python do
/// ("ValueError: ...", also behind a launcher's "[rank0]: "), but for the launcher's own about its ranks; without one,
/// the last line with a letter. Empty where there is no log.
std::string last_error(const std::string& log_path);

/// A file in memory, owned by the parent of a process. The process writes its error into its log and into this file.
class SpokenWords {
 public:
  SpokenWords();
  ~SpokenWords();
  SpokenWords(SpokenWords&& other) noexcept;
  SpokenWords(const SpokenWords&) = delete;
  SpokenWords& operator=(const SpokenWords&) = delete;
  SpokenWords& operator=(SpokenWords&&) = delete;

  /// Its name for processes of this user, while this object lives. Empty: the system has no such files.
  std::string path() const;

 private:
  int descriptor_;
};

/// Environment variable of a child process with that name.
inline constexpr const char* kSpokenWordsVariable = "DROPTEST_SPOKEN_WORDS";

/// Writes an error to the file of the parent, where there is one.
void speak_to_parent(std::string_view message);

}  // namespace droptest::experiments
