// SPDX-License-Identifier: Apache-2.0
// The lost packets of the messages of one call, from its plan to its run.
#pragma once

#include <cstddef>
#include <vector>

#include "comm/lossy/flows/flow_ledger.h"
#include "sim/loss/packet_mask.h"

namespace droptest::comm {

/// The masks of a call's messages in the order in which they were drawn, in reused memory.
class MessageLosses {
 public:
  /// Begins another call.
  void start() { count_ = 0; }

  /// FlowLedger::draw_message() for the next message.
  void draw(FlowLedger& ledger, CallFates& fates, const sim::Link& link, const sim::Packetizer& packets, Tally tally) {
    if (count_ == messages_.size()) messages_.emplace_back();
    Message& message = messages_[count_++];
    message.any_missing = ledger.draw_message(fates, link, packets, tally, message.missing);
  }
  /// A message that arrives whole.
  void arrives() {
    if (count_ == messages_.size()) messages_.emplace_back();
    messages_[count_++].any_missing = false;
  }

  /// Makes the last message arrive whole after all.
  void last_arrives() { messages_[count_ - 1].any_missing = false; }

  /// The missing packets of message `index`; null: none.
  sim::PacketMask* of(std::size_t index) { return messages_[index].any_missing ? &messages_[index].missing : nullptr; }
  const sim::PacketMask* of(std::size_t index) const {
    return messages_[index].any_missing ? &messages_[index].missing : nullptr;
  }

 private:
  struct Message {
    sim::PacketMask missing;
    bool any_missing = false;
  };
  std::vector<Message> messages_;
  std::size_t count_ = 0;
};

}  // namespace droptest::comm
