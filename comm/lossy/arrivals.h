// SPDX-License-Identifier: Apache-2.0
// How much of each message of a collective arrives before its deadline.
#pragma once

#include <cstdint>
#include <deque>
#include <map>

#include "sim/loss/link.h"

namespace droptest::comm {

/// Filled before a collective, used up by it: messages of a link in their order.
class Arrivals {
 public:
  void clear() { in_time_.clear(); }

  /// The first `packets` of the next message on the link are in time.
  void add(const sim::Link& link, std::uint64_t packets) { in_time_[link].push_back(packets); }

  /// The next message on the link has `packets` packets: how many of them are in time. All, where nothing is known.
  std::uint64_t take(const sim::Link& link, std::uint64_t packets);

 private:
  std::map<sim::Link, std::deque<std::uint64_t>> in_time_;
};

}  // namespace droptest::comm
