// SPDX-License-Identifier: Apache-2.0
// A message between two ranks under loss, at one of its ends: send, recv and exchange.
#pragma once

#include <cstdint>

#include "comm/lossy/paths/message_losses.h"
#include "comm/lossy/paths/message_transform.h"
#include "comm/lossy/paths/one_hop.h"
#include "comm/lossy/paths/path.h"

namespace droptest::comm {

/// Each message is one hop in the gather half over (class, gather, source -> destination), whatever the path of the
/// class: first its plan, then its data, one message at a time. The caller moves the data over the reliable inner
/// communicator.
class PeerMessage {
 public:
  /// `seed` is the experiment's.
  PeerMessage(const PathContext& context, std::uint64_t seed);

  /// Uses up the packets of a message to or from call.peer, and draws those that are received, as Path::plan() does.
  /// Ranks: the two ends in the same order.
  void plan(const CallArguments& call, CallFates& fates);

  /// At the sender: the values that travel for `data`, itself or its transform in `scratch`.
  ConstTensor outgoing(ConstTensor data, Scratch& scratch);

  /// At the receiver, before the message comes into `data`: keeps what the fill needs of the values that are there, in
  /// `scratch`.
  void before_receipt(Tensor data, Scratch& scratch);
  /// The message has come whole into call.output: takes out what its link lost, and fills the holes. On the thread of
  /// the plan.
  void received(const CallArguments& call);

 private:
  PathContext context_;
  MessageTransform transform_;
  OneHop one_hop_;
  // Of the message at hand.
  MessageLosses lost_;
  ConstTensor own_values_;
};

}  // namespace droptest::comm
