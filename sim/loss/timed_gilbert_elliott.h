// SPDX-License-Identifier: Apache-2.0
// Bursts that last some time instead of some packets: a link that recovers while no rank sends.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "sim/loss/gilbert_elliott.h"
#include "sim/loss/loss_process.h"
#include "sim/parameters.h"

namespace droptest::sim {

/// The times and loss rates of the two states.
struct TimedRates {
  double mean_good_microseconds = 0;  ///< mean stay in the good state
  double mean_bad_microseconds = 0;   ///< mean stay in the bad state
  /// Time from one packet of a message to the next, if no clock gives it for each link.
  double packet_microseconds = 0;
  double gap_microseconds = 0;  ///< additional time from the last packet of a message to the first of the next
  double loss_good = 0;
  double loss_bad = 1;
  /// Length of the ticks of a clock; a link keeps its state during a tick. If it is 0, a clock has ticks of
  /// default_tick_microseconds(), and packet_microseconds must not be too short, compared with the stays.
  double tick_microseconds = 0;
};

/// The default tick: a thousandth of the shorter stay.
double default_tick_microseconds(double mean_good_microseconds, double mean_bad_microseconds);

/// A chain of two states in continuous time, seen at the times at which packets leave. With mean stays G and B, the
/// states dt apart have correlation lambda = exp(-dt (1/G + 1/B)), and the share of the bad one is B / (G + B).
///
/// Time is counted in packet times if there is no clock, or if time begins with each message. Each packet time has its
/// draws; over one of them the chain is the Gilbert-Elliott chain with p = (1 - lambda) B / (G + B) and r = (1 -
/// lambda) G / (G + B). A message begins after the packets and gaps before it; gaps are rounded to whole packet times.
///
/// Time is counted in ticks of tick_microseconds if there is a clock (PacketTimes::departs_microseconds). The same
/// chain, over one tick, then belongs to the link from source to destination: all classes and halves with equal ticks
/// and stays see the same states. A packet has the state of the tick in which it leaves; other packets may share it. A
/// draw of the packet's own class, half and index decides whether it is lost in that state. So fates are pure in the
/// time, which is known to a tick.
class TimedGilbertElliott final : public LossProcess {
 public:
  /// Throws: ConfigError for times that are not positive (a gap and a tick may be 0), losses that cannot be drawn, and
  /// a tick (a packet time if the tick is 0) with 1 - lambda < GilbertElliott::kSmallestDecisive.
  explicit TimedGilbertElliott(const TimedRates& rates);

  /// Packets of one message that begins in packet time first_packet, without a clock.
  void draw(std::uint64_t seed, const Link& link, std::uint64_t first_packet, PacketMask& lost) const override;
  void draw_message(std::uint64_t seed, const Link& link, const MessagePosition& place,
                    PacketMask& lost) const override;
  double loss_rate() const override { return chain_.loss_rate(); }
  /// Bursts and gaps are those within one message.
  double mean_burst_packets() const override { return chain_.mean_burst_packets(); }
  double mean_gap_packets() const override { return chain_.mean_gap_packets(); }
  double burst_at_least(std::uint64_t packets) const override { return chain_.burst_at_least(packets); }
  double lost_count_variance(std::uint64_t n) const override { return chain_.lost_count_variance(n); }
  bool counts_by_message() const override { return true; }
  bool keeps_time() const override { return true; }
  double all_arrive_probability(std::uint64_t packets) const override { return chain_.all_arrive_probability(packets); }
  /// The index of the packet time in which the message leaves; rounded if there is a clock.
  std::uint64_t first_draw(const MessagePosition& place) const override;
  std::optional<FateChain> fate_chain(double packet_microseconds) const override;
  LostCount message_count(std::uint64_t seed, const Link& link, const MessagePosition& place,
                          std::uint64_t n) const override;
  std::optional<LostCount> count_by_clock(const MessagePosition& place, std::uint64_t n,
                                          ClockMemory& memory) const override;
  std::string describe() const override;

 private:
  /// The chain from packet to packet, with which fates can be drawn. 0 stands for the packet time of the parameters.
  GilbertElliott chain_of(double packet_microseconds) const;
  /// Time in ticks, and the states from tick to tick.
  struct Clock {
    double microseconds;
    GilbertElliott states;
    /// The tick of a packet of a message with a departure.
    std::uint64_t tick_of(const PacketTimes& times, std::uint64_t packet) const;
  };
  Clock clock() const;
  void draw_by_clock(std::uint64_t seed, const Link& link, const MessagePosition& place, PacketMask& lost) const;

  TimedRates rates_;
  GilbertElliott chain_;                 ///< chain from packet to packet; only for theory if there are ticks
  std::optional<GilbertElliott> ticks_;  ///< states from tick to tick, if the tick is given
  std::uint64_t gap_packets_ = 0;
};

/// {"model": "timed_gilbert_elliott", "mean_good_microseconds", "mean_bad_microseconds", "packet_microseconds",
/// "tick_microseconds", "gap_microseconds", "loss_good", "loss_bad"}; the defaults of the last four are 0, 0, 0 and 1.
/// Throws: ConfigError for anything else.
std::unique_ptr<LossProcess> make_timed_gilbert_elliott(const Parameters& parameters);

}  // namespace droptest::sim
