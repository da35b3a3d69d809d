// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/pass_memory.h"

#include <algorithm>

namespace droptest::models {

PassMemory::PassMemory(const std::vector<StagePlan>& plans, const std::vector<std::uint64_t>& slots,
                       bool shares_working) {
  for (std::size_t i = 0; i < plans.size(); ++i) {
    saved_.push_back({bytes_, plans[i].saved().bytes()});
    bytes_ += slots[i] * plans[i].saved().bytes();
  }
  const std::uint64_t shared = bytes_;
  for (const StagePlan& plan : plans) {
    working_.push_back(shares_working ? shared : bytes_);
    bytes_ = shares_working ? std::max(bytes_, shared + plan.working().bytes()) : bytes_ + plan.working().bytes();
  }
}

}  // namespace droptest::models
