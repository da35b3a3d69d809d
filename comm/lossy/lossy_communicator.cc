// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/lossy_communicator.h"

#include <algorithm>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/call.h"
#include "comm/lossy/fill/reduction_fill.h"
#include "comm/lossy/lossy_call.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/lossy/paths/transformed_path.h"
#include "comm/lossy/rank_state.h"
#include "comm/lossy/started_lossy_call.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

const Message kSplit{sim::TrafficClass::kControl, "number of a split group"};

// The second channels of a group.
constexpr int kLaneChannel = 0;
constexpr int kClockChannel = 1;

// Steps between collections of all ranks' verdicts on calls and steps; each verdict takes a few bytes.
constexpr std::uint64_t kMostOpenSteps = 1024;

std::shared_ptr<RankState> new_state(const Communicator& inner, const LossyOptions& options) {
  return std::make_shared<RankState>(options, inner.world_rank(inner.rank()));
}

}  // namespace

LossyCommunicator::LossyCommunicator(Communicator& inner, const LossyOptions& options)
    : LossyCommunicator(inner, nullptr, new_state(inner, options), GroupNumber{0}) {}

LossyCommunicator::LossyCommunicator(std::unique_ptr<Communicator> inner, const LossyOptions& options)
    : LossyCommunicator(*inner, options) {
  owned_ = std::move(inner);
}

LossyCommunicator::LossyCommunicator(Communicator& inner, std::unique_ptr<Communicator> owned,
                                     std::shared_ptr<RankState> state, GroupNumber number)
    : owned_(std::move(owned)), inner_(inner), state_(std::move(state)) {
  for (int r = 0; r < inner_.world_size(); ++r) {
    if (inner_.world_rank(r) < sim::Link::kEveryDestination) continue;
    throw ConfigError("loss layer: world rank " + std::to_string(inner_.world_rank(r)) + ", want at most 65534");
  }
  identity_ = {number, static_cast<std::uint16_t>(lowest_world_rank(inner_))};
  if (state_->clock) {
    clock_channel_ = inner_.channel(kClockChannel);
    timeline_.emplace(clock_channel_ == nullptr ? inner_ : *clock_channel_, number, *state_->clock, state_->ledger);
  }
  for (const sim::TrafficClass traffic_class : sim::kAllTrafficClasses) {
    const auto& network = state_->ledger.network().of(traffic_class);
    if (!network.has_value()) continue;
    validate(*network);
    const auto index = static_cast<std::size_t>(traffic_class);
    paths_[index].network = &*network;
    if (network->reduce.rule().scale != FillRule::Scale::kByRate) continue;
    ClassNetwork& certain = certain_networks_[index].emplace(*network);
    certain.reduce.fill = Fill::kZero;
    certain_paths_[index].network = &certain;
  }
  state_->groups.emplace(number, this);
}

LossyCommunicator::~LossyCommunicator() { state_->groups.erase(number()); }

PathContext LossyCommunicator::context_of(const ClassNetwork& network, const PathEntry& path) const {
  return {inner_, state_->ledger, network, stale_, path};
}

bool LossyCommunicator::samples(ElementType type) const { return state_->step_is_sampled && !is_integer(type); }

bool LossyCommunicator::leaves_lost_out(sim::TrafficClass traffic_class) const {
  const RankState& state = *state_;
  const sim::Boxed<ClassNetwork>& network = state.ledger.network().of(traffic_class);
  return state.lossless_scopes == 0 && network.has_value() &&
         network->gather.rule().source == FillRule::Source::kAbsent && can_lose(network->gather);
}

bool LossyCommunicator::stops_lost_gradients(sim::TrafficClass traffic_class) const {
  const RankState& state = *state_;
  const sim::Boxed<ClassNetwork>& network = state.ledger.network().of(traffic_class);
  return state.lossless_scopes == 0 && network.has_value() && can_lose(network->gather) &&
         lost_gradient_of(traffic_class, *network) == LostGradient::kZero;
}

