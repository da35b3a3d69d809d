// SPDX-License-Identifier: Apache-2.0
// The scopes, state, memory, clock and statistics of a loss layer, which callers read or change between calls.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "comm/lossy/flows/fate_verification.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/rank_state.h"
#include "comm/lossy/statistics/statistics_collection.h"
#include "sim/error.h"

namespace droptest::comm {

LossyCommunicator::LosslessScope::LosslessScope(LossyCommunicator& communicator)
    : communicator_(communicator), pause_(std::make_unique<VirtualClock::Pause>(communicator.state_->clock_or_null())) {
  communicator_.state_->run_collectives();
  ++communicator_.state_->lossless_scopes;
}

LossyCommunicator::LosslessScope::~LosslessScope() { --communicator_.state_->lossless_scopes; }

LossyCommunicator::ProtectedScope::ProtectedScope(LossyCommunicator& communicator) : communicator_(communicator) {
  ++communicator_.state_->protected_scopes;
}

LossyCommunicator::ProtectedScope::~ProtectedScope() { --communicator_.state_->protected_scopes; }

void LossyCommunicator::visit_state(sim::StateVisitor& visitor) {
  const VirtualClock::Pause pause(state_->clock_or_null());
  if (!state_->started.empty() || !state_->queue.empty()) {
    throw ConfigError("state of a loss layer: got " +
                      std::to_string(std::max(state_->started.size(), state_->queue.size())) +
                      " works under way, want none: wait for them first");
  }
  if (number() != 0) return visit_memories(visitor);
  visit_value(visitor, *state_);
  for (const auto& group : state_->groups) group.second->visit_memories(visitor);
}

void LossyCommunicator::rescale_memories(double gradient_factor) {
  const VirtualClock::Pause pause(state_->clock_or_null());
  state_->run_collectives();
  for (const auto& group : state_->groups) group.second->stale_.rescale(gradient_factor);
}

LossLayerBuffers LossyCommunicator::buffers() const {
  LossLayerBuffers all;
  for (const auto& item : state_->groups) {
    const LossLayerBuffers of_group = item.second->own_buffers();
    all.messages += of_group.messages;
    all.calls += of_group.calls;
    all.remembered += of_group.remembered;
  }
  return all;
}

LossLayerBuffers LossyCommunicator::own_buffers() const {
  LossLayerBuffers all;
  all.messages = lane_scratch_.use();
  for (const auto& scratch : scratch_.idle()) all.messages += scratch->use();
  for (const auto* of_classes : {&paths_, &certain_paths_}) {
    for (const Paths& paths : *of_classes) {
      for (const auto& pool : paths.paths) all.calls += pool.second.use();
      all.calls += paths.messages.use();
    }
  }
  all.remembered = stale_.bytes();
  return all;
}

void LossyCommunicator::visit_memories(sim::StateVisitor& visitor) {
  const sim::StateVisitor::Part part(visitor, typeid(LossyCommunicator), sim::StateVisitor::Place::kElement);
  visit_value(visitor, stale_);
  if (timeline_) visit_value(visitor, *timeline_);
}

VirtualClock::Pause LossyCommunicator::pause_clock() { return VirtualClock::Pause(state_->clock_or_null()); }

void LossyCommunicator::pass_compute_share(double share) {
  if (state_->clock) state_->clock->compute_share(share);
}

VirtualClock::Stop LossyCommunicator::stop_clock() {
  const VirtualClock::Pause pause(state_->clock_or_null());
  state_->run_collectives();  // the calls run at the times of their starts
  state_->pass_started();
  return VirtualClock::Stop(state_->clock_or_null());
}

void LossyCommunicator::verify_fates() {
  throw_dropped();
  const VirtualClock::Pause pause(state_->clock_or_null());
  state_->run_collectives();
  comm::verify_fates(inner_, state_->ledger, state_->next_group);
}

std::vector<ClassStatistics> LossyCommunicator::collect_statistics(LinkDetail detail) {
  throw_dropped();
  RankState& state = *state_;
  const VirtualClock::Pause pause(state_->clock_or_null());
  state.run_collectives();
  const Settling settling = number() == 0 ? Settling::kSettle : Settling::kKeep;
  if (settling == Settling::kSettle) state.open_steps = 0;
  return comm::collect_statistics(inner_, {state.ledger, state.verdicts, state.sampler, state.step}, settling, detail);
}

std::vector<ClassSample> LossyCommunicator::take_samples() {
  throw_dropped();
  const VirtualClock::Pause pause(state_->clock_or_null());
  state_->run_collectives();
  return comm::take_samples(inner_, state_->ledger, state_->sampler);
}

PacketTotals LossyCommunicator::packet_totals() const { return state_->ledger.totals(); }

std::optional<VirtualTime> LossyCommunicator::collect_time() {
  if (!state_->clock) return std::nullopt;
  const VirtualClock::Pause pause(state_->clock_or_null());
  state_->run_collectives();
  state_->play_started();
  return comm::collect_time(inner_, state_->clock->time());
}

}  // namespace droptest::comm
