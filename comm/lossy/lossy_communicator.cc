// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/lossy_communicator.h"

#include <algorithm>
#include <array>
#include <deque>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "comm/call.h"
#include "comm/deferred_calls.h"
#include "comm/device/stream_turns.h"
#include "comm/lossy/clock/group_timeline.h"
#include "comm/lossy/clock/virtual_clock.h"
#include "comm/lossy/fill/packet_runs.h"
#include "comm/lossy/flows/fate_verification.h"
#include "comm/lossy/flows/flow_ledger.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/lossy/paths/peer_messages.h"
#include "comm/lossy/paths/transformed_path.h"
#include "comm/lossy/statistics/result_sampler.h"
#include "comm/lossy/statistics/statistics_collection.h"
#include "comm/lossy/statistics/touched_calls.h"
#include "comm/lossy/statistics/touched_steps.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

const Message kSplit{sim::TrafficClass::kControl, "number of a split group"};

// Steps between collections of the verdicts of all ranks on calls and steps, which take a few bytes for each.
constexpr std::uint64_t kMostOpenSteps = 1024;

// What all communicators of one rank share: its links do not know groups.
struct RankState {
  RankState(const LossyOptions& options, int world_rank)
      : ledger(options.time ? with_deadlines(options.network, *options.time) : options.network, options.counting),
        sample_every_steps(options.sample_every_steps) {
    if (!options.time) return;
    clock.emplace(options.network, *options.time, world_rank);
    ledger.use_times(&clock->message_times());
  }
  VirtualClock* clock_or_null() { return clock ? &*clock : nullptr; }

  DeferredCalls started;
  FlowLedger ledger;
  std::optional<VirtualClock> clock;
  TouchedCalls calls;
  TouchedSteps steps;
  ResultSampler sampler;
  std::uint64_t sample_every_steps;
  std::uint64_t step = 0;
  std::uint64_t world_step = 0;  // that the communicator which was not split has begun
  std::uint64_t open_steps = 0;  // that have begun since the verdicts of all ranks were last put together
  bool step_is_sampled = false;
  int lossless_scopes = 0;
  GroupNumber next_group = 1;
};

int lowest_world_rank(const Communicator& group) {
  int lowest = group.world_rank(0);
  for (int rank = 1; rank < group.world_size(); ++rank) lowest = std::min(lowest, group.world_rank(rank));
  return lowest;
}

}  // namespace

class LossyCommunicator::Impl {
 public:
  Impl(Communicator& borrowed, std::unique_ptr<Communicator> owned, std::shared_ptr<RankState> shared,
       GroupNumber number)
      : owned_(std::move(owned)), inner(borrowed), state(std::move(shared)), group_(number) {
    for (int r = 0; r < inner.world_size(); ++r) {
      if (inner.world_rank(r) < sim::Link::kEveryDestination) continue;
      throw ConfigError("loss layer: world rank " + std::to_string(inner.world_rank(r)) + ", want at most 65534");
    }
    identity_ = {number, static_cast<std::uint16_t>(lowest_world_rank(inner))};
    if (state->clock) {
      VirtualClock& clock = *state->clock;
      timeline.emplace(inner, group_, clock.network(), clock.model(), clock.time(), clock.message_times());
    }
    for (const sim::TrafficClass c : sim::kAllTrafficClasses) {
      const auto& network = state->ledger.network().of(c);
      if (!network.has_value()) continue;
      validate(*network);
      add_paths(static_cast<std::size_t>(c), *network);
    }
  }

  // Of a class and, where the fill acts on messages that arrive whole too, of its protected messages.
  void add_paths(std::size_t traffic_class, const ClassNetwork& network) {
    paths_[traffic_class] = make_path(network);
    peer_messages_[traffic_class] = std::make_unique<PeerMessages>(context_of(network), state->ledger.network().seed);
    if (network.recovery.protect.empty() || network.reduce.fill != Fill::kInverseProbability) return;
    ClassNetwork& certain = certain_networks_[traffic_class].emplace(network);
    certain.reduce.fill = Fill::kZero;
    certain_paths_[traffic_class] = make_path(certain);
  }

  PathContext context_of(const ClassNetwork& network) {
    const bool feeds_back = network.recovery.error_feedback == ClassRecovery::ErrorFeedback::kOn;
    return {inner, state->ledger, group_, network, stale_, scratch_, feeds_back ? &feedback_ : nullptr};
  }

