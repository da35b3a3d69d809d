// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/lossy_group.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "comm/device/tensor_operations.h"
#include "comm/lossy/fill/packet_runs.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/lossy/paths/transformed_path.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

const Message kSplit{sim::TrafficClass::kControl, "number of a split group"};

// The second channels of a group.
constexpr int kLaneTwin = 0;
constexpr int kClockTwin = 1;

Stream* stream_of(const CallArguments& arguments) {
  return arguments.input.stream != nullptr ? arguments.input.stream : arguments.output.stream;
}

bool is_on_device(const CallArguments& arguments) { return stream_of(arguments) != nullptr; }

// Whether all ranks of a collective ought to end with equal results.
bool has_replicas(Operation operation) {
  return operation == Operation::kAllReduce || operation == Operation::kAllGather || operation == Operation::kBroadcast;
}

}  // namespace

// A started call from its start to the end of its wait.
class StartedLossyCall final : public WorkInFlight {
 public:
  StartedLossyCall(LossyGroup& group, const CallArguments& arguments)
      : group_(group), arguments_(arguments), call_(group, arguments_.get()) {
    RankState& state = *group_.state;
    if (state.clock) ready_seconds_ = state.clock->time().seconds;
    state.started.push_back(this);
  }
  /// Where its wait failed before the data came, another thread may still be at work on them.
  ~StartedLossyCall() override {
    try {
      await_parts();
    } catch (...) {
      // The group has failed, and its next call says why.
    }
    std::erase(group_.state->started, this);
  }
  StartedLossyCall(const StartedLossyCall&) = delete;
  StartedLossyCall& operator=(const StartedLossyCall&) = delete;

  const CallArguments& arguments() const { return arguments_.get(); }
  const LossyGroup& group() const { return group_; }
  bool receives() const { return arguments().operation == Operation::kRecv; }

  void start() {
    const CallArguments& call = arguments_.get();
    if (call.operation == Operation::kSend) {
      begin_send(call_.outgoing());
      if (call_.is_sampled()) begin_send(call.input);
    } else if (receives()) {
      call_.before_receipt();
      begin_recv(call.output);
      if (call_.is_sampled()) begin_recv(call_.exact());
    } else if (is_on_device(call)) {
      call_.run(group_.inner, call_.scratch());
    } else {
      parts_.push_back(group_.lane_->start([this] { call_.run(*group_.lane_channel_, group_.lane_scratch_); }));
    }
  }

  void play() {
    if (!end_seconds_ && group_.timeline_)
      end_seconds_ = group_.timeline_->play(arguments_.get(), call_.arrival(), ready_seconds_);
  }

  void pass_time() const {
    if (end_seconds_) group_.state->clock->wait_until(*end_seconds_);
  }

  void finish() override {
    RankState& state = *group_.state;
    const VirtualClock::Pause pause(state.clock_or_null());
    state.play_started(this);
    if (receives()) group_.play_receives(arguments().peer, this);
    pass_time();
    await_parts();
    if (receives()) {
      const StreamTurns::Turn turn(group_.turns_, arguments_.get().output.stream);
      call_.received();
      if (call_.is_sampled()) call_.compare_message();
    }
    call_.note_samples();
  }

  bool finished() override {
    const VirtualClock::Pause pause(group_.state->clock_or_null());
    if (group_.timeline_ && !end_seconds_) return false;
    return std::ranges::all_of(parts_, [](const auto& part) { return part == nullptr || part->finished(); });
  }

 private:
  void begin_send(ConstTensor data) {
    CallArguments call = arguments_.get();
    call.input = data;
    parts_.push_back(group_.inner.begin(call));
  }
  void begin_recv(Tensor data) {
    CallArguments call = arguments_.get();
    call.output = data;
    parts_.push_back(group_.inner.begin(call));
  }

  // All of them, so that nothing refers to the buffers of the call when one has failed.
  void await_parts() {
    std::exception_ptr thrown;
    for (const std::unique_ptr<WorkInFlight>& part : std::exchange(parts_, {})) {
      try {
        if (part != nullptr) part->finish();
      } catch (...) {
        if (thrown == nullptr) thrown = std::current_exception();
      }
    }
    if (thrown != nullptr) std::rethrow_exception(thrown);
  }

