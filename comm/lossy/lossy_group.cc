// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/lossy_group.h"

#include <algorithm>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/lossy/lossy_call.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/lossy/paths/power_sgd_path.h"
#include "comm/lossy/paths/top_k_path.h"
#include "comm/lossy/paths/transformed_path.h"
#include "comm/lossy/started_lossy_call.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

const Message kSplit{sim::TrafficClass::kControl, "number of a split group"};

// The second channels of a group.
constexpr int kLaneTwin = 0;
constexpr int kClockTwin = 1;

}  // namespace

LossyGroup::LossyGroup(Communicator& borrowed, std::unique_ptr<Communicator> owned, std::shared_ptr<RankState> shared,
                       GroupNumber number)
    : inner(borrowed), state(std::move(shared)), owned_(std::move(owned)) {
  for (int r = 0; r < inner.world_size(); ++r) {
    if (inner.world_rank(r) < sim::Link::kEveryDestination) continue;
    throw ConfigError("loss layer: world rank " + std::to_string(inner.world_rank(r)) + ", want at most 65534");
  }
  identity_ = {number, static_cast<std::uint16_t>(lowest_world_rank(inner))};
  if (state->clock) {
    clock_channel_ = inner.twin(kClockTwin);
    timeline_.emplace(clock_channel_ == nullptr ? inner : *clock_channel_, number, *state->clock, state->ledger);
  }
  for (const sim::TrafficClass traffic_class : sim::kAllTrafficClasses) {
    const auto& network = state->ledger.network().of(traffic_class);
    if (!network.has_value()) continue;
    validate(*network);
    const auto index = static_cast<std::size_t>(traffic_class);
    paths_[index].network = &*network;
    if (network->reduce.fill != Fill::kInverseProbability) continue;
    ClassNetwork& certain = certain_networks_[index].emplace(*network);
    certain.reduce.fill = Fill::kZero;
    certain_paths_[index].network = &certain;
  }
  state->groups.emplace(number, this);
}

LossyGroup::~LossyGroup() { state->groups.erase(number()); }

std::unique_ptr<Path> LossyGroup::make_path(std::string_view name, const ClassNetwork& network) const {
  const PathContext context = context_of(network);
  std::unique_ptr<Path> path;
  if (network.compression.kind == CompressionKind::kTopK) path = std::make_unique<TopKPath>(context);
  if (network.compression.kind == CompressionKind::kPowerSgd) path = std::make_unique<PowerSgdPath>(context);
  if (path == nullptr) path = path_entry(name).make(context);
  return with_transforms(std::move(path), context, state->ledger.network().seed);
}

LossyGroup::Paths& LossyGroup::paths_of(sim::TrafficClass traffic_class, Arrival arrival) {
  const auto index = static_cast<std::size_t>(traffic_class);
  Paths& certain = certain_paths_[index];
  return arrival == Arrival::kCertain && certain.network != nullptr ? certain : paths_[index];
}

// Messages of a rank to itself do not travel.
bool LossyGroup::is_lossy(const CallArguments& arguments) const {
  const bool to_self = is_message(arguments.operation) && arguments.peer == inner.rank();
  return state->lossless_scopes == 0 && inner.world_size() > 1 && !to_self &&
         paths_[static_cast<std::size_t>(arguments.message.traffic_class)].network != nullptr;
}

Arrival LossyGroup::arrival_of(const Message& message) const {
  if (state->protected_scopes > 0) return Arrival::kCertain;
  return comm::arrival_of(message, *state->ledger.network().of(message.traffic_class), state->step);
}

void LossyGroup::follow_step() {
  if (steps_begun_ != state->step) begin_step();
}

// Those from one rank are timed in the order of their starts, in whichever groups.
void LossyGroup::play_receives(int source, const StartedLossyCall* until) {
  for (StartedLossyCall* call : state->started) {
    const bool comes_from_it =
        call->receives() && call->group().inner.world_rank(call->arguments().peer) == inner.world_rank(source);
    if (comes_from_it) call->play();
    if (call == until) return;
  }
}

void LossyGroup::post_receives(int source) {
  const bool some_wait = std::ranges::any_of(
      state->started, [](const StartedLossyCall* call) { return call->receives() && !call->is_posted(); });
  if (some_wait) play_receives(source, nullptr);
}

