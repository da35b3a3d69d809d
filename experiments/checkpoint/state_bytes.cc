// SPDX-License-Identifier: Apache-2.0
#include "experiments/checkpoint/state_bytes.h"

#include <algorithm>

#include "sim/error.h"

namespace droptest::experiments {

void StateRestorer::bytes(std::span<std::byte> value) {
  if (value.size() > rest_.size()) {
    throw ConfigError(where_ + ": " + std::to_string(rest_.size()) + " bytes are left, want " +
                      std::to_string(value.size()) + ": it is the state of another version or another run");
  }
  std::copy_n(rest_.begin(), value.size(), value.begin());
  rest_ = rest_.subspan(value.size());
}

void StateRestorer::finish() const {
  if (rest_.empty()) return;
  throw ConfigError(where_ + ": " + std::to_string(rest_.size()) +
                    " bytes too many: it is the state of another version or another run");
}

}  // namespace droptest::experiments
