// SPDX-License-Identifier: Apache-2.0
// A message between two ranks under loss, at one of its ends: send, recv and exchange.
#pragma once

#include <cstdint>

#include "comm/lossy/paths/gather_half.h"
#include "comm/lossy/paths/message_losses.h"
#include "comm/lossy/paths/message_transform.h"
#include "comm/lossy/paths/path.h"

namespace droptest::comm {

/// Each message is one hop in the gather half over (class, gather, source -> destination), for every path of the class:
/// first its plan, then its data, one message at a time. The caller moves the data over the reliable inner
/// communicator.
class PeerMessage {
 public:
  /// `seed` is the experiment's.
  PeerMessage(const PathContext& context, std::uint64_t seed);

  /// Uses up the packets of a message to or from call.peer, as Path::plan() does; the receiver draws their fates.
  /// Ranks: the two ends in the same order.
  void plan(const CallArguments& call, CallFates& fates);

  /// The values that travel for `data`, at the sender: `data` itself, or its transform in `scratch`.
  ConstTensor outgoing(ConstTensor data, Scratch& scratch);

  /// Called at the receiver, before the message overwrites `data`: copies the values of `data` into `scratch` if the
  /// fill is `own` or `own_scaled`.
  void before_receipt(Tensor data, Scratch& scratch);
  /// Called when the whole message is in call.output: takes out the packets that its link lost, and fills their
  /// elements. Runs on the thread of the plan.
  void received(const CallArguments& call, Scratch& scratch);

 private:
  PathContext context_;
  MessageTransform transform_;
  GatherHalf gather_half_;
  // State of the current message.
  MessageLosses lost_;
  ConstTensor own_values_;
};

}  // namespace droptest::comm
