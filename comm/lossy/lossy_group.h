// SPDX-License-Identifier: Apache-2.0
// The loss layer of one group: how a call of a class with a network is planned, run and counted.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "comm/call.h"
#include "comm/communicator.h"
#include "comm/device/stream_turns.h"
#include "comm/lossy/clock/group_timeline.h"
#include "comm/lossy/clock/virtual_clock.h"
#include "comm/lossy/fill/scratch.h"
#include "comm/lossy/fill/stale_memory.h"
#include "comm/lossy/flows/flow_ledger.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/paths/path.h"
#include "comm/lossy/paths/peer_message.h"
#include "comm/lossy/pool.h"
#include "comm/lossy/statistics/result_sampler.h"
#include "comm/lossy/statistics/touch_record.h"
#include "comm/started/deferred_calls.h"
#include "comm/started/lane.h"
#include "sim/state_visitor.h"

namespace droptest::comm {

class StartedLossyCall;

/// The state that all communicators of one rank share: its links do not know groups.
struct RankState {
  RankState(const LossyOptions& options, int world_rank);
  VirtualClock* clock_or_null() { return clock ? &*clock : nullptr; }

  /// Works out the times of started calls but receives, in the order of their starts: of all, or until one of them.
  void play_started(const StartedLossyCall* until = nullptr);
  /// The rank's clock goes on to their ends.
  void pass_started();
  /// Adds the samples of a call to those of the rank, once those of all calls before it are there: so that sums do not
  /// depend on the order of the waits.
  void add_samples(std::uint64_t number, const LayerKey& key, const SampleSums& sums);

  void visit_state(sim::StateVisitor& visitor);

  DeferredCalls deferred;
  std::deque<StartedLossyCall*> started;  ///< works under way, in the order of their starts
  FlowLedger ledger;
  std::optional<VirtualClock> clock;
  bool plans_need_times = false;  ///< time feeds fates, so that calls can be planned only when ranks wait
  TouchRecord touches;
  ResultSampler sampler;
  std::uint64_t sampled_calls = 0;                                         ///< planned so far
  std::uint64_t samples_added = 0;                                         ///< calls with their sums in `sampler`
  std::map<std::uint64_t, std::pair<LayerKey, SampleSums>> early_samples;  ///< by number of their call
  std::uint64_t sample_every_steps;
  std::uint64_t step = 0;
  std::uint64_t world_step = 0;  ///< the step of the communicator that was not split
  std::uint64_t open_steps = 0;  ///< steps since the last collection of all ranks' verdicts
  bool step_is_sampled = false;
  int lossless_scopes = 0;
  int protected_scopes = 0;
  GroupNumber next_group = 1;
};

/// One group of a rank. Thread safety: none, but for LossyCall::run().
class LossyGroup {
 public:
  /// `owned` is null, or keeps `inner` alive. Throws: ConfigError for a fill or path that has no meaning.
  LossyGroup(Communicator& inner, std::unique_ptr<Communicator> owned, std::shared_ptr<RankState> state,
             GroupNumber number);

  /// Whether packets of the call travel, so that they may get lost.
  bool is_lossy(const CallArguments& arguments) const;
  /// How the packets of a message of a class with a network fare that is sent now.
  Arrival arrival_of(const Message& message) const;
  void begin_step();

  /// A blocking call, which is_lossy().
  void call(const CallArguments& arguments);
  void exchange(std::span<const Send> sends, std::span<const Receive> receives);
  /// Whether a started call can be planned at once, and goes on while the rank computes; otherwise it is a blocking one
  /// at its wait.
  bool plans_ahead(const CallArguments& arguments);
  std::unique_ptr<WorkInFlight> begin(const CallArguments& arguments);
  /// Ranks: all of the group.
  std::unique_ptr<LossyGroup> split(int color, int key);

  GroupNumber number() const { return identity_.number; }
  void visit_state(sim::StateVisitor& visitor);

