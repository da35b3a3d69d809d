// SPDX-License-Identifier: Apache-2.0
// Another process from some step on: a network that changes while it is used.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/loss/loss_process.h"
#include "sim/parameters.h"

namespace droptest::sim {

/// A process with its first step: packets have the fates of `loss` from `from_step` until the next phase begins.
struct Phase {
  std::uint64_t from_step = 0;
  std::unique_ptr<LossProcess> loss;
};

/// Each step has the process of its phase; before the first phase nothing is lost. All phases draw from one stream of
/// their link, so two phases of one process are as if nothing had changed. The fates and rates of the schedule itself
/// are those of the long run: of the last phase.
class Schedule final : public LossProcess {
 public:
  /// `name` is the model's, for people. Throws: ConfigError unless there is a phase and steps rise strictly.
  Schedule(std::vector<Phase> phases, std::string name);

  const LossProcess& at_step(std::uint64_t step) const override;
  bool can_lose() const override;
  bool can_lose_all() const override;
  bool keeps_time() const override;

  void draw(std::uint64_t seed, const Link& link, std::uint64_t first_packet, PacketMask& lost) const override;
  void draw_message(std::uint64_t seed, const Link& link, const MessagePosition& place,
                    PacketMask& lost) const override;
  double loss_rate() const override { return last().loss_rate(); }
  double mean_burst_packets() const override { return last().mean_burst_packets(); }
  double mean_gap_packets() const override { return last().mean_gap_packets(); }
  double burst_at_least(std::uint64_t packets) const override { return last().burst_at_least(packets); }
  double lost_count_variance(std::uint64_t n) const override { return last().lost_count_variance(n); }
  bool counts_by_message() const override { return last().counts_by_message(); }
  LostCount message_count(std::uint64_t seed, const Link& link, const MessagePosition& place,
                          std::uint64_t n) const override {
    return last().message_count(seed, link, place, n);
  }
  std::uint64_t first_draw(const MessagePosition& place) const override { return last().first_draw(place); }
  std::optional<FateChain> fate_chain(double packet_microseconds) const override {
    return last().fate_chain(packet_microseconds);
  }
  double all_arrive_probability(std::uint64_t packets) const override;
  std::string describe() const override;

 private:
  const LossProcess& last() const { return *phases_.back().loss; }

  std::vector<Phase> phases_;
  std::string name_;
};

/// {"model": "schedule", "phases": [{"from_step": s, "loss": any process}, ...]}. Throws: ConfigError for anything
/// else.
std::unique_ptr<LossProcess> make_schedule(const Parameters& parameters);

}  // namespace droptest::sim