  LossyGroup& group_;
  KeptArguments arguments_;
  LossyCall call_;
  std::vector<std::unique_ptr<WorkInFlight>> parts_;  // null: done
  double ready_seconds_ = 0;
  std::optional<double> end_seconds_;
};

RankState::RankState(const LossyOptions& options, int world_rank)
    : ledger(options.time ? with_deadlines(options.network, *options.time) : options.network, options.counting),
      sample_every_steps(options.sample_every_steps) {
  if (!options.time) return;
  clock.emplace(options.network, *options.time, world_rank);
  plans_need_times = time_feeds_fates(options.network, *options.time);
}

void RankState::play_started(const StartedLossyCall* until) {
  for (StartedLossyCall* call : started) {
    if (!call->receives()) call->play();
    if (call == until) return;
  }
}

void RankState::pass_started() {
  play_started();
  for (const StartedLossyCall* call : started) call->pass_time();
}

void RankState::add_samples(std::uint64_t number, const LayerKey& key, const SampleSums& sums) {
  early_samples.emplace(number, std::pair(key, sums));
  for (auto next = early_samples.begin(); next != early_samples.end() && next->first == samples_added;
       next = early_samples.erase(next)) {
    sampler.add(next->second.first, next->second.second);
    ++samples_added;
  }
}

void RankState::visit_state(sim::StateVisitor& visitor) {
  visit_values(visitor, ledger, touches, sampler, sampled_calls, samples_added, step, world_step, open_steps,
               step_is_sampled, next_group);
  if (clock) visit_value(visitor, *clock);
}

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
    timeline_.emplace(clock_channel_ == nullptr ? inner : *clock_channel_, number, *state->clock);
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
}

