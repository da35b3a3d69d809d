// SPDX-License-Identifier: Apache-2.0
// Loss as it was recorded: the fates of a trace, again and again.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sim/loss/loss_process.h"
#include "sim/parameters.h"

namespace droptest::sim {

/// The place in the trace at which a link begins.
enum class TraceStart : std::uint8_t {
  kBeginning,  ///< all links alike, at its first packet
  kRandom,     ///< each link somewhere, by the seed (Purpose::kTraceStart)
};

/// Packet t, counted from the origin of the link, has fate (start + t) mod length of the trace. Theory takes the trace
/// as a circle, and any start as equally probable.
class Trace final : public LossProcess {
 public:
  /// `name` is for people. Throws: ConfigError for a trace without packets.
  Trace(const PacketMask& fates, TraceStart start, std::string name);

  void draw(std::uint64_t seed, const Link& link, std::uint64_t first_packet, PacketMask& lost) const override;
  void draw_message(std::uint64_t seed, const Link& link, const MessagePosition& place,
                    PacketMask& lost) const override;
  double loss_rate() const override;
  double mean_burst_packets() const override;
  double mean_gap_packets() const override;
  double burst_at_least(std::uint64_t packets) const override;
  /// Cost: one pass over the trace.
  double lost_count_variance(std::uint64_t n) const override;
  bool counts_by_message() const override { return true; }
  LostCount message_count(std::uint64_t seed, const Link& link, const MessagePosition& place,
                          std::uint64_t n) const override;
  std::string describe() const override;

 private:
  /// Place in the trace of the packet that is `packet` packets after the origin.
  std::uint64_t place_of(std::uint64_t seed, const Link& link, std::uint64_t packet) const;
  bool lost_at(std::uint64_t place) const { return (words_[place >> 6] >> (place & 63) & 1U) != 0; }
  std::uint64_t lost_before(std::uint64_t place) const;  ///< losses among places 0 to place - 1

  TraceStart start_;
  std::string name_;
  std::uint64_t length_;              ///< length of the trace in packets
  std::uint64_t copies_;              ///< copies of the trace in words_: short traces are then copied in long pieces
  std::vector<std::uint64_t> words_;  ///< the copies, and one more word, so that any place has 64 bits after it
  std::vector<std::uint64_t> lost_to_word_;        ///< losses before each word
  std::map<std::uint64_t, std::uint64_t> bursts_;  ///< number of bursts in the circle, by length in packets
  std::uint64_t burst_count_ = 0;
  std::uint64_t lost_ = 0;
};

/// {"model": "trace", "file": name, "contents": the bytes of the file, "start": "beginning" or "random"}; the reader of
/// the file checks "sha256". Throws: ConfigError for anything else, and for contents that are no trace.
std::unique_ptr<LossProcess> make_trace(const Parameters& parameters);

}  // namespace droptest::sim
