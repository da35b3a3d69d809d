// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/loss_registry.h"

#include "sim/loss/bernoulli.h"
#include "sim/loss/four_state.h"
#include "sim/loss/gilbert_elliott.h"
#include "sim/loss/no_loss.h"
#include "sim/loss/outage.h"
#include "sim/loss/pattern.h"
#include "sim/loss/schedule.h"
#include "sim/loss/timed_gilbert_elliott.h"
#include "sim/loss/trace.h"

namespace droptest::sim {

const std::vector<LossProcessEntry>& loss_processes() {
  static const std::vector<LossProcessEntry> entries = {
      {"none", "nothing is lost", make_no_loss},
      {"bernoulli", "independent loss (loss_rate)", make_bernoulli},
      {"gilbert_elliott",
       "bursts: a good and a bad state (p_good_to_bad, p_bad_to_good, loss_good, loss_bad; or loss_rate, "
       "mean_burst_packets)",
       make_gilbert_elliott},
      {"four_state", "netem's bursts with deliveries inside and losses between them (p13, p31, p32, p23, p14)",
       make_four_state},
      {"timed_gilbert_elliott",
       "bursts in time, which pass while nothing is sent (mean_good_microseconds, mean_bad_microseconds, "
       "packet_microseconds, gap_microseconds, tick_microseconds, loss_good, loss_bad)",
       make_timed_gilbert_elliott},
      {"trace", "replay of a recorded trace (file, start)", make_trace},
      {"pattern", "every n-th packet (every, offset), or windows of packets (lost_packets, delivered_packets, offset)",
       make_pattern},
      {"outage", "windows of steps in which everything, or a rate, is lost (windows, loss_rate, otherwise)",
       make_outage},
      {"schedule", "another process from some step on (phases)", make_schedule},
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
