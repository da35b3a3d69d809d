// SPDX-License-Identifier: Apache-2.0
// The data that travel in a collective, and so the meaning of a lost packet. Smallest example: contribution_path.h.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/call.h"
#include "comm/communicator.h"
#include "comm/lossy/fill/scratch.h"
#include "comm/lossy/fill/stale_memory.h"
#include "comm/lossy/flows/flow_ledger.h"
#include "comm/lossy/network.h"
#include "sim/loss/link.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {

/// The inputs of a plan. All are borrowed and outlive the path.
struct PathContext {
  const Communicator& group;    ///< its ranks
  FlowLedger& ledger;           ///< packet indices and fates of this rank's links, shared by the groups it is in
  const ClassNetwork& network;  ///< of the traffic class that the path serves
  StaleMemory& stale;           ///< values that arrived earlier, by message

  bool feeds_back() const { return network.recovery.error_feedback == ClassRecovery::ErrorFeedback::kOn; }
  /// Between two ranks of the group.
  sim::Link link(sim::TrafficClass traffic_class, sim::Half half, int source, int destination) const {
    return {traffic_class, half, static_cast<std::uint16_t>(group.world_rank(source)),
            static_cast<std::uint16_t>(group.world_rank(destination))};
  }
  sim::Link link_to_all(sim::TrafficClass traffic_class, sim::Half half, int source) const {
    return {traffic_class, half, static_cast<std::uint16_t>(group.world_rank(source)), sim::Link::kEveryDestination};
  }
  /// How a message of those elements is cut.
  sim::Packetizer packets(ElementType type, std::uint64_t count_elems) const {
    return {count_elems, element_bytes(type), network.payload_bytes};
  }
};

/// A collective of one traffic class of one group as one algorithm carries it out under loss: first its plan, then its
/// run, one call at a time. It has Communicator's contract for the operation; arguments have been checked by
/// LossyCommunicator, and are the same for both. The result of the plan, and buffers that outlive one step of the run,
/// are the path's own, and are kept for its next call.
class Path {
 public:
  virtual ~Path() = default;

  /// Uses up a packet index for each packet that the path sends, the same number on every rank that knows the link,
  /// draws fates and repairs, and takes hold of the memories of stale values and feedback.
  /// Ranks: the thread that has the ledger, in the order of the starts of calls. Throws: ConfigError for a reduction
  /// that the fill or the recovery has no meaning for, before it uses up anything, and for wrong
  /// ordinals.
  virtual void plan(const CallArguments& call, CallFates& fates) = 0;

  /// Moves the data over `inner`, a reliable transport of the group, and takes out the lost packets of the plan. It may
  /// run on another thread than plan(), which has returned. `scratch` is the call's own.
  virtual void run(const CallArguments& call, Communicator& inner, Scratch& scratch) = 0;

  /// How an all-reduce's elements are cut: each part travels in packets with others or by itself, never in pieces.
  virtual std::vector<std::uint64_t> all_reduce_parts(std::uint64_t count_elems) = 0;
};

}  // namespace droptest::comm
