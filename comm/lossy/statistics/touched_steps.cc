// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/statistics/touched_steps.h"

namespace droptest::comm {

void TouchedSteps::settle(const LayerKey& key, std::uint64_t step, const Settled& settled) {
  Record& record = records_[key];
  std::erase_if(record.open, [step](const Step& open) { return open.step < step; });
  record.settled.steps += settled.steps;
  record.settled.untouched += settled.untouched;
}

}  // namespace droptest::comm