  std::unique_ptr<Path> make_path(const ClassNetwork& network) {
    const PathContext context = context_of(network);
    return with_transforms(path_entry(network.path).make(context), context, state->ledger.network().seed);
  }

  // The path that a message takes, or null where it goes straight to the inner communicator.
  Path* path_of(const Message& message) {
    state->started.run_all();
    if (state->lossless_scopes > 0 || inner.world_size() == 1) return nullptr;
    if (steps_begun_ != state->step) begin_step();
    const auto traffic_class = static_cast<std::size_t>(message.traffic_class);
    Path* path = paths_[traffic_class].get();
    if (path == nullptr) return nullptr;
    const Arrival arrival = arrival_of(message, *state->ledger.network().of(message.traffic_class), state->step);
    state->ledger.set_arrival(arrival);
    Path* certain_path = certain_paths_[traffic_class].get();
    return arrival == Arrival::kCertain && certain_path != nullptr ? certain_path : path;
  }

  bool has_path(const Message& message) const {
    return state->lossless_scopes == 0 && inner.world_size() > 1 &&
           paths_[static_cast<std::size_t>(message.traffic_class)] != nullptr;
  }

  // How a message to or from group rank `peer` travels, or null where it goes straight to the inner communicator: what
  // a rank sends to itself does not travel.
  PeerMessages* peer_messages_of(const Message& message, int peer) {
    state->started.run_all();
    if (peer == inner.rank() || path_of(message) == nullptr) return nullptr;
    return peer_messages_[static_cast<std::size_t>(message.traffic_class)].get();
  }

  void begin_step() {
    steps_begun_ = state->step;
    inner.begin_step(state->step);
    if (timeline) timeline->begin_step(state->step);
  }

  void pass_time(sim::Collective collective, std::span<const std::uint64_t> counts, int root, ElementType type,
                 const Message& message) {
    if (timeline) timeline->collective(collective, counts, root, type, message);
  }

  bool samples(ElementType type) const { return state->step_is_sampled && type != ElementType::kUint64; }

  // A buffer for the exact result of a lossy collective.
  Tensor exact_like(ConstTensor result) { return exact_.take(Scratch::Slot::kReceived, result, result.count_elems()); }

  enum class Replicas : std::uint8_t { kOughtToBeEqual, kDiffer };
  void compare_message(const Message& message, ConstTensor exact, ConstTensor result) {
    state->sampler.compare({message.traffic_class, message.layer}, exact, result, ResultSampler::CountCall::kHere);
  }
  void compare(const Message& message, ConstTensor exact, ConstTensor result, Replicas replicas) {
    using CountCall = ResultSampler::CountCall;
    const LayerKey key{message.traffic_class, message.layer};
    state->sampler.compare(key, exact, result, inner.rank() == 0 ? CountCall::kHere : CountCall::kElsewhere);
    if (replicas == Replicas::kOughtToBeEqual) state->sampler.compare_ranks(inner, key, result);
  }

  void note_collective(const Message& message) {
    const FlowLedger::Touch touch = state->ledger.take_touch();
    state->calls.note_collective(message.traffic_class, identity_, touch);
    state->steps.note({message.traffic_class, message.layer}, state->step, touch);
  }

  void note_message(const Message& message) {
    const FlowLedger::Touch touch = state->ledger.take_touch();
    state->calls.note_message(message.traffic_class, touch);
    state->steps.note({message.traffic_class, message.layer}, state->step, touch);
  }

  [[noreturn]] void refuse(std::string_view operation, const Message& message, const std::string& got,
                           const std::string& want) const {
    throw ConfigError(std::string(operation) + ": rank " + std::to_string(inner.world_rank(inner.rank())) + " of " +
                      std::to_string(inner.world_size()) + ": message \"" + std::string(message.name) + "\": got " +
                      got + ", want " + want);
  }

