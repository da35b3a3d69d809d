// SPDX-License-Identifier: Apache-2.0
// What physically travels in a collective, and so what a lost packet means. Smallest example: contribution_path.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/fill/error_feedback.h"
#include "comm/lossy/fill/scratch.h"
#include "comm/lossy/fill/stale_memory.h"
#include "comm/lossy/flows/flow_ledger.h"
#include "comm/lossy/network.h"

namespace droptest::comm {

/// What a path works with. All are borrowed and outlive the path.
struct PathContext {
  Communicator& inner;                ///< reliable transport of the group
  FlowLedger& ledger;                 ///< packet indices and fates of this rank's links, shared by the groups it is in
  GroupNumber group;                  ///< the group's own streams on links that many receivers share
  const ClassNetwork& network;        ///< of the traffic class that the path serves
  StaleMemory& stale;                 ///< what arrived earlier, by message
  Scratch& scratch;                   ///< buffers kept between calls
  ErrorFeedback* feedback = nullptr;  ///< null: what is lost is not sent again with the next message
};

/// The collectives of one traffic class of one group as one algorithm carries them out under loss.
/// Each call has Communicator's contract for the same name; arguments have been checked by LossyCommunicator. A packet
/// index is used up for each packet that the path sends, the same number on every rank that knows the link.
class Path {
 public:
  virtual ~Path() = default;

  virtual void all_reduce(ConstTensor input, Tensor output, ReduceOp op, const Message& message) = 0;
  virtual void reduce_scatter(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts, ReduceOp op,
                              const Message& message) = 0;
  virtual void all_gather(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                          const Message& message) = 0;
  virtual void all_to_all(ConstTensor input, std::span<const std::uint64_t> send_counts, Tensor output,
                          std::span<const std::uint64_t> receive_counts, const Message& message) = 0;
  virtual void broadcast(Tensor data, int root, const Message& message) = 0;

  /// How an all-reduce's elements are cut: each part travels in packets with others or by itself, never in pieces.
  virtual std::vector<std::uint64_t> all_reduce_parts(std::uint64_t count_elems) = 0;
};

}  // namespace droptest::comm
