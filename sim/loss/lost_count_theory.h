// SPDX-License-Identifier: Apache-2.0
// The expected number of lost packets of a link, while processes and places change along it.
#pragma once

#include <cstdint>
#include <map>

#include "sim/loss/link.h"
#include "sim/loss/loss_process.h"
#include "sim/state_visitor.h"

namespace droptest::sim {

/// Mean and variance of the number of packets that a link lost, message by message. Consecutive packets under one
/// process are one stretch, whose variance holds the correlation of all its packets. Stretches are taken as
/// independent: messages whose indices start anew are, and where a schedule goes from one process to the next at most
/// the packets of one burst are correlated.
class LostCountTheory {
 public:
  /// Takes the next message of the link. `process` is the one in force, and outlives this object.
  void add(const LossProcess& process, std::uint64_t seed, const Link& link, const MessagePlace& place,
           std::uint64_t packets);

  LostCount total() const;

  /// `process` is the one in force; null where no message has come.
  void visit_state(StateVisitor& visitor, const LossProcess* process) {
    const StateVisitor::Part part(visitor, typeid(LostCountTheory), StateVisitor::Place::kMember);
    process_ = process;
    visit_values(visitor, next_packet_, stretch_, ended_, memory_, stretches_);
  }
  const LossProcess* process() const { return process_; }

 private:
  void end_stretch();
  void fold(const LossProcess& process, std::uint64_t stretch, std::uint64_t number, LostCount& sum) const;

  const LossProcess* process_ = nullptr;
  std::uint64_t next_packet_ = 0;  ///< that would go on with the stretch
  std::uint64_t stretch_ = 0;      ///< packets of the stretch that is growing
  LostCount ended_;
  CountMemory memory_;
  std::map<std::uint64_t, std::uint64_t> stretches_;  ///< ended ones under process_: length in packets -> how many
};

}  // namespace droptest::sim