  // Wrong arguments must not use up packets on this rank alone, so they are refused before a path sees them.
  void check_counts(std::string_view operation, const Message& message, ConstTensor parts,
                    std::span<const std::uint64_t> counts) const {
    const std::uint64_t sum = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
    if (counts.size() == static_cast<std::size_t>(inner.world_size()) && sum == parts.count_elems()) return;
    refuse(operation, message,
           std::to_string(counts.size()) + " counts with sum " + std::to_string(sum) + " for " +
               std::to_string(parts.count_elems()) + " elements",
           "one count per rank with the elements as their sum");
  }
  void check_shapes(std::string_view operation, const Message& message, ConstTensor input, ConstTensor output,
                    std::uint64_t input_elems, std::uint64_t output_elems) const {
    if (input.type == output.type && input.count_elems() == input_elems && output.count_elems() == output_elems) return;
    refuse(operation, message,
           "an input of " + std::to_string(input.count_elems()) + " and an output of " +
               std::to_string(output.count_elems()) + " elements",
           std::to_string(input_elems) + " and " + std::to_string(output_elems) + " of one type");
  }

  Scratch& scratch_of_message(std::size_t index) {
    while (of_messages_.size() <= index) of_messages_.emplace_back();
    return of_messages_[index];
  }
  void note_departure(ConstTensor data, int destination, const Message& message) {
    if (timeline) timeline->send(destination, data.count_elems(), data.type, message);
  }
  void note_arrival(ConstTensor data, int source, const Message& message) {
    if (timeline) timeline->recv(source, data.count_elems(), data.type, message);
  }

  // The messages go together; their packets, their times and their samples are those of sends one after the other, then
  // of receives.
  void exchange(std::span<const Send> sends, std::span<const Receive> receives) {
    std::vector<Send> outgoing(sends.begin(), sends.end());
    std::vector<ConstTensor> own_values(receives.size());
    Stream* stream = nullptr;
    for (const Send& send : sends) stream = send.data.stream;
    for (const Receive& receive : receives) stream = receive.data.stream;
    const StreamTurns::Turn turn(turns, stream);
    for (std::size_t i = 0; i < sends.size(); ++i) {
      PeerMessages* messages = peer_messages_of(sends[i].message, sends[i].destination);
      if (messages == nullptr) continue;
      outgoing[i].data = messages->outgoing(sends[i].data, sends[i].message, scratch_of_message(i));
    }
    for (std::size_t i = 0; i < receives.size(); ++i) {
      PeerMessages* messages = peer_messages_of(receives[i].message, receives[i].source);
      if (messages == nullptr) continue;
      Scratch& scratch = scratch_of_message(sends.size() + i);
      own_values[i] = messages->before_receipt(receives[i].data, receives[i].message, scratch);
    }
    inner.exchange(outgoing, receives);
    std::vector<Send> exact_sends;
    std::vector<Receive> exact_receives;
    std::vector<ConstTensor> sampled;
    for (const Send& send : sends) {
      PeerMessages* messages = peer_messages_of(send.message, send.destination);
      if (messages == nullptr) continue;
      note_departure(send.data, send.destination, send.message);
      messages->sent(send.data, send.destination, send.message);
      state->ledger.take_touch();
      if (samples(send.data.type)) exact_sends.push_back(send);
    }
    for (std::size_t i = 0; i < receives.size(); ++i) {
      const auto& [data, source, message] = receives[i];
      PeerMessages* messages = peer_messages_of(message, source);
      if (messages == nullptr) continue;
      note_arrival(data, source, message);
      messages->received(data, own_values[i], source, message);
      note_message(message);
      if (!samples(data.type)) continue;
      Scratch& scratch = scratch_of_message(sends.size() + i);
      const Tensor exact = scratch.take(Scratch::Slot::kReceived, data, data.count_elems());
      exact_receives.push_back({exact, source, message});
      sampled.push_back(data);
    }
    inner.exchange(exact_sends, exact_receives);
    for (std::size_t i = 0; i < sampled.size(); ++i) {
      compare_message(exact_receives[i].message, exact_receives[i].data, sampled[i]);
    }
  }

  std::unique_ptr<Communicator> split(int color, int key) {
    std::unique_ptr<Communicator> child = inner.split(color, key);  // null for a negative color
    std::array<std::uint64_t, 1> number = {state->next_group};
    inner.all_reduce(Tensor(std::span<std::uint64_t>(number)), ReduceOp::kMax, kSplit);
    if (number[0] >= 0xffff) throw ConfigError("split: the loss layer knows at most 65534 groups of a rank");
    state->next_group = static_cast<GroupNumber>(number[0] + 1);
    if (child == nullptr) return nullptr;
    Communicator& borrowed = *child;
    auto impl = std::make_unique<Impl>(borrowed, std::move(child), state, static_cast<GroupNumber>(number[0]));
    return std::unique_ptr<Communicator>(new LossyCommunicator(std::move(impl)));
  }

