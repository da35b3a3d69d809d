// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/metrics_tail.h"

#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace droptest::experiments {

/// Whether the file has the last line that was taken in, at its place.
bool MetricsTail::goes_on(std::istream& file) const {
  std::string there(last_line_.size(), '\0');
  file.seekg(offset_ - static_cast<std::streamoff>(there.size()));
  return file.read(there.data(), static_cast<std::streamsize>(there.size())) && there == last_line_;
}

void MetricsTail::update(const std::function<void(NumberedLine line)>& take) {
  struct stat before {};
  if (::stat(path_.c_str(), &before) != 0) return;
  std::ifstream file(path_, std::ios::binary);
  if (!file) return;
  // A run that continues from a checkpoint has a new file, without the lines after it.
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0 || status.st_ino != before.st_ino) return;  // replaced meanwhile
  if (status.st_ino != inode_ || !goes_on(file)) {
    inode_ = status.st_ino;
    offset_ = 0;
    last_line_.clear();
    lines_ = 0;
    bad_line_.clear();
    ++files_;
  }
  file.clear();
  file.seekg(offset_);
  for (std::string line; std::getline(file, line);) {
    // A line without its end is still being written; it is read again next time.
    if (file.eof()) break;
    last_line_ = line + "\n";
    offset_ += static_cast<std::streamoff>(last_line_.size());
    ++lines_;
    nlohmann::json value = nlohmann::json::parse(line, nullptr, false);
    if (line.find('\0') != std::string::npos) value = nullptr;  // the parser takes it for the end of the line
    if (!value.is_object()) {
      if (bad_line_.empty()) bad_line_ = "line " + std::to_string(lines_) + ": no JSON object";
      continue;
    }
    if (value.contains("step") && value.at("step").is_number_unsigned()) step_ = value.at("step");
    if (value.contains("train_loss") && value.at("train_loss").is_number()) train_loss_ = value.at("train_loss");
    take({lines_, std::move(value)});
  }
}

}  // namespace droptest::experiments
