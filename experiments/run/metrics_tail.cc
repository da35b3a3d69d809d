// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/metrics_tail.h"

#include <fstream>

namespace droptest::experiments {

std::vector<nlohmann::json> MetricsTail::update() {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path_, std::ios::binary);
  if (!file) return lines;
  file.seekg(offset_);
  for (std::string line; std::getline(file, line);) {
    // A line without its end is still being written; it is read again next time.
    if (file.eof()) break;
    offset_ += static_cast<std::streamoff>(line.size()) + 1;
    nlohmann::json value = nlohmann::json::parse(line, nullptr, false);
    if (!value.is_object()) continue;
    step_ = value.value("step", step_);
    if (value.contains("train_loss") && value.at("train_loss").is_number()) train_loss_ = value.at("train_loss");
    lines.push_back(std::move(value));
  }
  return lines;
}

}  // namespace droptest::experiments