  Communicator& inner;
  const std::shared_ptr<RankState> state;  ///< shared by this rank's communicator and those split from it

 private:
  friend class LossyCall;
  friend class StartedLossyCall;
  /// Objects for calls of a class, each for one call at a time.
  struct Paths {
    const ClassNetwork* network = nullptr;  ///< null: the class is reliable
    Pool<Path> paths;
    Pool<PeerMessage> messages;
  };

  Paths& paths_of(sim::TrafficClass traffic_class, Arrival arrival);
  PathContext context_of(const ClassNetwork& network) const { return {inner, state->ledger, network, stale_}; }
  std::unique_ptr<Path> make_path(const ClassNetwork& network) const;
  /// Begins the rank's step, where another group of it was told.
  void follow_step();
  /// The times of started receives from a rank, in the order of their starts: of all, or until one of them.
  void play_receives(int source, const StartedLossyCall* until);
  /// Throws: ConfigError for a receive whose class, name, layer and source have a work under way: its stale
  /// values are not known before that wait.
  void check_receive(const CallArguments& arguments) const;
  bool samples(ElementType type) const { return state->step_is_sampled && !is_integer(type); }
  /// The rank's clock moves on over a blocking call.
  void pass_time(const CallArguments& arguments);

  std::unique_ptr<Communicator> owned_;
  GroupIdentity identity_;
  std::uint64_t steps_begun_ = 0;
  mutable StaleMemory stale_;
  Pool<Scratch> scratch_;
  StreamTurns turns_;  // of the buffers that calls share
  std::array<Paths, sim::kAllTrafficClasses.size()> paths_;
  // Of the messages of a class that arrive for certain, where its fill acts on those that arrive whole too.
  std::array<std::optional<ClassNetwork>, sim::kAllTrafficClasses.size()> certain_networks_;
  std::array<Paths, sim::kAllTrafficClasses.size()> certain_paths_;
  std::unique_ptr<Communicator> clock_channel_;  // null: the inner communicator
  std::optional<GroupTimeline> timeline_;
  std::unique_ptr<Communicator> lane_channel_;
  Scratch lane_scratch_;  // of the collective that runs on the lane
  std::optional<Lane> lane_;
};

/// One call of a class with a network: planned when it is made, then run, then over.
class LossyCall {
 public:
  /// Plans it. `arguments` are borrowed, and those of one call of Communicator; they have been checked.
  LossyCall(LossyGroup& group, const CallArguments& arguments);

  /// A collective over `inner`, or over a twin of it on another thread, with the scratch of that thread.
  void run(Communicator& inner, Scratch& scratch);

  /// A message, whose data the caller moves: the values that travel of a send.
  ConstTensor outgoing() { return message_->outgoing(arguments_.input, scratch()); }
  /// Before a message is received, and when it has come.
  void before_receipt() { message_->before_receipt(arguments_.output, scratch()); }
  void received() { message_->received(arguments_); }

  Arrival arrival() const { return arrival_; }
  bool is_sampled() const { return is_sampled_; }
  /// The buffer for a sampled message as it was sent.
  Tensor exact() { return exact_in(scratch()); }
  /// The call's own buffers, on the rank's thread.
  Scratch& scratch();
  void compare_message();
  /// Adds the call's sums to the rank's samples, where the call is sampled. Once, on the rank's thread.
  void note_samples();

 private:
  Tensor exact_in(Scratch& scratch);

  LossyGroup& group_;
  const CallArguments& arguments_;
  Pool<Path>::Loan path_;            // of a collective
  Pool<PeerMessage>::Loan message_;  // of a message
  Pool<Scratch>::Loan scratch_;
  Arrival arrival_;
  bool is_sampled_;
  std::uint64_t sample_number_ = 0;
  Tensor exact_;
  SampleSums sums_;
};

}  // namespace droptest::comm
