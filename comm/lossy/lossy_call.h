// SPDX-License-Identifier: Apache-2.0
// One call of a class with a network: its plan, then its run.
#pragma once

#include <cstdint>
#include <deque>

#include "comm/call.h"
#include "comm/communicator.h"
#include "comm/lossy/fill/scratch.h"
#include "comm/lossy/flows/flow_ledger.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/paths/path.h"
#include "comm/lossy/paths/peer_message.h"
#include "comm/lossy/pool.h"
#include "comm/lossy/statistics/sample_sums.h"

namespace droptest::comm {

/// One call of a class with a network: the constructor plans it, then it runs once.
class LossyCall {
 public:
  /// Plans the call. If fates depend on time, it only takes packet indices, and draw() follows. `arguments` are
  /// borrowed and checked, and belong to one call of Communicator. Throws: ConfigError for a call without a meaning in
  /// its class, before any index is used up.
  LossyCall(LossyCommunicator& group, const CallArguments& arguments);

  /// Draws the fates of the call's packets, at the times in the clock's SendTimes. Called once, before the run.
  void draw();

  /// Runs a collective over `inner`, or over a channel of it on another thread, with the scratch of that thread.
  void run(Communicator& inner, Scratch& scratch);

  /// The values that travel in a send. The caller moves the data of messages.
  ConstTensor outgoing() { return message_->outgoing(arguments_.input, scratch()); }
  /// before_receipt() is called before the receipt of a message, received() after it.
  void before_receipt() { message_->before_receipt(arguments_.output, scratch()); }
  void received() { message_->received(arguments_, scratch()); }

  bool is_sampled() const { return is_sampled_; }
  /// The buffer for a sampled message as it was sent.
  Tensor exact() { return exact_in(scratch()); }
  /// The call's own buffers, on the rank's thread.
  Scratch& scratch();
  /// Called after run() of a collective on a stream. The next call of the group may then use the scratch, because its
  /// work on any stream comes after the work of this one (StreamTurns).
  void release_scratch() {
    exact_ = {};
    scratch_ = {};
  }
  /// Compares a sampled message, as it was received and filled, with exact(). Called at the receiver.
  void compare_message();
  /// Adds the call's sums to the rank's samples, if the call is sampled. Called once, on the rank's thread.
  void note_samples();

 private:
  Tensor exact_in(Scratch& scratch);
  void plan(CallFates::Phase phase);

  LossyCommunicator& group_;
  const CallArguments& arguments_;
  Pool<Path>::Loan path_;            // the path, for a collective
  Pool<PeerMessage>::Loan message_;  // the message, for a send or a receive
  Pool<Scratch>::Loan scratch_;
  Delivery delivery_;
  std::uint64_t step_;
  std::deque<ReservedMessage> reserved_;  // messages without fates yet
  bool is_sampled_;
  std::uint64_t sample_number_ = 0;
  Tensor exact_;
  SampleSums sums_;
};

/// The stream of a call's tensors; null: they are in host memory.
Stream* stream_of(const CallArguments& arguments);

}  // namespace droptest::comm
