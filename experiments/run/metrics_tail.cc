// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/metrics_tail.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace droptest::experiments {

void MetricsTail::update() {
  std::ifstream file(path_, std::ios::binary);
  if (!file) return;
  file.seekg(offset_);
  for (std::string line; std::getline(file, line);) {
    // A line without its end is still being written; it is read again next time.
    if (file.eof()) return;
    offset_ += static_cast<std::streamoff>(line.size()) + 1;
    const nlohmann::json value = nlohmann::json::parse(line, nullptr, false);
    if (!value.is_object()) continue;
    step_ = value.value("step", step_);
    if (value.contains("train_loss") && value.at("train_loss").is_number()) train_loss_ = value.at("train_loss");
  }
}

}  // namespace droptest::experiments