void LossyGroup::check_receive(const CallArguments& arguments) const {
  for (const StartedLossyCall* call : state->started) {
    const CallArguments& other = call->arguments();
    if (!call->receives() || &call->group() != this || other.peer != arguments.peer ||
        other.message.traffic_class != arguments.message.traffic_class ||
        other.message.layer != arguments.message.layer || other.message.name != arguments.message.name) {
      continue;
    }
    throw ConfigError("recv: rank " + std::to_string(inner.world_rank(inner.rank())) + ": got a second \"" +
                      std::string(other.message.name) + "\" of class " +
                      std::string(sim::traffic_class_name(other.message.traffic_class)) + " from rank " +
                      std::to_string(inner.world_rank(other.peer)) +
                      " before the first one was waited for; want wait(), or another name");
  }
}

void LossyGroup::visit_state(sim::StateVisitor& visitor) {
  if (!state->started.empty() || !state->queue.empty()) {
    throw ConfigError("state of a loss layer: got " +
                      std::to_string(std::max(state->started.size(), state->queue.size())) +
                      " works under way, want none: wait for them first");
  }
  if (number() != 0) return visit_memories(visitor);
  visit_value(visitor, *state);
  for (const auto& group : state->groups) group.second->visit_memories(visitor);
}

LayerBuffers LossyGroup::buffers() const {
  LayerBuffers all;
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

void LossyGroup::visit_memories(sim::StateVisitor& visitor) {
  const sim::StateVisitor::Part part(visitor, typeid(LossyGroup), sim::StateVisitor::Place::kElement);
  visit_value(visitor, stale_);
  if (timeline_) visit_value(visitor, *timeline_);
}

void LossyGroup::begin_step() {
  steps_begun_ = state->step;
  inner.begin_step(state->step);
}

std::optional<CallStart> LossyGroup::start_of(const CallArguments& arguments) const {
  if (!timeline_) return std::nullopt;
  return timeline_->start(arguments, arrival_of(arguments.message), state->step, state->clock->time().seconds);
}

void LossyGroup::play_before(const CallArguments& arguments) {
  if (!timeline_) return;
  state->play_started();
  if (arguments.operation == Operation::kRecv) play_receives(arguments.peer, nullptr);
}

void LossyGroup::pass_time(const CallArguments& arguments, const CallStart& start) {
  CallTimes times;
  Departure departure{};
  const Message& message = GroupTimeline::message_of_departures();
  if (arguments.operation == Operation::kSend) {
    std::tie(times, departure) = timeline_->play_send(arguments, start);
    timeline_->channel().send(ConstTensor(std::span<const double>(departure)), arguments.peer, message);
  } else if (arguments.operation == Operation::kRecv) {
    timeline_->channel().recv(Tensor(std::span<double>(departure)), arguments.peer, message);
    times = timeline_->play_recv(arguments, start, departure);
  } else {
    times = timeline_->play_collective(arguments, start);
  }
  state->clock->wait_for(times, arguments.message.traffic_class);
}

void LossyGroup::call(const CallArguments& arguments) {
  checked_call(inner, arguments, state->step);
  if (arguments.operation == Operation::kRecv) check_receive(arguments);
  follow_step();
  const StreamTurns::Turn turn(turns_, stream_of(arguments));
  // This call begins with the memories that the started collectives leave.
  if (lane_ && !is_message(arguments.operation)) lane_->drain();
  play_before(arguments);
  const std::optional<CallStart> start = start_of(arguments);
  LossyCall call(*this, arguments);
  if (start) pass_time(arguments, *start);
  if (state->fates_need_times) call.draw();
  if (arguments.operation == Operation::kSend) {
    inner.send(call.outgoing(), arguments.peer, arguments.message);
    if (call.is_sampled()) inner.send(arguments.input, arguments.peer, arguments.message);
  } else if (arguments.operation == Operation::kRecv) {
    call.before_receipt();
    inner.recv(arguments.output, arguments.peer, arguments.message);
    call.received();
    if (call.is_sampled()) {
      inner.recv(call.exact(), arguments.peer, arguments.message);
      call.compare_message();
    }
  } else {
    call.run(inner, call.scratch());
  }
  call.note_samples();
}

// The messages travel together; their packets, times and samples are those of sends one after the other, then of
// receives.
void LossyGroup::exchange(std::span<const Send> sends, std::span<const Receive> receives) {
  Stream* stream = nullptr;
  for (const Send& send : sends) stream = send.data.stream;
  for (const Receive& receive : receives) stream = receive.data.stream;
  const StreamTurns::Turn turn(turns_, stream);
  follow_step();
  std::vector<CallArguments> arguments;  // reserved for all, because calls refer to them
  std::vector<LossyCall> calls;
  arguments.reserve(sends.size() + receives.size());
  calls.reserve(sends.size() + receives.size());
  std::vector<Send> outgoing(sends.begin(), sends.end());
  std::vector<Send> exact_sends;
  std::vector<Receive> exact_receives;
  const auto plan = [&](const CallArguments& of) -> LossyCall& {
    play_before(of);
    const std::optional<CallStart> start = start_of(of);
    LossyCall& call = calls.emplace_back(*this, of);
    if (start) pass_time(of, *start);
    if (state->fates_need_times) call.draw();
    return call;
  };
  for (Send& send : outgoing) {
    const CallArguments call_of_send{
        .operation = Operation::kSend, .input = send.data, .peer = send.destination, .message = send.message};
    if (!is_lossy(call_of_send)) continue;
    arguments.push_back(call_of_send);
    LossyCall& call = plan(arguments.back());
    if (call.is_sampled()) exact_sends.push_back(send);
    send.data = call.outgoing();
  }
  const std::size_t sent = calls.size();
  for (const auto& [data, source, message] : receives) {
    const CallArguments call_of_receive{
        .operation = Operation::kRecv, .output = data, .peer = source, .message = message};
    post_receives(source);
    if (!is_lossy(call_of_receive)) continue;
    check_receive(call_of_receive);
    arguments.push_back(call_of_receive);
    LossyCall& call = plan(arguments.back());
    call.before_receipt();
    if (call.is_sampled()) exact_receives.push_back({call.exact(), source, message});
  }
  inner.exchange(outgoing, receives);
  std::for_each(calls.begin() + static_cast<std::ptrdiff_t>(sent), calls.end(), std::mem_fn(&LossyCall::received));
  inner.exchange(exact_sends, exact_receives);
  for (std::size_t i = sent; i < calls.size(); ++i) {
    if (calls[i].is_sampled()) calls[i].compare_message();
  }
  for (LossyCall& call : calls) call.note_samples();
}

// Where clocks exchange their messages at the waits of ranks, they need a channel of their own; so does the thread of a
// collective.
bool LossyGroup::runs_ahead(const CallArguments& arguments) {
  const bool on_host = stream_of(arguments) == nullptr;
  if (on_host && lane_channel_ == nullptr) lane_channel_ = inner.twin(kLaneTwin);
  if (state->fates_need_times || (state->clock && clock_channel_ == nullptr)) return false;
  if (!on_host) return !state->queue.holds_up();
  if (lane_channel_ != nullptr && !lane_) lane_.emplace();
  return lane_.has_value();
}

Communicator& LossyGroup::channel_of_queue(const CallArguments& arguments) {
  return stream_of(arguments) == nullptr && lane_channel_ != nullptr ? *lane_channel_ : inner;
}

// Data in device memory may have another way than the times of departure, which then are asked for at the wait.
bool LossyGroup::posts_ahead(const CallArguments& arguments) const {
  return !timeline_ || clock_channel_ != nullptr || stream_of(arguments) == nullptr;
}

std::unique_ptr<WorkInFlight> LossyGroup::begin(const CallArguments& arguments) {
  follow_step();
  const StreamTurns::Turn turn(turns_, stream_of(arguments));
  auto work = std::make_unique<StartedLossyCall>(*this, arguments);
  work->start();
  return work;
}

std::unique_ptr<LossyGroup> LossyGroup::split(int color, int key) {
  std::unique_ptr<Communicator> child = inner.split(color, key);  // null for a negative color
  std::array<std::uint64_t, 1> number = {state->next_group};
  inner.all_reduce(Tensor(std::span<std::uint64_t>(number)), ReduceOp::kMax, kSplit);
  if (number[0] >= 0xffff) throw ConfigError("split: the loss layer knows at most 65534 groups of a rank");
  state->next_group = static_cast<GroupNumber>(number[0] + 1);
  if (child == nullptr) return nullptr;
  Communicator& borrowed = *child;
  return std::make_unique<LossyGroup>(borrowed, std::move(child), state, static_cast<GroupNumber>(number[0]));
}

}  // namespace droptest::comm
