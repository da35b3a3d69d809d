// SPDX-License-Identifier: Apache-2.0
// Bursts that last some time rather than some packets: a link that recovers while nobody sends.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
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
  /// With a clock, the time in which a link keeps its state; 0: default_tick_microseconds(), and packet_microseconds is
  /// long enough against the stays for draws of each packet.
  double tick_microseconds = 0;
};

/// A thousandth of the shorter stay.
double default_tick_microseconds(double mean_good_microseconds, double mean_bad_microseconds);

/// A chain of two states in continuous time, seen at the times at which packets leave. With mean stays G and B, the
/// states dt apart have correlation lambda = exp(-dt (1/G + 1/B)), and the share of the bad one is B / (G + B).
///
/// Without a clock, or where time begins with each message, it is counted in packet times, and each has its draws: over
/// one of them the chain is the Gilbert-Elliott chain with p = (1 - lambda) B / (G + B) and r = (1 - lambda) G / (G +
/// B). A message begins after the packets and gaps before it; gaps are rounded to whole packet times.
///
/// With a clock (PacketTimes::departs_microseconds) time is counted in ticks of tick_microseconds, and the same chain
/// over one tick is the link's, from source to destination: all classes and halves with equal ticks and stays see the
/// same states. A packet has the state of the tick in which it leaves, which others may share, and is lost in it by a
/// draw of its own class, half and index. So fates are pure in the time, which is known to a tick.
class TimedGilbertElliott final : public LossProcess {
 public:
  /// Throws: ConfigError for times that are not positive (a gap and a tick may be 0), losses that cannot be drawn, and
  /// a packet time or tick so short against the stays that 1 - lambda < GilbertElliott::kSmallestDecisive.
  explicit TimedGilbertElliott(const TimedRates& rates);

  /// Packets of one message that begins first_packet packet times after the origin, without a clock.
  void draw(std::uint64_t seed, const Link& link, std::uint64_t first_packet, PacketMask& lost) const override;
  void draw_message(std::uint64_t seed, const Link& link, const MessagePosition& place,
                    PacketMask& lost) const override;
  double loss_rate() const override { return chain_.loss_rate(); }
  /// Bursts and gaps are those within a message.
  double mean_burst_packets() const override { return chain_.mean_burst_packets(); }
  double mean_gap_packets() const override { return chain_.mean_gap_packets(); }
  double burst_at_least(std::uint64_t packets) const override { return chain_.burst_at_least(packets); }
  double lost_count_variance(std::uint64_t n) const override { return chain_.lost_count_variance(n); }
  bool counts_by_message() const override { return true; }
  bool keeps_time() const override { return true; }
  double all_arrive_probability(std::uint64_t packets) const override { return chain_.all_arrive_probability(packets); }
  /// The packet time, since the origin, in which the message leaves; by the clock, rounded.
  std::uint64_t first_draw(const MessagePosition& place) const override;
  std::optional<FateChain> fate_chain(double packet_microseconds) const override;
  LostCount message_count(std::uint64_t seed, const Link& link, const MessagePosition& place,
                          std::uint64_t n) const override;
  std::optional<LostCount> count_by_clock(const MessagePosition& place, std::uint64_t n,
                                          ClockMemory& memory) const override;
  std::string describe() const override;

 private:
  /// From packet to packet, where the link has a packet time of its own; else chain_.
  GilbertElliott chain_of(double packet_microseconds) const;
  /// Time in ticks, and the states from tick to tick.
  struct Clock {
    double microseconds;
    GilbertElliott states;
    /// Of a packet of a message with a departure.
    std::uint64_t tick_of(const PacketTimes& times, std::uint64_t packet) const;
  };
  Clock clock() const;
  void draw_by_clock(std::uint64_t seed, const Link& link, const MessagePosition& place, PacketMask& lost) const;

  TimedRates rates_;
  GilbertElliott chain_;                 ///< from packet to packet; of theory alone where there are ticks
  std::optional<GilbertElliott> ticks_;  ///< states from tick to tick, where the tick is given
  std::uint64_t gap_packets_ = 0;
};

/// {"model": "timed_gilbert_elliott", "mean_good_microseconds", "mean_bad_microseconds", "packet_microseconds",
/// "tick_microseconds", "gap_microseconds", "loss_good", "loss_bad"}; the last four are 0, 0, 0 and 1 where they are
/// not given. Throws: ConfigError for anything else.
std::unique_ptr<LossProcess> make_timed_gilbert_elliott(const Parameters& parameters);

}  // namespace droptest::sim
