// SPDX-License-Identifier: Apache-2.0
// One number for all fates of a link, on which its two ends must agree.
#pragma once

#include <cstdint>

#include "sim/loss/link.h"
#include "sim/loss/packet_mask.h"
#include "sim/state_visitor.h"

namespace droptest::sim {

/// A 64-bit digest of a link's fates. Ranges are given in the order of the packets. The digest does not depend on how
/// the packets were cut into ranges. It differs (but for a chance of 2^-64) if a fate, the packets covered or the link
/// differ. Cost: a Philox block per 64 packets that have a loss among them.
class FateDigest {
 public:
  explicit FateDigest(const Link& link) : link_(link) {}

  /// Takes the fates of packets first_packet onwards. Ranges that do not follow on each other are digested apart.
  void add(std::uint64_t first_packet, const FatesView& lost);

  /// Takes fates as a range of its own: the digest does not depend on the order of such ranges.
  void add_apart(std::uint64_t first_packet, const FatesView& lost);

  std::uint64_t value() const;

  /// Visits all but the link, an argument of the constructor.
  void visit_state(StateVisitor& visitor) { visit_values(visitor, range_first_, range_packets_, word_, bits_, sum_); }

 private:
  std::uint64_t word_digest() const;
  std::uint64_t range_digest() const;

  Link link_;
  std::uint64_t range_first_ = 0;    ///< first packet of the range that is still growing
  std::uint64_t range_packets_ = 0;  ///< packets of the range that is still growing
  std::uint64_t word_ = 0;           ///< index of the word of 64 packets that the range ends in
  std::uint64_t bits_ = 0;           ///< losses so far of the word that the range ends in
  std::uint64_t sum_ = 0;            ///< sum of the digests of all words and ranges before these
};

}  // namespace droptest::sim
