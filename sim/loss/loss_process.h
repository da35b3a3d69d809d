// SPDX-License-Identifier: Apache-2.0
// Which packets of a link are lost. Smallest example: bernoulli.h.
#pragma once

#include <cstdint>
#include <string>

#include "sim/loss/link.h"
#include "sim/loss/packet_mask.h"

namespace droptest::sim {

/// The loss on a link as a pure function of (seed, link, packet index).
/// Determinism: equal arguments give equal fates on every rank, thread count, device and query order.
/// Thread safety: all methods may be called from any thread at once. Losses are stationary from packet 0.
class LossProcess {
 public:
  virtual ~LossProcess() = default;

  /// Sets the bit of each packet first_packet + i that the link loses, and clears it for the others.
  /// Shapes: lost.size() packets, any number, zero too. A mask of n is a prefix of the mask of n + m.
  virtual void draw(std::uint64_t seed, const Link& link, std::uint64_t first_packet, PacketMask& lost) const = 0;

  /// False where no packet can ever be lost (loss_rate() == 0): callers skip the loss layer.
  bool can_lose() const { return loss_rate() > 0; }

  /// Long-run fraction of packets lost, in [0, 1].
  virtual double loss_rate() const = 0;

  /// Mean run of consecutive losses, in packets, at least 1; 0 where nothing is ever lost, infinity where all is.
  /// Source: RFC 3357 (loss period).
  virtual double mean_burst_packets() const = 0;

  /// Mean run of consecutive deliveries, in packets; infinity where nothing is ever lost, 0 where all is.
  virtual double mean_gap_packets() const = 0;

  /// P(a run of consecutive losses is at least `packets` long), for packets >= 1.
  virtual double burst_at_least(std::uint64_t packets) const = 0;

  /// Variance of the number lost among n consecutive packets; the scale of every test of a realised rate.
  /// Source: Hasslinger and Hohlfeld 2008, second-order statistics.
  virtual double lost_count_variance(std::uint64_t n) const = 0;

  /// The parameters in words for people, e.g. "bernoulli(loss_rate=0.01)".
  virtual std::string describe() const = 0;
};

}  // namespace droptest::sim
