// SPDX-License-Identifier: Apache-2.0
// The data that travel in a collective, and so the meaning of a lost packet. Smallest example: contribution_path.h.
#pragma once

#include <cstdint>

#include "comm/call.h"
#include "comm/communicator.h"
#include "comm/lossy/fill/scratch.h"
#include "comm/lossy/fill/stale_memory.h"
#include "comm/lossy/flows/flow_ledger.h"
#include "comm/lossy/network.h"
#include "comm/lossy/paths/path_messages.h"
#include "comm/lossy/statistics/sample_sums.h"
#include "sim/loss/link.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {

/// The inputs of a plan. All are borrowed and outlive the path.
struct PathContext {
  const Communicator& group;    ///< the group and its ranks
  FlowLedger& ledger;           ///< packet indices and fates of this rank's links, shared by the groups it is in
  const ClassNetwork& network;  ///< network of the traffic class that the path serves
  StaleMemory& stale;           ///< values that arrived earlier, by message
  const PathEntry& path;        ///< the path of the group's collectives

  /// Whether lost contributions are added to the next message.
  bool feeds_back() const { return network.recovery.error_feedback == ClassRecovery::ErrorFeedback::kOn; }
  /// The link between two ranks of the group.
  sim::Link link(sim::TrafficClass traffic_class, sim::Half half, int source, int destination) const {
    return {traffic_class, half, static_cast<std::uint16_t>(group.world_rank(source)),
            static_cast<std::uint16_t>(group.world_rank(destination))};
  }
  sim::Link link_to_all(sim::TrafficClass traffic_class, sim::Half half, int source) const {
    return {traffic_class, half, static_cast<std::uint16_t>(group.world_rank(source)), sim::Link::kEveryDestination};
  }
  /// The link of a message.
  sim::Link link_of(sim::TrafficClass traffic_class, const PathMessage& message) const {
    return message.to_all ? link_to_all(traffic_class, message.half, message.source)
                          : link(traffic_class, message.half, message.source, message.destination);
  }
  /// The messages that the path sends in the group.
  PathMessages messages() const;
  /// The packets of a message of `count_elems` elements.
  sim::Packetizer packets(ElementType type, std::uint64_t count_elems) const {
    return network.packets(type, count_elems);
  }
};

/// A collective of one traffic class in one group, by one algorithm under loss: first its plan, then its run, one call
/// at a time. It has Communicator's contract for the operation. LossyCommunicator has checked the arguments, which are
/// the same for plan and run. The path owns the result of the plan and the buffers that outlive a step of the run, and
/// keeps them for its next call.
class Path {
 public:
  virtual ~Path() = default;

  /// Uses up a packet index for each packet that the path sends, the same number on every rank that knows the link.
  /// Draws fates and repairs, and takes the memories of stale values and feedback. If fates need times, it is called
  /// twice, to reserve and to draw (CallFates::phase), and visits the same messages both times; the draws of stochastic
  /// rounding are taken only the first time. Ranks: the thread that has the ledger, in the order of the starts of
  /// calls. Throws: ConfigError, before any index is used up, for a reduction for which the fill or the recovery has no
  /// meaning, and for wrong ordinals.
  virtual void plan(const CallArguments& call, CallFates& fates) = 0;

  /// Moves the data over `inner`, a reliable transport of the group, and takes out the lost packets of the plan. It may
  /// run on another thread than plan(), which has returned. `scratch` belongs to the call.
  virtual void run(const CallArguments& call, Communicator& inner, Scratch& scratch) = 0;

  /// The errors that the compression of the last run made on this rank's messages.
  virtual CodingErrors coding_errors() const { return {}; }

  /// The differences between the states of senders and receivers after the last run, for this rank's copies; moves the
  /// states over `inner`. Ranks: all of the group, after a sampled call.
  virtual EndErrors compare_ends([[maybe_unused]] Communicator& inner) { return {}; }
};

}  // namespace droptest::comm
