// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/loss_registry.h"

#include "sim/loss/bernoulli.h"
#include "sim/loss/gilbert_elliott.h"
#include "sim/loss/no_loss.h"

namespace droptest::sim {

const std::vector<LossProcessEntry>& loss_processes() {
  static const std::vector<LossProcessEntry> entries = {
      {"none", "nothing is lost", make_no_loss},
      {"bernoulli", "independent loss (loss_rate)", make_bernoulli},
      {"gilbert_elliott",
       "bursts: a good and a bad state (p_good_to_bad, p_bad_to_good, loss_good, loss_bad; or loss_rate, "
       "mean_burst_packets)",
       make_gilbert_elliott},
  };
  return entries;
}

std::unique_ptr<LossProcess> make_loss_process(const Parameters& parameters) {
  parameters.require_members("a loss process, e.g. {\"model\": \"bernoulli\", \"loss_rate\": 0.01}");
  const std::string model = parameters.text("model");
  std::string known;
  for (const LossProcessEntry& entry : loss_processes()) {
    if (entry.model == model) return entry.make(parameters);
    known += (known.empty() ? "" : ", ") + std::string(entry.model);
  }
  parameters.fail("model", "one of " + known);
}

}  // namespace droptest::sim