void LossyCommunicator::begin_step(std::uint64_t step) {
  RankState& state = *state_;
  if (number() == 0) {
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
  begin_inner_step();
}

void LossyCommunicator::run(const CallArguments& arguments) {
  using enum Operation;
  if (arguments.operation == kAllReduceWith || arguments.operation == kReduceScatterWith) {
    checked_call(*this, arguments, state_->step);
    return run_as_other_calls(arguments);
  }
  RankState& state = *state_;
  const VirtualClock::Pause pause(state.clock_or_null());
  throw_dropped();
  if (arguments.operation == kExchange) {
    checked_exchange(*this, arguments.sends, arguments.receives, state.step);
    return exchange_lossy(arguments.sends, arguments.receives);
  }
  if (!is_message(arguments.operation)) state.run_collectives();
  if (arguments.operation != kBarrier && is_lossy(arguments)) return run_lossy(arguments);
  if (arguments.operation == kRecv) post_receives(arguments.peer);
  inner_.run(arguments);
}

std::unique_ptr<WorkInFlight> LossyCommunicator::begin(const CallArguments& arguments) {
  // The rank's waiting time is not compute time.
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
  RankState& state = *state_;
  const VirtualClock::Pause pause(state.clock_or_null());
  throw_dropped();
  checked_call(*this, arguments, state.step);
  if (is_lossy(arguments)) return begin_lossy(arguments);
  if (!is_message(arguments.operation) && state.queue.holds_up()) {
    auto kept = std::make_shared<KeptArguments>(arguments);
    return state.queue.start([&inner = inner_, kept = std::move(kept)] { inner.run(kept->get()); },
                             QueuedCalls::Others::kQueueUp);
  }
  if (arguments.operation == Operation::kRecv) post_receives(arguments.peer);
  std::unique_ptr<WorkInFlight> work = inner_.begin(arguments);
  if (work == nullptr) return nullptr;
  return std::make_unique<Straight>(std::move(work), state);
}

std::unique_ptr<Communicator> LossyCommunicator::split(int color, int key) {
  const VirtualClock::Pause pause(state_->clock_or_null());
  throw_dropped();
  state_->run_collectives();
  std::unique_ptr<Communicator> child = inner_.split(color, key);  // null for a negative color
  std::array<std::uint64_t, 1> number = {state_->next_group};
  inner_.all_reduce(Tensor(std::span<std::uint64_t>(number)), ReduceOp::kMax, kSplit);
  if (number[0] >= 0xffff) throw ConfigError("split: the loss layer knows at most 65534 groups of a rank");
  state_->next_group = static_cast<GroupNumber>(number[0] + 1);
  if (child == nullptr) return nullptr;
  Communicator& borrowed = *child;
  return std::unique_ptr<Communicator>(
      new LossyCommunicator(borrowed, std::move(child), state_, static_cast<GroupNumber>(number[0])));
}

std::unique_ptr<Path> LossyCommunicator::make_path(const ClassNetwork& network, const PathEntry& path) const {
  const PathContext context = context_of(network, path);
  return with_transforms(path.make(context), context, state_->ledger.network().seed);
}

LossyCommunicator::Paths& LossyCommunicator::paths_of(sim::TrafficClass traffic_class, Delivery delivery) {
  const auto index = static_cast<std::size_t>(traffic_class);
  Paths& certain = certain_paths_[index];
  return delivery == Delivery::kCertain && certain.network != nullptr ? certain : paths_[index];
}

// Messages of a rank to itself do not travel.
bool LossyCommunicator::is_lossy(const CallArguments& arguments) const {
  const bool to_self = is_message(arguments.operation) && arguments.peer == inner_.rank();
  return state_->lossless_scopes == 0 && inner_.world_size() > 1 && !to_self &&
         paths_[static_cast<std::size_t>(arguments.message.traffic_class)].network != nullptr;
}

Delivery LossyCommunicator::delivery_of(const Message& message) const {
  if (state_->protected_scopes > 0) return Delivery::kCertain;
  return comm::delivery_of(message, *state_->ledger.network().of(message.traffic_class), state_->step);
}

void LossyCommunicator::begin_inner_step() {
  steps_begun_ = state_->step;
  inner_.begin_step(state_->step);
}

void LossyCommunicator::follow_step() {
  if (steps_begun_ != state_->step) begin_inner_step();
}

// Receives from one rank are timed in the order of their starts, in whichever groups.
void LossyCommunicator::play_receives(int source, const StartedLossyCall* until) {
  for (StartedLossyCall* call : state_->started) {
    const bool comes_from_it =
        call->receives() && call->group().inner_.world_rank(call->arguments().peer) == inner_.world_rank(source);
    if (comes_from_it) call->play();
    if (call == until) return;
  }
}

void LossyCommunicator::post_receives(int source) {
  const bool some_wait = std::ranges::any_of(
      state_->started, [](const StartedLossyCall* call) { return call->receives() && !call->is_posted(); });
  if (some_wait) play_receives(source, nullptr);
}

void LossyCommunicator::check_receive(const CallArguments& arguments) const {
  for (const StartedLossyCall* call : state_->started) {
    const CallArguments& other = call->arguments();
    if (!call->receives() || &call->group() != this || other.peer != arguments.peer ||
        other.message.traffic_class != arguments.message.traffic_class ||
        other.message.layer != arguments.message.layer || other.message.name != arguments.message.name) {
      continue;
    }
    throw ConfigError("recv: rank " + std::to_string(inner_.world_rank(inner_.rank())) + ": got a second \"" +
                      std::string(other.message.name) + "\" of class " +
                      std::string(sim::traffic_class_name(other.message.traffic_class)) + " from rank " +
                      std::to_string(inner_.world_rank(other.peer)) +
                      " before the first one was waited for; want wait(), or another name");
  }
}

std::optional<CallStart> LossyCommunicator::start_of(const CallArguments& arguments) const {
  if (!timeline_) return std::nullopt;
  return timeline_->start(arguments, delivery_of(arguments.message), state_->step, state_->clock->time().seconds);
}

void LossyCommunicator::play_before(const CallArguments& arguments) {
  if (!timeline_) return;
  state_->play_started();
  if (arguments.operation == Operation::kRecv) play_receives(arguments.peer, nullptr);
}

void LossyCommunicator::pass_time(const CallArguments& arguments, const CallStart& start) {
  CallTiming times;
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
  state_->clock->wait_for(times, arguments.message.traffic_class);
}

void LossyCommunicator::run_lossy(const CallArguments& arguments) {
  checked_call(inner_, arguments, state_->step);
  if (arguments.operation == Operation::kRecv) check_receive(arguments);
  follow_step();
  const StreamTurns::Turn turn(turns_, stream_of(arguments));
  // This call begins with the memories that the started collectives leave.
  if (lane_ && !is_message(arguments.operation)) lane_->drain();
  play_before(arguments);
  const std::optional<CallStart> start = start_of(arguments);
  LossyCall call(*this, arguments);
  if (start) pass_time(arguments, *start);
  if (state_->fates_need_times) call.draw();
  if (arguments.operation == Operation::kSend) {
    inner_.send(call.outgoing(), arguments.peer, arguments.message);
    if (call.is_sampled()) inner_.send(arguments.input, arguments.peer, arguments.message);
  } else if (arguments.operation == Operation::kRecv) {
    call.before_receipt();
    inner_.recv(arguments.output, arguments.peer, arguments.message);
    call.received();
    if (call.is_sampled()) {
      inner_.recv(call.exact(), arguments.peer, arguments.message);
      call.compare_message();
    }
  } else {
    call.run(inner_, call.scratch());
  }
  call.note_samples();
}

// The messages travel together. Their packets, times and samples are those of sends one after the other, then of
// receives.
void LossyCommunicator::exchange_lossy(std::span<const Send> sends, std::span<const Receive> receives) {
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
    if (state_->fates_need_times) call.draw();
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
  inner_.exchange(outgoing, receives);
  std::for_each(calls.begin() + static_cast<std::ptrdiff_t>(sent), calls.end(), std::mem_fn(&LossyCall::received));
  inner_.exchange(exact_sends, exact_receives);
  for (std::size_t i = sent; i < calls.size(); ++i) {
    if (calls[i].is_sampled()) calls[i].compare_message();
  }
  for (LossyCall& call : calls) call.note_samples();
}

// Clocks that exchange their messages at the waits of ranks need a channel of their own; so does the thread of a
// collective.
bool LossyCommunicator::runs_ahead(const CallArguments& arguments) {
  const bool on_host = stream_of(arguments) == nullptr;
  if (on_host && lane_channel_ == nullptr) lane_channel_ = inner_.channel(kLaneChannel);
  if (state_->fates_need_times || (state_->clock && clock_channel_ == nullptr)) return false;
  if (!on_host) return !state_->queue.holds_up();
  if (lane_channel_ != nullptr && !lane_) lane_.emplace();
  return lane_.has_value();
}

Communicator& LossyCommunicator::channel_of_queue(const CallArguments& arguments) {
  return stream_of(arguments) == nullptr && lane_channel_ != nullptr ? *lane_channel_ : inner_;
}

// Data in device memory may travel another way than the times of departure, which are then received at the wait.
bool LossyCommunicator::posts_ahead(const CallArguments& arguments) const {
  return !timeline_ || clock_channel_ != nullptr || stream_of(arguments) == nullptr;
}

std::unique_ptr<WorkInFlight> LossyCommunicator::begin_lossy(const CallArguments& arguments) {
  follow_step();
  const StreamTurns::Turn turn(turns_, stream_of(arguments));
  auto work = std::make_unique<StartedLossyCall>(*this, arguments);
  work->start();
  return work;
}

}  // namespace droptest::comm
