// SPDX-License-Identifier: Apache-2.0
// The messages of one hop of a ring: each rank sends to the next rank and receives from the previous one.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace droptest::models {

/// A message of flags, in the reliable class control.
inline comm::Message reliable_flags() {
  comm::Message message{sim::TrafficClass::kControl, {}};
  message.delivery = comm::Delivery::kCertain;
  return message;
}

/// Collects messages, and sends and receives them together. The group and the tensors are borrowed. Ranks: all ranks of
/// the group add messages of the same names.
class RingHop {
 public:
  RingHop(comm::Communicator& group, int layer, int hop) : group_(group), layer_(layer), hop_(hop) {}

  /// `like` gives the class and the delivery of the message, and Message::lost for the receiver.
  void add(std::string_view name, const comm::Message& like, comm::ConstTensor sent, comm::Tensor received) {
    comm::Message message = like;
    message.name = names_.emplace_back("attention." + std::string(name) + ".hop" + std::to_string(hop_));
    message.layer = layer_;
    const int ranks = group_.world_size();
    receives_.push_back({received, (group_.rank() + ranks - 1) % ranks, message});
    message.lost = nullptr;
    sends_.push_back({sent, (group_.rank() + 1) % ranks, message});
  }
  void run() { group_.exchange(sends_, receives_); }

 private:
  comm::Communicator& group_;
  int layer_;
  int hop_;
  std::deque<std::string> names_;  ///< the messages borrow their names from here
  std::vector<comm::Send> sends_;
  std::vector<comm::Receive> receives_;
};

}  // namespace droptest::models