  GroupNumber group() const { return group_; }

 private:
  std::unique_ptr<Communicator> owned_;  // inner, where it was split for this one

 public:
  Communicator& inner;
  std::shared_ptr<RankState> state;  // shared by this rank's communicator and those split from it
  std::optional<GroupTimeline> timeline;
  StreamTurns turns;  // of the buffers that calls share

 private:
  GroupNumber group_;
  GroupIdentity identity_;
  std::uint64_t steps_begun_ = 0;
  StaleMemory stale_;
  Scratch scratch_;
  Scratch exact_;
  std::deque<Scratch> of_messages_;  // of an exchange, one for each message
  ErrorFeedback feedback_{stale_, scratch_};
  std::array<std::unique_ptr<Path>, sim::kAllTrafficClasses.size()> paths_;
  std::array<std::unique_ptr<PeerMessages>, sim::kAllTrafficClasses.size()> peer_messages_;
  std::array<std::optional<ClassNetwork>, sim::kAllTrafficClasses.size()> certain_networks_;
  std::array<std::unique_ptr<Path>, sim::kAllTrafficClasses.size()> certain_paths_;
};

LossyCommunicator::LossyCommunicator(Communicator& inner, const LossyOptions& options)
    : impl_(std::make_unique<Impl>(inner, nullptr, std::make_shared<RankState>(options, inner.world_rank(inner.rank())),
                                   GroupNumber{0})) {}

LossyCommunicator::LossyCommunicator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

LossyCommunicator::~LossyCommunicator() = default;

int LossyCommunicator::rank() const { return impl_->inner.rank(); }
int LossyCommunicator::world_size() const { return impl_->inner.world_size(); }
int LossyCommunicator::world_rank(int rank) const { return impl_->inner.world_rank(rank); }
std::string_view LossyCommunicator::backend() const { return impl_->inner.backend(); }

void LossyCommunicator::begin_step(std::uint64_t step) {
  RankState& state = *impl_->state;
  state.started.run_all();
  if (impl_->group() == 0) {
    // Other groups of a rank may have begun the step before: all ranks collect at the end of the same one.
    const std::uint64_t ended = std::exchange(state.world_step, step);
    if (ended != step && ++state.open_steps > kMostOpenSteps) {
      state.step = ended;
      collect_statistics(LinkDetail::kOmit);
    }
  }
  state.step = step;
  state.ledger.begin_step(step);
  state.step_is_sampled = state.sample_every_steps > 0 && step % state.sample_every_steps == 0;
  if (state.clock) state.clock->begin_step(step);
  impl_->begin_step();
}

void LossyCommunicator::all_reduce(ConstTensor input, Tensor output, ReduceOp op, const Message& message) {
  const VirtualClock::Pause pause(impl_->state->clock_or_null());
  Path* path = impl_->path_of(message);
  if (path == nullptr) return impl_->inner.all_reduce(input, output, op, message);
  const StreamTurns::Turn turn(impl_->turns, output.stream);
  impl_->check_shapes("all_reduce", message, input, output, input.count_elems(), input.count_elems());
  impl_->pass_time(sim::Collective::kAllReduce, std::array{input.count_elems()}, 0, input.type, message);
  if (!impl_->samples(input.type)) {
    path->all_reduce(input, output, op, message);
    return impl_->note_collective(message);
  }
  const Tensor exact = impl_->exact_like(output);
  impl_->inner.all_reduce(input, exact, op, message);
  path->all_reduce(input, output, op, message);
  impl_->note_collective(message);
  impl_->compare(message, exact, output, Impl::Replicas::kOughtToBeEqual);
}

void LossyCommunicator::reduce_scatter(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                                       ReduceOp op, const Message& message) {
  const VirtualClock::Pause pause(impl_->state->clock_or_null());
  Path* path = impl_->path_of(message);
  if (path == nullptr) return impl_->inner.reduce_scatter(input, output, counts, op, message);
  const StreamTurns::Turn turn(impl_->turns, output.stream);
  impl_->check_counts("reduce_scatter", message, input, counts);
  impl_->check_shapes("reduce_scatter", message, input, output, input.count_elems(), counts[rank()]);
  impl_->pass_time(sim::Collective::kReduceScatter, counts, 0, input.type, message);
  const bool sampled = impl_->samples(input.type);
  const Tensor exact = sampled ? impl_->exact_like(output) : Tensor();
  if (sampled) impl_->inner.reduce_scatter(input, exact, counts, op, message);
  path->reduce_scatter(input, output, counts, op, message);
  impl_->note_collective(message);
  if (sampled) impl_->compare(message, exact, output, Impl::Replicas::kDiffer);
}

