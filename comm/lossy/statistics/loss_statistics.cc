// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/statistics/loss_statistics.h"

#include <cmath>

namespace droptest::comm {

double LossCounts::configured_rate() const {
  return packets == 0 ? kNotMeasured : expected_lost / static_cast<double>(packets);
}

double LossCounts::realised_rate() const {
  return packets == 0 ? kNotMeasured : static_cast<double>(lost_packets) / static_cast<double>(packets);
}

double LossCounts::z() const {
  if (packets == 0 || std::isnan(expected_lost_variance)) return kNotMeasured;
  const double deviation = static_cast<double>(lost_packets) - expected_lost;
  if (expected_lost_variance > 0) return deviation / std::sqrt(expected_lost_variance);
  // Sums of products such as 3 x 1.0 are exact here, so any deviation from a certain fate is real.
  if (std::abs(deviation) < 0.5) return 0;
  return std::copysign(std::numeric_limits<double>::infinity(), deviation);
}

double LossCounts::mean_burst_packets() const {
  double packets_in_bursts = 0;
  double number = 0;
  for (const auto& [length, count] : bursts) {
    packets_in_bursts += static_cast<double>(length) * static_cast<double>(count);
    number += static_cast<double>(count);
  }
  return number > 0 ? packets_in_bursts / number : 0;
}

void LossCounts::add(const LossCounts& other) {
  messages += other.messages;
  packets += other.packets;
  bytes += other.bytes;
  lost_packets += other.lost_packets;
  lost_bytes += other.lost_bytes;
  repaired_packets += other.repaired_packets;
  residual_packets += other.residual_packets;
  residual_bytes += other.residual_bytes;
  resent_packets += other.resent_packets;
  resend_rounds += other.resend_rounds;
  timed_messages += other.timed_messages;
  content_bytes += other.content_bytes;
  expected_lost += other.expected_lost;
  expected_lost_variance += other.expected_lost_variance;
  for (const auto& [length, count] : other.bursts) bursts[length] += count;
  if (gaps.size() < other.gaps.size()) gaps.resize(other.gaps.size());
  for (std::size_t bin = 0; bin < other.gaps.size(); ++bin) gaps[bin] += other.gaps[bin];
  for (const auto& [length, count] : other.stretches) stretches[length] += count;
}

double LayerStatistics::untouched_share() const {
  return steps == 0 ? kNotMeasured : static_cast<double>(untouched_steps) / static_cast<double>(steps);
}

LossCounts ClassStatistics::total() const {
  LossCounts sum = halves[0];
  sum.add(halves[1]);
  // Halves that see the same states are correlated.
  const bool both = halves[0].packets > 0 && halves[1].packets > 0;
  if (both && sum.timed_messages > 0) sum.expected_lost_variance = kNotMeasured;
  return sum;
}

double ClassStatistics::nmse() const {
  if (sampled_calls == 0) return kNotMeasured;
  return error_energy == 0 ? 0 : error_energy / exact_energy;
}

double ClassStatistics::cosine() const {
  if (sampled_calls == 0) return kNotMeasured;
  const double product = exact_energy * result_energy;
  if (product == 0) return exact_energy == result_energy ? 1 : 0;
  return inner_product / std::sqrt(product);
}

double ClassStatistics::untouched_share() const {
  return collectives == 0 ? kNotMeasured : static_cast<double>(untouched) / static_cast<double>(collectives);
}

}  // namespace droptest::comm
