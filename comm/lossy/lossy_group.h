// SPDX-License-Identifier: Apache-2.0
// The loss layer of one group: its calls, one after the other.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "comm/buffer_use.h"
#include "comm/call.h"
#include "comm/communicator.h"
#include "comm/device/stream_turns.h"
#include "comm/lossy/clock/group_timeline.h"
#include "comm/lossy/fill/scratch.h"
#include "comm/lossy/fill/stale_memory.h"
#include "comm/lossy/flows/flow_ledger.h"
#include "comm/lossy/network.h"
#include "comm/lossy/paths/path.h"
#include "comm/lossy/paths/peer_message.h"
#include "comm/lossy/pool.h"
#include "comm/lossy/rank_state.h"
#include "comm/started/lane.h"
#include "sim/boxed.h"
#include "sim/state_visitor.h"

namespace droptest::comm {

/// One group of a rank. Thread safety: none, but for LossyCall::run().
class LossyGroup {
 public:
  /// `owned` is null, or keeps `inner` alive. Throws: ConfigError for a fill or path that has no meaning.
  LossyGroup(Communicator& inner, std::unique_ptr<Communicator> owned, std::shared_ptr<RankState> state,
             GroupNumber number);
  ~LossyGroup();
  LossyGroup(const LossyGroup&) = delete;
  LossyGroup& operator=(const LossyGroup&) = delete;

  /// Whether packets of the call travel and can be lost.
  bool is_lossy(const CallArguments& arguments) const;
  /// The arrival of the packets of a message that is sent now; its class has a network.
  Arrival arrival_of(const Message& message) const;
  void begin_step();

  /// A blocking call, for which is_lossy() is true.
  void call(const CallArguments& arguments);
  void exchange(std::span<const Send> sends, std::span<const Receive> receives);
  std::unique_ptr<WorkInFlight> begin(const CallArguments& arguments);
  /// Gives the receives from a rank that wait for their times to the inner communicator, ahead of another one.
  void post_receives(int source);
  /// Ranks: all of the group.
  std::unique_ptr<LossyGroup> split(int color, int key);

  /// Of this group alone. No works are under way.
  LayerBuffers buffers() const;
  GroupNumber number() const { return identity_.number; }
  /// Its own memories; of the group that was not split, those of the rank and of all its groups.
  void visit_state(sim::StateVisitor& visitor);

  /// LossyCommunicator::rescale_memories(), of this group alone.
  void rescale_memories(double gradient_factor) { stale_.rescale(gradient_factor); }

  Communicator& inner;
  const std::shared_ptr<RankState> state;  ///< shared by this rank's communicator and those split from it

 private:
  friend class LossyCall;
  friend class StartedLossyCall;
  /// Objects for calls of a class, each for one call at a time.
  struct Paths {
    const ClassNetwork* network = nullptr;         ///< null: the class is reliable
    std::map<std::string_view, Pool<Path>> paths;  ///< by name
    Pool<PeerMessage> messages;
  };

  Paths& paths_of(sim::TrafficClass traffic_class, Arrival arrival);
  PathContext context_of(const ClassNetwork& network) const { return {inner, state->ledger, network, stale_}; }
  std::unique_ptr<Path> make_path(std::string_view name, const ClassNetwork& network) const;
  /// Begins the rank's step, where another group of it was told.
  void follow_step();
  /// Computes the times of started receives from a rank, in the order of their starts: of all, or until one of them.
  void play_receives(int source, const StartedLossyCall* until);
  /// Throws: ConfigError for a receive if a work of its class, name, layer and source is under way: the stale values
  /// are not known before the wait of that work.
  void check_receive(const CallArguments& arguments) const;
  bool samples(ElementType type) const { return state->step_is_sampled && !is_integer(type); }
  void visit_memories(sim::StateVisitor& visitor);
  /// Whether a started collective runs while the rank computes; otherwise it is left to the rank's queue.
  bool runs_ahead(const CallArguments& arguments);
  /// The channel of a collective in the queue: the second one, so that others may pass it, where there is one.
  Communicator& channel_of_queue(const CallArguments& arguments);
  /// Whether a started receive is given to the inner communicator at its start.
  bool posts_ahead(const CallArguments& arguments) const;
  /// Where there is a clock: what the call keeps until its times are known. Before the call takes indices.
  std::optional<CallStart> start_of(const CallArguments& arguments) const;
  /// Moves the rank's clock over a blocking call that has taken its indices.
  void pass_time(const CallArguments& arguments, const CallStart& start);
  /// Times the started calls that come before a blocking one.
  void play_before(const CallArguments& arguments);

  std::unique_ptr<Communicator> owned_;
  GroupIdentity identity_;
  std::uint64_t steps_begun_ = 0;
  mutable StaleMemory stale_;
  Pool<Scratch> scratch_;
  StreamTurns turns_;  // of the buffers that calls share
  std::array<Paths, sim::kAllTrafficClasses.size()> paths_;
  // For messages of a class that arrive for certain, where its fill also changes whole messages.
  std::array<sim::Boxed<ClassNetwork>, sim::kAllTrafficClasses.size()> certain_networks_;
  std::array<Paths, sim::kAllTrafficClasses.size()> certain_paths_;
  std::unique_ptr<Communicator> clock_channel_;  // null: the inner communicator
  std::optional<GroupTimeline> timeline_;
  std::unique_ptr<Communicator> lane_channel_;
  Scratch lane_scratch_;  // of the collective that runs on the lane
  std::optional<Lane> lane_;
};

}  // namespace droptest::comm