void LossyCommunicator::all_gather(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                                   const Message& message) {
  const VirtualClock::Pause pause(impl_->state->clock_or_null());
  Path* path = impl_->path_of(message);
  if (path == nullptr) return impl_->inner.all_gather(input, output, counts, message);
  const StreamTurns::Turn turn(impl_->turns, output.stream);
  impl_->check_counts("all_gather", message, output, counts);
  impl_->check_shapes("all_gather", message, input, output, counts[rank()], output.count_elems());
  impl_->pass_time(sim::Collective::kAllGather, counts, 0, input.type, message);
  const bool sampled = impl_->samples(input.type);
  const Tensor exact = sampled ? impl_->exact_like(output) : Tensor();
  if (sampled) impl_->inner.all_gather(input, exact, counts, message);
  path->all_gather(input, output, counts, message);
  impl_->note_collective(message);
  if (sampled) impl_->compare(message, exact, output, Impl::Replicas::kOughtToBeEqual);
}

void LossyCommunicator::all_to_all(ConstTensor input, std::span<const std::uint64_t> send_counts, Tensor output,
                                   std::span<const std::uint64_t> receive_counts, const Message& message) {
  const VirtualClock::Pause pause(impl_->state->clock_or_null());
  Path* path = impl_->path_of(message);
  if (path == nullptr) return impl_->inner.all_to_all(input, send_counts, output, receive_counts, message);
  const StreamTurns::Turn turn(impl_->turns, output.stream);
  impl_->check_counts("all_to_all", message, input, send_counts);
  impl_->check_counts("all_to_all", message, output, receive_counts);
  impl_->check_shapes("all_to_all", message, input, output, input.count_elems(), output.count_elems());
  if (impl_->timeline) impl_->timeline->all_to_all(send_counts, input.type, message);
  const bool sampled = impl_->samples(input.type);
  const Tensor exact = sampled ? impl_->exact_like(output) : Tensor();
  if (sampled) impl_->inner.all_to_all(input, send_counts, exact, receive_counts, message);
  path->all_to_all(input, send_counts, output, receive_counts, message);
  impl_->note_collective(message);
  if (sampled) impl_->compare(message, exact, output, Impl::Replicas::kDiffer);
}

void LossyCommunicator::broadcast(Tensor data, int root, const Message& message) {
  const VirtualClock::Pause pause(impl_->state->clock_or_null());
  Path* path = impl_->path_of(message);
  if (path == nullptr) return impl_->inner.broadcast(data, root, message);
  const StreamTurns::Turn turn(impl_->turns, data.stream);
  impl_->pass_time(sim::Collective::kBroadcast, std::array{data.count_elems()}, root, data.type, message);
  const bool sampled = impl_->samples(data.type);
  const Tensor exact = sampled ? impl_->exact_like(data) : Tensor();
  if (sampled) {
    copy(data, exact);
    impl_->inner.broadcast(exact, root, message);
  }
  path->broadcast(data, root, message);
  impl_->note_collective(message);
  if (sampled) impl_->compare(message, exact, data, Impl::Replicas::kOughtToBeEqual);
}

void LossyCommunicator::send(ConstTensor data, int destination, const Message& message) {
  const VirtualClock::Pause pause(impl_->state->clock_or_null());
  PeerMessages* messages = impl_->peer_messages_of(message, destination);
  if (messages == nullptr) return impl_->inner.send(data, destination, message);
  const StreamTurns::Turn turn(impl_->turns, data.stream);
  const ConstTensor outgoing = messages->outgoing(data, message, impl_->scratch_of_message(0));
  impl_->note_departure(data, destination, message);
  impl_->inner.send(outgoing, destination, message);
  messages->sent(data, destination, message);
  impl_->state->ledger.take_touch();  // the receiver says whether the message was touched
  if (impl_->samples(data.type)) impl_->inner.send(data, destination, message);
}

