// SPDX-License-Identifier: Apache-2.0
// Bursts that last some time rather than some packets: a link that recovers while nobody sends.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "sim/loss/gilbert_elliott.h"
#include "sim/loss/loss_process.h"
#include "sim/parameters.h"

namespace droptest::sim {

struct TimedRates {
  double mean_good_microseconds = 0;  ///< mean stay in each state
  double mean_bad_microseconds = 0;
  double packet_microseconds = 0;  ///< from one packet of a message to the next: payload and headers / bandwidth,
                                   ///< where no clock gives it for each link
  double gap_microseconds = 0;     ///< in addition, from the last packet of a message to the first of the next
  double loss_good = 0;
  double loss_bad = 1;
};

/// A chain of two states in continuous time, seen at the times at which packets leave. With mean stays G and B, the
/// states dt apart have correlation lambda = exp(-dt (1/G + 1/B)), and the share of the bad one is B / (G + B).
///
/// Time is counted in ticks of packet_microseconds, and each tick has its draws: over one tick the chain is the
/// Gilbert-Elliott chain with p = (1 - lambda) B / (G + B) and r = (1 - lambda) G / (G + B), which is exact at the
/// ticks. Packets of a message have consecutive ticks; a message begins at the tick that it is given
/// (MessagePlace::ticks, with the packet time of its own link), or at that of the packets and gaps before it. So fates
/// are pure in the time. Gaps are rounded to whole ticks.
class TimedGilbertElliott final : public LossProcess {
 public:
  /// Throws: ConfigError for times that are not positive (a gap may be 0), losses that cannot be drawn, and a tick so
  /// short against the stays that 1 - lambda < GilbertElliott::kSmallestDecisive, or so long that 2 - p - r is.
  explicit TimedGilbertElliott(const TimedRates& rates);

  /// Packets of one message that begins at tick first_packet.
  void draw(std::uint64_t seed, const Link& link, std::uint64_t first_packet, PacketMask& lost) const override;
  void draw_message(std::uint64_t seed, const Link& link, const MessagePlace& place, PacketMask& lost) const override;
  double loss_rate() const override { return chain_.loss_rate(); }
  /// Bursts and gaps are those within a message.
  double mean_burst_packets() const override { return chain_.mean_burst_packets(); }
  double mean_gap_packets() const override { return chain_.mean_gap_packets(); }
  double burst_at_least(std::uint64_t packets) const override { return chain_.burst_at_least(packets); }
  double lost_count_variance(std::uint64_t n) const override { return chain_.lost_count_variance(n); }
  bool counts_by_message() const override { return true; }
  /// Its tick.
  std::uint64_t first_draw(const MessagePlace& place) const override;
  std::optional<FateChain> fate_chain(double packet_microseconds) const override;
  bool keeps_time() const override { return true; }
  double all_arrive_probability(std::uint64_t packets) const override { return chain_.all_arrive_probability(packets); }
  LostCount message_count(std::uint64_t seed, const Link& link, const MessagePlace& place,
                          std::uint64_t n) const override;
  std::string describe() const override;

  /// Correlation of the states of two packets that leave that many microseconds apart.
  double state_correlation(double microseconds) const;
  std::uint64_t gap_ticks() const { return gap_ticks_; }

 private:
  /// From tick to tick, where the link has a packet time of its own; else chain_.
  GilbertElliott chain_of(double packet_microseconds) const;

  TimedRates rates_;
  GilbertElliott chain_;  ///< from tick to tick
  std::uint64_t gap_ticks_;
};

/// {"model": "timed_gilbert_elliott", "mean_good_microseconds", "mean_bad_microseconds", "packet_microseconds",
/// "gap_microseconds", "loss_good", "loss_bad"}; the last three are 0, 0 and 1 where they are not given.
/// Throws: ConfigError for anything else.
std::unique_ptr<LossProcess> make_timed_gilbert_elliott(const Parameters& parameters);

}  // namespace droptest::sim
