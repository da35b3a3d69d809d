// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks under loss: send, recv and exchange of one traffic class of one group.
#pragma once

#include <cstdint>

#include "comm/lossy/paths/hop_fates.h"
#include "comm/lossy/paths/message_transform.h"
#include "comm/lossy/paths/one_hop.h"
#include "comm/lossy/paths/path.h"

namespace droptest::comm {

/// Each message is one hop in the gather half over (class, gather, source -> destination), whatever the path of the
/// class. The caller moves it over the reliable inner communicator, between the calls of each end.
/// Ranks: sent() and received() in the same order for a pair of ranks.
class PeerMessages {
 public:
  /// `seed` is the experiment's.
  PeerMessages(const PathContext& context, std::uint64_t seed);

  /// What travels for `data`: itself, or its transform in `scratch`.
  ConstTensor outgoing(ConstTensor data, const Message& message, Scratch& scratch);
  /// `data` has gone.
  void sent(ConstTensor data, int destination, const Message& message);

  /// Before a message comes into `data`: what the fill needs of the values that are there, in `scratch`.
  ConstTensor before_receipt(Tensor data, const Message& message, Scratch& scratch);
  /// A message has come whole into `data`: takes out what its link lost, and fills the holes.
  void received(Tensor data, ConstTensor own_values, int source, const Message& message);

 private:
  PathContext context_;
  MessageTransform transform_;
  HopFates fates_;
  OneHop one_hop_;
};

}  // namespace droptest::comm
