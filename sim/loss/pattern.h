// SPDX-License-Identifier: Apache-2.0
// Loss without chance: every n-th packet, or windows of packets that come again and again.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "sim/loss/loss_process.h"
#include "sim/parameters.h"

namespace droptest::sim {

/// Packets offset, offset + 1, ..., offset + lost - 1 are lost, the `delivered` after them arrive, and so on with the
/// period lost + delivered, before the offset too. Packets are counted from the origin of the link. All links are
/// alike.
/// Source: ns-3's ReceiveListErrorModel and INET's periodic loss channel, for deterministic tests.
class Pattern final : public LossProcess {
 public:
  static constexpr std::uint64_t kLongestWindow = std::uint64_t{1} << 40;

  /// Throws: ConfigError unless lost and delivered are in [1, kLongestWindow] and offset < lost + delivered.
  Pattern(std::uint64_t lost, std::uint64_t delivered, std::uint64_t offset);

  void draw(std::uint64_t seed, const Link& link, std::uint64_t first_packet, PacketMask& lost) const override;
  void draw_message(std::uint64_t seed, const Link& link, const MessagePosition& place,
                    PacketMask& lost) const override;
  double loss_rate() const override;
  double mean_burst_packets() const override { return static_cast<double>(lost_); }
  double mean_gap_packets() const override { return static_cast<double>(period_ - lost_); }
  double burst_at_least(std::uint64_t packets) const override { return packets <= lost_ ? 1 : 0; }
  /// Variance of the number lost among n packets that begin anywhere in the period with equal probability.
  double lost_count_variance(std::uint64_t n) const override;
  bool counts_by_message() const override { return true; }
  LostCount message_count(std::uint64_t seed, const Link& link, const MessagePosition& place,
                          std::uint64_t n) const override;
  double all_arrive_probability(std::uint64_t packets) const override;
  std::string describe() const override;

 private:
  /// Place of a packet in the period. The first `lost` places are the lost ones.
  std::uint64_t place_of(std::uint64_t packet) const { return (packet % period_ + period_ - offset_) % period_; }

  std::uint64_t lost_;
  std::uint64_t period_;
  std::uint64_t offset_;
};

/// {"model": "pattern", "every": n, "offset": k}, or {"model": "pattern", "lost_packets": a, "delivered_packets": b,
/// "offset": k}; the default offset is 0. Throws: ConfigError for anything else.
std::unique_ptr<LossProcess> make_pattern(const Parameters& parameters);

}  // namespace droptest::sim
