// SPDX-License-Identifier: Apache-2.0
// The messages of one hop of a ring: each goes to the next rank, and one of its name comes from the rank before.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace droptest::models {

/// Flags travel in the reliable class control.
inline comm::Message reliable_flags() {
  comm::Message message{sim::TrafficClass::kControl, {}};
  message.delivery = comm::Delivery::kCertain;
  return message;
}

/// Collects messages, and sends and receives them together. The group and the tensors are borrowed.
/// Ranks: all of the group add messages of the same names.
class RingHop {
 public:
  RingHop(comm::Communicator& group, int layer, int hop) : group_(group), layer_(layer), hop_(hop) {}

  /// `like`: class of the message, and where the receiver's losses go.
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
  std::deque<std::string> names_;  ///< messages refer to them
  std::vector<comm::Send> sends_;
  std::vector<comm::Receive> receives_;
};

}  // namespace droptest::models
