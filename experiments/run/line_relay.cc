// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/line_relay.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace droptest::experiments {

LineRelay::LineRelay(const std::string& path, std::function<void(const nlohmann::json& line)> on_line)
    : metrics_(path), on_line_(std::move(on_line)) {
  metrics_.update([&](const NumberedLine& line) { old_.push_back(id_of(line)); });
}

void LineRelay::pass() {
  metrics_.update([&](const NumberedLine& line) {
    if (std::binary_search(old_.begin(), old_.end(), id_of(line))) return;
    const std::uint64_t step = id_of(line).first;
    written_ = step;
    if (passed_ && step <= *passed_) return;
    passed_ = step;
    on_line_(line.value);
  });
}

LineRelay::Id LineRelay::id_of(const NumberedLine& line) {
  return {line.value.value("step", std::uint64_t{0}), line.value.value("seconds", 0.0)};
}

}  // namespace droptest::experiments