std::unique_ptr<Path> LossyGroup::make_path(const ClassNetwork& network) const {
  const PathContext context = context_of(network);
  return with_transforms(path_entry(network.path).make(context), context, state->ledger.network().seed);
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

void LossyGroup::play_receives(int source, const StartedLossyCall* until) {
  for (StartedLossyCall* call : state->started) {
    if (call->receives() && &call->group() == this && call->arguments().peer == source) call->play();
    if (call == until) return;
  }
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
  if (!state->started.empty() || !state->deferred.empty()) {
    throw ConfigError("state of a loss layer: got " + std::to_string(state->started.size() + state->deferred.size()) +
                      " works under way, want none: wait for them first");
  }
  if (number() == 0) visit_value(visitor, *state);
  visit_values(visitor, steps_begun_, stale_);
  if (timeline_) visit_value(visitor, *timeline_);
}

void LossyGroup::begin_step() {
  steps_begun_ = state->step;
  inner.begin_step(state->step);
  if (timeline_) timeline_->begin_step(state->step);
}

void LossyGroup::pass_time(const CallArguments& arguments) {
  if (!timeline_) return;
  state->play_started();
  if (arguments.operation == Operation::kRecv) play_receives(arguments.peer, nullptr);
  const double ready_seconds = state->clock->time().seconds;
  state->clock->wait_until(timeline_->play(arguments, arrival_of(arguments.message), ready_seconds));
}

void LossyGroup::call(const CallArguments& arguments) {
  checked_call(inner, arguments, state->step);
  if (arguments.operation == Operation::kRecv) check_receive(arguments);
  follow_step();
  const StreamTurns::Turn turn(turns_, stream_of(arguments));
  // This one begins with the memories of the started collectives.
  if (lane_ && !is_message(arguments.operation)) lane_->drain();
  pass_time(arguments);
  LossyCall call(*this, arguments);
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

// The messages go together; their packets, their times and their samples are those of sends one after the other, then
// of receives.
void LossyGroup::exchange(std::span<const Send> sends, std::span<const Receive> receives) {
  Stream* stream = nullptr;
  for (const Send& send : sends) stream = send.data.stream;
  for (const Receive& receive : receives) stream = receive.data.stream;
  const StreamTurns::Turn turn(turns_, stream);
  follow_step();
  std::vector<CallArguments> arguments;  // with room for all, because calls refer to them
  std::vector<LossyCall> calls;
  arguments.reserve(sends.size() + receives.size());
  calls.reserve(sends.size() + receives.size());
  std::vector<Send> outgoing(sends.begin(), sends.end());
  std::vector<Send> exact_sends;
  std::vector<Receive> exact_receives;
  for (Send& send : outgoing) {
    const CallArguments call_of_send{
        .operation = Operation::kSend, .input = send.data, .peer = send.destination, .message = send.message};
    if (!is_lossy(call_of_send)) continue;
    arguments.push_back(call_of_send);
    pass_time(arguments.back());
    LossyCall& call = calls.emplace_back(*this, arguments.back());
    if (call.is_sampled()) exact_sends.push_back(send);
    send.data = call.outgoing();
  }
  const std::size_t sent = calls.size();
  for (const auto& [data, source, message] : receives) {
    const CallArguments call_of_receive{
        .operation = Operation::kRecv, .output = data, .peer = source, .message = message};
    if (!is_lossy(call_of_receive)) continue;
    check_receive(call_of_receive);
    arguments.push_back(call_of_receive);
    pass_time(arguments.back());
    LossyCall& call = calls.emplace_back(*this, arguments.back());
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

// Clocks need a channel of their own where their messages go when ranks wait; so does the thread of a collective.
// Messages need no thread.
bool LossyGroup::plans_ahead(const CallArguments& arguments) {
  if (state->plans_need_times || (state->clock && clock_channel_ == nullptr)) return false;
  if (is_on_device(arguments) || is_message(arguments.operation)) return true;
  if (lane_channel_ == nullptr) lane_channel_ = inner.twin(kLaneTwin);
  if (lane_channel_ != nullptr && !lane_) lane_.emplace();
  return lane_.has_value();
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

LossyCall::LossyCall(LossyGroup& group, const CallArguments& arguments)
    : group_(group), arguments_(arguments), arrival_(group.arrival_of(arguments.message)) {
  RankState& state = *group.state;
  const auto& [operation, input, output, op, counts, receive_counts, peer, message] = arguments;
  is_sampled_ = group.samples(operation == Operation::kSend ? input.type : output.type);
  CallFates fates;
  const LayerKey key{message.traffic_class, message.layer};
  fates.group = group.number();
  fates.step = state.step;
  fates.arrival = arrival_;
  fates.ordinal = message.ordinal;
  if (state.plans_need_times) fates.times = &state.clock->message_times();
  LossyGroup::Paths& of_class = group.paths_of(message.traffic_class, arrival_);
  if (is_message(operation)) {
    fates.ends = CallFates::Ends::kApart;
    message_ = of_class.messages.take([&] {
      return std::make_unique<PeerMessage>(group.context_of(*of_class.network), state.ledger.network().seed);
    });
    message_->plan(arguments, fates);
    if (operation == Operation::kSend) return;  // the receiver says whether the message was touched, and compares
    state.touches.note_message(key, state.step, fates.touch);
  } else {
    path_ = of_class.paths.take([&] { return group.make_path(*of_class.network); });
    path_->plan(arguments, fates);
    state.touches.note_collective(key, group.identity_, state.step, fates.touch);
  }
  if (is_sampled_) sample_number_ = state.sampled_calls++;
}

Scratch& LossyCall::scratch() {
  if (scratch_.get() == nullptr) scratch_ = group_.scratch_.take([] { return std::make_unique<Scratch>(); });
  return *scratch_;
}

Tensor LossyCall::exact_in(Scratch& scratch) {
  exact_ = scratch.take(Scratch::Slot::kExact, arguments_.output, arguments_.output.count_elems());
  return exact_;
}

void LossyCall::run(Communicator& inner, Scratch& scratch) {
  if (is_sampled_) {
    CallArguments exact_call = arguments_;
    exact_call.output = exact_in(scratch);
    if (arguments_.operation == Operation::kBroadcast) {
      copy(arguments_.output, exact_);
      exact_call.input = exact_;
    }
    call_now(inner, exact_call);
  }
  path_->run(arguments_, inner, scratch);
  if (!is_sampled_) return;
  sums_ = errors_of(exact_, arguments_.output);
  sums_.calls = group_.inner.rank() == 0 ? 1 : 0;
  if (has_replicas(arguments_.operation)) sums_.add(divergence_of(inner, arguments_.output, scratch));
}

void LossyCall::compare_message() {
  sums_ = errors_of(exact_, arguments_.output);
  sums_.calls = 1;
}

void LossyCall::note_samples() {
  const Message& message = arguments_.message;
  if (!is_sampled_ || arguments_.operation == Operation::kSend) return;
  group_.state->add_samples(sample_number_, {message.traffic_class, message.layer}, sums_);
}

}  // namespace droptest::comm
