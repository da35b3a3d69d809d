// SPDX-License-Identifier: Apache-2.0
// The lost packets of the messages of one call, from its plan to its run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/lossy/flows/flow_ledger.h"
#include "comm/lossy/paths/path.h"
#include "sim/loss/packet_mask.h"

namespace droptest::comm {

/// The interest of a path in a message that another rank counts.
enum class Interest : std::uint8_t {
  kNone,   ///< its packets only use up indices
  kFates,  ///< the path needs the packets that are missing
};

/// The masks of a call's messages by number, in reused memory. A path numbers its messages as it likes, e.g. by source.
/// Only messages that were started or drawn in the call have a mask.
class MessageLosses {
 public:
  /// Begins another call in which the first `messages` messages arrive whole, unless they are drawn.
  void start(std::size_t messages) {
    if (messages_.size() < messages) messages_.resize(messages);
    for (std::size_t number = 0; number < messages; ++number) messages_[number].any_missing = false;
  }

  /// Draws a message of the call if this rank counts it or its path asks for the fates. Otherwise it passes the
  /// message, and the mask of `number` does not change.
  void take(const PathContext& context, sim::TrafficClass traffic_class, CallFates& fates, const PathMessage& message,
            Interest of_others, std::size_t number) {
    const sim::Link link = context.link_of(traffic_class, message);
    const bool is_counted = message.counted_on() == context.group.rank();
    if (!is_counted && of_others == Interest::kNone) {
      return context.ledger.pass_message(fates, link, message.packets);
    }
    draw(context.ledger, fates, link, message.packets, is_counted ? Tally::kCounted : Tally::kOtherEnd, number);
  }
  /// FlowLedger::draw_message().
  void draw(FlowLedger& ledger, CallFates& fates, const sim::Link& link, const sim::Packetizer& packets, Tally tally,
            std::size_t number) {
    if (messages_.size() <= number) messages_.resize(number + 1);
    Message& message = messages_[number];
    message.any_missing = ledger.draw_message(fates, link, packets, tally, message.missing);
  }
  /// Makes a message arrive whole after all.
  void arrives(std::size_t number) { messages_[number].any_missing = false; }

  /// The missing packets of message `number`; null: none.
  sim::PacketMask* of(std::size_t number) {
    return messages_[number].any_missing ? &messages_[number].missing : nullptr;
  }
  const sim::PacketMask* of(std::size_t number) const {
    return messages_[number].any_missing ? &messages_[number].missing : nullptr;
  }

 private:
  struct Message {
    sim::PacketMask missing;
    bool any_missing = false;
  };
  std::vector<Message> messages_;
};

}  // namespace droptest::comm
