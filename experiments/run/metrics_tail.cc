// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/metrics_tail.h"

#include <sys/stat.h>

#include <fstream>

namespace droptest::experiments {

std::vector<nlohmann::json> MetricsTail::update() {
  std::vector<nlohmann::json> lines;
  struct stat before {};
  if (::stat(path_.c_str(), &before) != 0) return lines;
  std::ifstream file(path_, std::ios::binary);
  if (!file) return lines;
  // A run that continues from a checkpoint has a new file, without the lines after it.
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0 || status.st_ino != before.st_ino) return lines;  // replaced meanwhile
  if (status.st_ino != inode_ || status.st_size < offset_) {
    inode_ = status.st_ino;
    offset_ = 0;
    ++files_;
  }
  file.seekg(offset_);
  for (std::string line; std::getline(file, line);) {
    // A line without its end is still being written; it is read again next time.
    if (file.eof()) break;
    offset_ += static_cast<std::streamoff>(line.size()) + 1;
    nlohmann::json value = nlohmann::json::parse(line, nullptr, false);
    if (!value.is_object()) continue;
    if (value.contains("step") && value.at("step").is_number_unsigned()) step_ = value.at("step");
    if (value.contains("train_loss") && value.at("train_loss").is_number()) train_loss_ = value.at("train_loss");
    lines.push_back(std::move(value));
  }
  return lines;
}

}  // namespace droptest::experiments
