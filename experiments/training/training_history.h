// SPDX-License-Identifier: Apache-2.0
// The past of a training: resumptions, another run, and other layouts with their losses and virtual times.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/lossy/clock/time_model.h"
#include "experiments/records/metrics.h"
#include "sim/state_visitor.h"

namespace droptest::experiments {

/// A membership is the training in one layout. Owner: one rank's trainer.
class TrainingHistory {
 public:
  /// `membership`: the number of memberships before this one. `layout`: this one's, as ParallelLayout::text().
  TrainingHistory(int membership, std::string layout) : membership_(membership), layout_(std::move(layout)) {}

  int membership() const { return membership_; }
  /// The last step before this membership.
  std::uint64_t begun_after() const { return begun_after_; }
  /// The run goes on from its own checkpoint of that step.
  void resume(std::uint64_t step) { resumed_at_.push_back(step); }
  /// The training goes on from another run's checkpoint; that run's resumptions are forgotten.
  void start_from(StartRecord record);
  /// This membership begins after the step with the state of another layout. `before`: the memberships of that state
  /// (Manifest::memberships).
  void begin_membership(const nlohmann::json& before, std::uint64_t step);

  /// All memberships so far as Manifest::memberships. This one is the last, with its losses by class up to the step.
  nlohmann::json count(std::uint64_t step, nlohmann::json classes);
  /// All memberships with the losses of the last count(), for a rank that leaves its state without the others.
  nlohmann::json as_counted(std::uint64_t step) const;

  /// The virtual time of all memberships. `own`: that of this one.
  comm::VirtualTime with_time_before(comm::VirtualTime own);

  const std::vector<std::uint64_t>& resumed_at() const { return resumed_at_; }
  const std::optional<StartRecord>& started_from() const { return started_from_; }
  /// The earlier memberships as JSON; empty: there are none.
  const std::string& earlier_memberships() const { return earlier_; }

  void visit_state(sim::StateVisitor& visitor);

 private:
  nlohmann::json all_with(std::uint64_t to_step, nlohmann::json classes) const;

  int membership_;
  std::string layout_;
  comm::VirtualTime time_before_;  ///< the virtual time of the memberships before
  comm::VirtualTime time_so_far_;  ///< the virtual time of all memberships at the last line or checkpoint
  std::optional<StartRecord> started_from_;
  std::vector<std::uint64_t> resumed_at_;
  std::string earlier_;
  std::uint64_t begun_after_ = 0;
  std::string counted_ = "{}";  ///< this membership's losses by class as JSON, as they were last counted
  std::uint64_t counted_to_step_ = 0;
};

}  // namespace droptest::experiments