void LossyCommunicator::recv(Tensor data, int source, const Message& message) {
  const VirtualClock::Pause pause(impl_->state->clock_or_null());
  PeerMessages* messages = impl_->peer_messages_of(message, source);
  if (messages == nullptr) return impl_->inner.recv(data, source, message);
  const StreamTurns::Turn turn(impl_->turns, data.stream);
  const ConstTensor own_values = messages->before_receipt(data, message, impl_->scratch_of_message(0));
  impl_->note_arrival(data, source, message);
  impl_->inner.recv(data, source, message);
  messages->received(data, own_values, source, message);
  impl_->note_message(message);
  if (!impl_->samples(data.type)) return;
  const Tensor exact = impl_->exact_like(data);
  impl_->inner.recv(exact, source, message);
  impl_->compare_message(message, exact, data);
}

void LossyCommunicator::exchange(std::span<const Send> sends, std::span<const Receive> receives) {
  const VirtualClock::Pause pause(impl_->state->clock_or_null());
  checked_exchange(*this, sends, receives, impl_->state->step);
  impl_->state->started.run_all();
  impl_->exchange(sends, receives);
}

std::unique_ptr<WorkInFlight> LossyCommunicator::begin(const CallArguments& arguments) {
  // The rank's time in its wait is no compute time.
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
  RankState& state = *impl_->state;
  const VirtualClock::Pause pause(state.clock_or_null());
  checked_call(*this, arguments, state.step);
  if (!state.started.empty() || impl_->has_path(arguments.message)) return state.started.start(*this, arguments);
  std::unique_ptr<WorkInFlight> work = impl_->inner.begin(arguments);
  if (work == nullptr) return nullptr;
  return std::make_unique<Straight>(std::move(work), state);
}

void LossyCommunicator::barrier(const Message& message) {
  const VirtualClock::Pause pause(impl_->state->clock_or_null());
  impl_->state->started.run_all();
  impl_->inner.barrier(message);
}

std::unique_ptr<Communicator> LossyCommunicator::split(int color, int key) {
  const VirtualClock::Pause pause(impl_->state->clock_or_null());
  impl_->state->started.run_all();
  return impl_->split(color, key);
}

void LossyCommunicator::abort(std::string_view reason) noexcept { impl_->inner.abort(reason); }

LossyCommunicator::LosslessScope::LosslessScope(LossyCommunicator& communicator)
    : communicator_(communicator),
      pause_(std::make_unique<VirtualClock::Pause>(communicator.impl_->state->clock_or_null())) {
  communicator_.impl_->state->started.run_all();
  ++communicator_.impl_->state->lossless_scopes;
}

LossyCommunicator::LosslessScope::~LosslessScope() { --communicator_.impl_->state->lossless_scopes; }

VirtualClock::Pause LossyCommunicator::pause_clock() { return VirtualClock::Pause(impl_->state->clock_or_null()); }

VirtualClock::Stop LossyCommunicator::stop_clock() {
  const VirtualClock::Pause pause(impl_->state->clock_or_null());
  impl_->state->started.run_all();  // in the time in which they were started
  return VirtualClock::Stop(impl_->state->clock_or_null());
}

void LossyCommunicator::verify_fates() {
  const VirtualClock::Pause pause(impl_->state->clock_or_null());
  impl_->state->started.run_all();
  comm::verify_fates(impl_->inner, impl_->state->ledger, impl_->state->next_group);
}

std::vector<ClassStatistics> LossyCommunicator::collect_statistics(LinkDetail detail) {
  RankState& state = *impl_->state;
  const VirtualClock::Pause pause(impl_->state->clock_or_null());
  state.started.run_all();
  const Settling settling = impl_->group() == 0 ? Settling::kSettle : Settling::kKeep;
  if (settling == Settling::kSettle) state.open_steps = 0;
  return comm::collect_statistics(impl_->inner, {state.ledger, state.calls, state.steps, state.sampler, state.step},
                                  settling, detail);
}

std::vector<ClassSample> LossyCommunicator::take_samples() {
  const VirtualClock::Pause pause(impl_->state->clock_or_null());
  impl_->state->started.run_all();
  return comm::take_samples(impl_->inner, impl_->state->ledger, impl_->state->sampler);
}

std::optional<VirtualTime> LossyCommunicator::collect_time() {
  if (!impl_->state->clock) return std::nullopt;
  const VirtualClock::Pause pause(impl_->state->clock_or_null());
  impl_->state->started.run_all();
  return comm::collect_time(impl_->inner, impl_->state->clock->time());
}

}  // namespace droptest::comm
