// SPDX-License-Identifier: Apache-2.0
// The packet indices, fates and counts of every link that one rank has to do with.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>

#include "comm/lossy/arrivals.h"
#include "comm/lossy/loss_statistics.h"
#include "comm/lossy/network.h"
#include "sim/loss/burst_histogram.h"
#include "sim/loss/fate_digest.h"
#include "sim/loss/link.h"
#include "sim/loss/lost_count_theory.h"
#include "sim/loss/packet_mask.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {

/// Tells the groups of one rank apart: 0 for the communicator that was not split, larger for each later split. All
/// members of a group agree on it, and no rank is in two groups of one number.
using GroupNumber = std::uint16_t;

/// Each link is counted on exactly one rank; the others that draw its fates keep its index and digest only.
enum class Tally : std::uint8_t { kCounted, kOtherEnd };

/// A link as a stream of packets. A link with one destination is one flow, whatever group it is used in, because both
/// its ends see all of its messages. A link to every destination has one flow per group, because only the group sees
/// the messages.
struct FlowKey {
  sim::Link link;
  GroupNumber group = 0;
  friend auto operator<=>(const FlowKey&, const FlowKey&) = default;
};

/// What the rank that counts a link knows beside its fates.
struct FlowTally {
  std::uint64_t bytes = 0;
  std::uint64_t lost_packets = 0;
  std::uint64_t lost_bytes = 0;
  sim::BurstHistogram bursts;
  sim::LostCountTheory theory;
};

/// State of one flow. A rank has several for each of its peers, so it is small on all but the rank that counts it.
struct Flow {
  Flow(const sim::Link& link, const sim::LossProcess* configured) : process(configured), digest(link) {}

  const sim::LossProcess* process;  ///< of the link, for all steps; null: reliable
  std::uint64_t messages = 0;
  std::uint64_t packets = 0;  ///< so far; the index of the next one where indices run on along the link
  sim::FateDigest digest;
  std::unique_ptr<FlowTally> tally;  ///< null where another rank counts the link
};

/// Hands out packet indices and draws the fates of each message.
/// Thread safety: none; a rank has one. Ranks: the ends of a link use it in the same order, which the program order of
/// the collectives gives.
class FlowLedger {
 public:
  /// The processes of `network` are shared with it.
  explicit FlowLedger(const Network& network) : network_(network) {}

  /// Uses up the packets of one message on a link, and returns their fates: null where all are delivered, else a mask
  /// of packets.packets() bits that is valid until the next call. `group` matters for links to every destination.
  /// Determinism: the fates are LossProcess::draw(seed, link, first, ...) with `first` from docs/paths.md.
  /// Throws: CheckError when a link runs out of packet indices.
  const sim::PacketMask* next_message(const sim::Link& link, GroupNumber group, const sim::Packetizer& packets,
                                      Tally tally);

  /// The training step that the next messages belong to; the loss of a link may change with it.
  void begin_step(std::uint64_t step) { step_ = step; }

  /// What misses a deadline is lost too, whatever its fate: `arrivals` says what does, and is borrowed. Late packets
  /// are in the masks, but not in the counts and digests, which are the loss process's.
  void lose_late(Arrivals* arrivals) { arrivals_ = arrivals; }

  /// Whether any packet was lost, as far as this rank draws fates, since the last call of this function.
  enum class Touch : std::uint8_t { kUntouched, kTouched };
  Touch take_touch();

  /// Long-run fraction of a link's packets that is lost.
  double loss_rate(const sim::Link& link) const;

  const std::map<FlowKey, Flow>& flows() const { return flows_; }
  const Network& network() const { return network_; }

  /// The counts of a flow with expected losses, their variance and bursts; none where another rank counts it.
  static LossCounts counts_of(const Flow& flow);

 private:
  const sim::LossProcess* process_of(const sim::Link& link) const;
  static sim::MessagePlace place_of(const Flow& flow, const FlowKey& key, std::uint64_t packets, BurstScope scope);
  void note_losses(FlowTally& tally, const sim::LossProcess& process, const sim::Link& link,
                   const sim::MessagePlace& place, const sim::Packetizer& packets, BurstScope scope,
                   std::uint64_t lost_packets) const;
  const sim::PacketMask* with_late(const sim::Link& link, std::uint64_t packets, const sim::PacketMask* lost);

  Network network_;
  std::uint64_t step_ = 0;
  std::map<FlowKey, Flow> flows_;
  sim::PacketMask mask_;
  Arrivals* arrivals_ = nullptr;
  Touch touch_ = Touch::kUntouched;
};

}  // namespace droptest::comm
