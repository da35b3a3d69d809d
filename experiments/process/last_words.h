// SPDX-License-Identifier: Apache-2.0
// The last words of a failed process: in its log, or in memory if the disk of the log is full.
#pragma once

#include <string>
#include <string_view>

#include "comm/file_descriptor.h"

namespace droptest::experiments {

/// The last line of a process's log that is not empty, without the "droptest: error: " of our own; empty if there is no
/// log.
std::string last_words(const std::string& log_path);

/// The reason why a foreign program has failed, as far as its log says: the last line that begins as errors of Python
/// do ("ValueError: ...", also behind a launcher's "[rank0]: "), except the launcher's own errors about its ranks. If
/// there is none, the last line with a letter. Empty if there is no log.
std::string last_error(const std::string& log_path);

/// A file in memory, owned by the parent of a process. The process writes its error into its log and into this file.
class SpokenWords {
 public:
  SpokenWords();
  /// The file's name for processes of this user, while this object lives. Empty: the system has no such files.
  std::string path() const;

 private:
  comm::FileDescriptor file_;
};

/// Environment variable of a child process that holds that name.
inline constexpr const char* kSpokenWordsVariable = "DROPTEST_SPOKEN_WORDS";

/// Writes an error to the file of the parent, if there is one.
void speak_to_parent(std::string_view message);

}  // namespace droptest::experiments
