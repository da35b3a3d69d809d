// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/lossy_communicator.h"

#include <array>
#include <optional>
#include <span>
#include <utility>

#include "comm/call.h"
#include "comm/lossy/clock/virtual_clock.h"
#include "comm/lossy/fill/reduction_fill.h"
#include "comm/lossy/flows/fate_verification.h"
#include "comm/lossy/lossy_group.h"
#include "comm/lossy/statistics/statistics_collection.h"

namespace droptest::comm {
namespace {

// Steps between collections of all ranks' verdicts on calls and steps; each verdict takes a few bytes.
constexpr std::uint64_t kMostOpenSteps = 1024;

std::unique_ptr<LossyGroup> group_of(Communicator& inner, std::unique_ptr<Communicator> owned,
                                     const LossyOptions& options) {
  auto state = std::make_shared<RankState>(options, inner.world_rank(inner.rank()));
  return std::make_unique<LossyGroup>(inner, std::move(owned), std::move(state), GroupNumber{0});
}

}  // namespace

LossyCommunicator::LossyCommunicator(Communicator& inner, const LossyOptions& options)
    : group_(group_of(inner, nullptr, options)) {}

LossyCommunicator::LossyCommunicator(std::unique_ptr<Communicator> inner, const LossyOptions& options) {
  Communicator& borrowed = *inner;
  group_ = group_of(borrowed, std::move(inner), options);
}

LossyCommunicator::LossyCommunicator(std::unique_ptr<LossyGroup> group) : group_(std::move(group)) {}

LossyCommunicator::~LossyCommunicator() = default;

int LossyCommunicator::rank() const { return group_->inner.rank(); }
int LossyCommunicator::world_size() const { return group_->inner.world_size(); }
int LossyCommunicator::world_rank(int rank) const { return group_->inner.world_rank(rank); }
std::string_view LossyCommunicator::backend() const { return group_->inner.backend(); }

bool LossyCommunicator::leaves_lost_out(sim::TrafficClass traffic_class) const {
  const RankState& state = *group_->state;
  const sim::Boxed<ClassNetwork>& network = state.ledger.network().of(traffic_class);
  return state.lossless_scopes == 0 && network.has_value() && network->gather.fill == Fill::kAbsent &&
         can_lose(network->gather);
}

bool LossyCommunicator::stops_lost_gradients(sim::TrafficClass traffic_class) const {
  const RankState& state = *group_->state;
  const sim::Boxed<ClassNetwork>& network = state.ledger.network().of(traffic_class);
  return state.lossless_scopes == 0 && network.has_value() && can_lose(network->gather) &&
         lost_gradient_of(traffic_class, *network) == LostGradient::kZero;
}

void LossyCommunicator::begin_step(std::uint64_t step) {
  RankState& state = *group_->state;
  if (group_->number() == 0) {
    // Other groups of a rank may have begun the step before, so all ranks collect at the end of the same step.
    const std::uint64_t ended = std::exchange(state.world_step, step);
    if (ended != step && ++state.open_steps > kMostOpenSteps) {
      state.step = ended;
      collect_statistics(LinkDetail::kOmit);
    }
  }
  state.step = step;
  state.step_is_sampled = state.sample_every_steps > 0 && step % state.sample_every_steps == 0;
  if (state.clock) state.clock->begin_step(step);
  group_->begin_step();
}

void LossyCommunicator::run(const CallArguments& arguments) {
  using enum Operation;
  if (arguments.operation == kAllReduceWith || arguments.operation == kReduceScatterWith) {
    return run_as_other_calls(arguments);
  }
  RankState& state = *group_->state;
  const VirtualClock::Pause pause(state.clock_or_null());
  throw_dropped();
  if (arguments.operation == kExchange) {
    checked_exchange(*this, arguments.sends, arguments.receives, state.step);
    return group_->exchange(arguments.sends, arguments.receives);
  }
  if (!is_message(arguments.operation)) state.run_collectives();
  if (arguments.operation != kBarrier && group_->is_lossy(arguments)) return group_->call(arguments);
  if (arguments.operation == kRecv) group_->post_receives(arguments.peer);
  group_->inner.run(arguments);
}

std::unique_ptr<WorkInFlight> LossyCommunicator::begin(const CallArguments& arguments) {
  // The rank's waiting time is no compute time.
  class Straight final : public WorkInFlight {
   public:
    Straight(std::unique_ptr<WorkInFlight> inner, RankState& state) : inner_(std::move(inner)), state_(state) {}
    void finish() override {
      const VirtualClock::Pause pause(state_.clock_or_null());
      inner_->finish();
    }
    bool finished() override {
      const VirtualClock::Pause pause(state_.clock_or_null());  // it may do some of the work
      return inner_->finished();
    }

   private:
    std::unique_ptr<WorkInFlight> inner_;
    RankState& state_;
  };
  RankState& state = *group_->state;
  const VirtualClock::Pause pause(state.clock_or_null());
  throw_dropped();
  checked_call(*this, arguments, state.step);
  if (group_->is_lossy(arguments)) return group_->begin(arguments);
  if (!is_message(arguments.operation) && state.queue.holds_up()) {
    auto kept = std::make_shared<KeptArguments>(arguments);
    return state.queue.start([&inner = group_->inner, kept = std::move(kept)] { inner.run(kept->get()); },
                             QueuedCalls::Others::kQueueUp);
  }
  if (arguments.operation == Operation::kRecv) group_->post_receives(arguments.peer);
  std::unique_ptr<WorkInFlight> work = group_->inner.begin(arguments);
  if (work == nullptr) return nullptr;
  return std::make_unique<Straight>(std::move(work), state);
}

std::unique_ptr<Communicator> LossyCommunicator::split(int color, int key) {
  const VirtualClock::Pause pause(group_->state->clock_or_null());
  throw_dropped();
  group_->state->run_collectives();
  std::unique_ptr<LossyGroup> part = group_->split(color, key);
  if (part == nullptr) return nullptr;
  return std::unique_ptr<Communicator>(new LossyCommunicator(std::move(part)));
}

void LossyCommunicator::abort(std::string_view reason) noexcept { group_->inner.abort(reason); }

LossyCommunicator::LosslessScope::LosslessScope(LossyCommunicator& communicator)
    : communicator_(communicator),
      pause_(std::make_unique<VirtualClock::Pause>(communicator.group_->state->clock_or_null())) {
  communicator_.group_->state->run_collectives();
  ++communicator_.group_->state->lossless_scopes;
}

LossyCommunicator::LosslessScope::~LosslessScope() { --communicator_.group_->state->lossless_scopes; }

LossyCommunicator::ProtectedScope::ProtectedScope(LossyCommunicator& communicator) : communicator_(communicator) {
  ++communicator_.group_->state->protected_scopes;
}

LossyCommunicator::ProtectedScope::~ProtectedScope() { --communicator_.group_->state->protected_scopes; }

void LossyCommunicator::visit_state(sim::StateVisitor& visitor) {
  const VirtualClock::Pause pause(group_->state->clock_or_null());
  group_->visit_state(visitor);
}

void LossyCommunicator::rescale_memories(double gradient_factor) {
  const VirtualClock::Pause pause(group_->state->clock_or_null());
  group_->state->run_collectives();
  for (const auto& group : group_->state->groups) group.second->rescale_memories(gradient_factor);
}

LayerBuffers LossyCommunicator::buffers() const {
  LayerBuffers all;
  for (const auto& item : group_->state->groups) {
    const LayerBuffers of_group = item.second->buffers();
    all.messages += of_group.messages;
    all.calls += of_group.calls;
    all.remembered += of_group.remembered;
  }
  return all;
}

VirtualClock::Pause LossyCommunicator::pause_clock() { return VirtualClock::Pause(group_->state->clock_or_null()); }

void LossyCommunicator::pass_compute_time(double seconds) {
  if (group_->state->clock) group_->state->clock->compute_now(seconds);
}

void LossyCommunicator::pass_compute_share(double share) {
  if (group_->state->clock) group_->state->clock->compute_share(share);
}

VirtualClock::Stop LossyCommunicator::stop_clock() {
  const VirtualClock::Pause pause(group_->state->clock_or_null());
  group_->state->run_collectives();  // at the times of their starts
  group_->state->pass_started();
  return VirtualClock::Stop(group_->state->clock_or_null());
}

void LossyCommunicator::verify_fates() {
  throw_dropped();
  const VirtualClock::Pause pause(group_->state->clock_or_null());
  group_->state->run_collectives();
  comm::verify_fates(group_->inner, group_->state->ledger, group_->state->next_group);
}

std::vector<ClassStatistics> LossyCommunicator::collect_statistics(LinkDetail detail) {
  throw_dropped();
  RankState& state = *group_->state;
  const VirtualClock::Pause pause(group_->state->clock_or_null());
  state.run_collectives();
  const Settling settling = group_->number() == 0 ? Settling::kSettle : Settling::kKeep;
  if (settling == Settling::kSettle) state.open_steps = 0;
  return comm::collect_statistics(group_->inner, {state.ledger, state.touches, state.sampler, state.step}, settling,
                                  detail);
}

std::vector<ClassSample> LossyCommunicator::take_samples() {
  throw_dropped();
  const VirtualClock::Pause pause(group_->state->clock_or_null());
  group_->state->run_collectives();
  return comm::take_samples(group_->inner, group_->state->ledger, group_->state->sampler);
}

PacketTotals LossyCommunicator::packet_totals() const { return group_->state->ledger.totals(); }

std::optional<VirtualTime> LossyCommunicator::collect_time() {
  if (!group_->state->clock) return std::nullopt;
  const VirtualClock::Pause pause(group_->state->clock_or_null());
  group_->state->run_collectives();
  group_->state->play_started();
  return comm::collect_time(group_->inner, group_->state->clock->time());
}

}  // namespace droptest::comm
