// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/lost_count_theory.h"

namespace droptest::sim {

void LostCountTheory::fold(const LossProcess& process, std::uint64_t stretch, std::uint64_t number,
                           LostCount& sum) const {
  const auto times = static_cast<double>(number);
  sum.mean += times * static_cast<double>(stretch) * process.loss_rate();
  sum.variance += times * process.lost_count_variance(stretch);
}

void LostCountTheory::end_stretch() {
  if (stretch_ > 0) ++stretches_[stretch_];
  stretch_ = 0;
}

void LostCountTheory::add(const LossProcess& process, std::uint64_t seed, const Link& link, const MessagePlace& place,
                          std::uint64_t packets) {
  if (&process != process_) {
    end_stretch();
    ended_ = total();
    stretches_.clear();
    memory_ = {};
    process_ = &process;
  }
  if (packets == 0) return;
  if (process.counts_by_message()) {
    const LostCount added = process.message_count(seed, link, place, packets, memory_);
    ended_.mean += added.mean;
    ended_.variance += added.variance;
    return;
  }
  if (place.first_packet != next_packet_) end_stretch();
  stretch_ += packets;
  next_packet_ = place.first_packet + packets;
}

LostCount LostCountTheory::total() const {
  LostCount sum = ended_;
  if (process_ == nullptr) return sum;
  for (const auto& [stretch, number] : stretches_) fold(*process_, stretch, number, sum);
  if (stretch_ > 0) fold(*process_, stretch_, 1, sum);
  return sum;
}

}  // namespace droptest::sim
