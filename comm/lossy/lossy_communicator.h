// SPDX-License-Identifier: Apache-2.0
// A communicator that loses packets.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "comm/buffer_use.h"
#include "comm/communicator.h"
#include "comm/device/stream_turns.h"
#include "comm/lossy/clock/group_timeline.h"
#include "comm/lossy/clock/time_model.h"
#include "comm/lossy/clock/virtual_clock.h"
#include "comm/lossy/fill/scratch.h"
#include "comm/lossy/fill/stale_memory.h"
#include "comm/lossy/flows/flow_ledger.h"
#include "comm/lossy/network.h"
#include "comm/lossy/paths/path.h"
#include "comm/lossy/paths/peer_message.h"
#include "comm/lossy/pool.h"
#include "comm/lossy/statistics/loss_statistics.h"
#include "comm/lossy/statistics/verdict_record.h"
#include "comm/started/lane.h"
#include "sim/boxed.h"
#include "sim/state_visitor.h"

namespace droptest::comm {

struct RankState;        // comm/lossy/rank_state.h
class StartedLossyCall;  // comm/lossy/started_lossy_call.h

struct LossyOptions {
  Network network;
  /// Steps between samples of NMSE and divergence (each sample costs an exact collective); 0: never.
  std::uint64_t sample_every_steps = 0;
  /// kOff: collect_statistics() and packet_totals() give no counts of losses.
  Counting counting = Counting::kOn;
  /// Absent: no clock runs, and no collective has a virtual time.
  std::optional<TimeModel> time;
};

/// Decorates any communicator: classes with a network lose packets on their path; the other classes, barriers and
/// groups of one rank go straight to the inner communicator. docs/paths.md defines the lost values, docs/recovery.md
/// the values that replace them.
/// Determinism: the fates are a pure function of the seed and the program order of the collectives; results are as
/// deterministic as the inner communicator. At loss 0 a path gives the bits of the same path without loss. On the
/// backend `local`, the paths `direct` and `contribution` then give the bits of the bare backend.
class LossyCommunicator final : public Communicator {
 public:
  /// `inner` is borrowed and outlives this. Throws: ConfigError for a fill or path that has no meaning.
  LossyCommunicator(Communicator& inner, const LossyOptions& options);
  /// Owns `inner`.
  LossyCommunicator(std::unique_ptr<Communicator> inner, const LossyOptions& options);
  ~LossyCommunicator() override;

  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  int world_rank(int rank) const override { return inner_.world_rank(rank); }
  std::string_view backend() const override { return inner_.backend(); }
  bool leaves_lost_out(sim::TrafficClass traffic_class) const override;
  bool stops_lost_gradients(sim::TrafficClass traffic_class) const override;
  /// After many steps all ranks combine their records of which calls and steps lost packets, so that memory does not
  /// grow with the run. Ranks: all of the group that was not split, with the same steps, between the same collectives.
  void begin_step(std::uint64_t step) override;
  void run(const CallArguments& arguments) override;
  /// A work of a class with a network is planned at its start. At that time it is refused if it has no meaning. Its
  /// packets get their indices, and their fates unless these depend on time. Its data move while the rank computes; a
  /// thread of the group runs its collectives one after the other. A wait requires only that the peers have started the
  /// same call.
  ///
  /// If there is a clock, and fates do not depend on time, a wait also computes the times of the collectives that the
  /// rank has started up to that work. This requires that the peers wait, too, and that ranks with several common
  /// groups start their works in one order.
  ///
  /// Fates depend on time if a loss process does, or if there are deadlines, quorums or recoveries that send again.
  /// Some works do not move ahead of the waits:
  /// | work                                         | when it gets its fates, or runs                     |
  /// | receive, if fates depend on time             | gets its fates at its wait or, if it is earlier, at |
  /// |                                              | that of a later receive from the same rank          |
  /// | collective, if fates depend on time          | runs at the first wait for it or a later collective |
  /// | collective in host memory, without channel() | runs at the first wait for it or a later collective |
  /// | any collective with a clock, no channel()    | runs at the first wait for it or a later collective |
  /// A later collective is one that the rank started later, in any of its groups. A blocking collective, barrier(),
  /// split(), a LosslessScope, stop_clock() and statistics wait for all collectives before them. docs/backends.md has
  /// the rules.
  std::unique_ptr<WorkInFlight> begin(const CallArguments& arguments) override;
  /// The new groups share this communicator's links and their packet indices, so no fate is used twice.
  std::unique_ptr<Communicator> split(int color, int key) override;
  void abort(std::string_view reason) noexcept override { inner_.abort(reason); }

  /// All calls of this rank, also in groups split from here, go straight to the inner communicator while a
  /// LosslessScope is alive: nothing is counted, and no virtual time passes. For evaluation. Ranks: all, around the
  /// same calls.
  class LosslessScope {
   public:
    explicit LosslessScope(LossyCommunicator& communicator);
    ~LosslessScope();
    LosslessScope(const LosslessScope&) = delete;
    LosslessScope& operator=(const LosslessScope&) = delete;

   private:
    LossyCommunicator& communicator_;
    std::unique_ptr<VirtualClock::Pause> pause_;
  };

  /// All messages of this rank, also in groups split from here, arrive for certain while a ProtectedScope is alive.
  /// They take their usual path, like messages that recovery `protect` names: they use up their packets, take their
  /// time, are counted, and update the memories of fills and feedback. So memories of `stale` get their first values. A
  /// call belongs to the scope of its start. Ranks: all, around the same calls.
  class ProtectedScope {
   public:
    explicit ProtectedScope(LossyCommunicator& communicator);
    ~ProtectedScope();
    ProtectedScope(const ProtectedScope&) = delete;
    ProtectedScope& operator=(const ProtectedScope&) = delete;

   private:
    LossyCommunicator& communicator_;
  };

  /// The state of the loss layer on this rank: links' indices, stale values, feedback, statistics and clock, with the
  /// memories of all communicators that were split from this one. A communicator that was made by split() shows only
  /// its own memories. A run that is restored into a communicator of equal options and equal splits continues with the
  /// same bits. Stale values on a device are read on the stream of their last call, which outlives this communicator.
  /// Throws: ConfigError while works are under way.
  void visit_state(sim::StateVisitor& visitor);

  /// Tells the layer that a loss scale changes: gradients from now on are multiplied by `gradient_factor`, compared
  /// with those so far. The values that fills and feedback remember of classes of gradients are multiplied, too.
  /// Remembered values of any class that are not finite become 0, so that an overflow ends with its step. Holds for all
  /// groups of this rank. No works are under way.
  void rescale_memories(double gradient_factor);

  /// Memory of the loss layer on this rank now, in all groups of the rank. No works are under way.
  LossLayerBuffers buffers() const;

  /// The calling thread's time is not compute time of the virtual clock while the result is alive: for sampling and
  /// logging. The calls of this communicator pause the clock themselves, also those of classes without a network.
  VirtualClock::Pause pause_clock();
  /// Moves the virtual clock by a share of the step's given compute time, as a part of TimeModel::later_share:
  /// computation between starts and waits. Has no effect without a clock or with measured compute time. Throws:
  /// ConfigError for a negative share.
  void pass_compute_share(double share);
  /// For an evaluation over the lossy network. When the result ends, the virtual clock is again as it was when it
  /// began. Collectives and sends that were started before take their time at once, as in a wait for all of them. A
  /// started receive does not; if it is waited for while the result is alive, it takes no time.
  VirtualClock::Stop stop_clock();

  /// Compares, over the reliable inner communicator, the digest of each link's fates at its two ends. Ranks: all.
  /// Throws: CommError that names the link's ranks if the digests differ.
  void verify_fates();

  using LinkDetail = comm::LinkDetail;
  /// Statistics of all ranks of the group since the start, added up, with those of the groups split from it; one entry
  /// per class that has a network and was used, the same on every rank. A split group's own statistics hold all that
  /// its ranks counted, in every group. The counts hold all started calls with drawn fates. The sums of samples hold a
  /// started call of a rank once the rank has waited for it and for all sampled calls before it: if ranks have waited
  /// for different works, the sums hold different calls of different ranks. Ranks: all, with the same `detail`.
  std::vector<ClassStatistics> collect_statistics(LinkDetail detail);

  /// NMSE, cosine and divergence of the steps sampled since the last call, added up over ranks; one entry per class
  /// that was sampled, the same on every rank. Started calls count as in collect_statistics(). Ranks: all.
  std::vector<ClassSample> take_samples();

  /// Packets that this rank has counted so far, in all groups; 0 with Counting::kOff. Each link is counted on one rank.
  PacketTotals packet_totals() const;

  /// The group's virtual time: the latest clock, the means of its parts, and the sums of counts. Absent without a time
  /// model. Ranks: all.
  std::optional<VirtualTime> collect_time();

 private:
  friend class LossyCall;
  friend class StartedLossyCall;

  /// `owned` is null, or keeps `inner` alive.
  LossyCommunicator(Communicator& inner, std::unique_ptr<Communicator> owned, std::shared_ptr<RankState> state,
                    GroupNumber number);

  GroupNumber number() const { return identity_.number; }
  /// Whether packets of the call travel and can be lost.
  bool is_lossy(const CallArguments& arguments) const;
  /// The delivery of a message that is sent now; its class has a network.
  Delivery delivery_of(const Message& message) const;
  /// A blocking call, for which is_lossy() is true.
  void run_lossy(const CallArguments& arguments);
  void exchange_lossy(std::span<const Send> sends, std::span<const Receive> receives);
  std::unique_ptr<WorkInFlight> begin_lossy(const CallArguments& arguments);
  /// Called before another receive from rank `source`: gives the inner communicator the started receives from that rank
  /// that still wait for their times.
  void post_receives(int source);
  /// Buffers of only this group.
  LossLayerBuffers own_buffers() const;
  /// Objects for calls of a class, each for one call at a time.
  struct Paths {
    const ClassNetwork* network = nullptr;         ///< null: the class is reliable
    std::map<std::string_view, Pool<Path>> paths;  ///< the key is the path's name
    Pool<PeerMessage> messages;
  };

  Paths& paths_of(sim::TrafficClass traffic_class, Delivery delivery);
  PathContext context_of(const ClassNetwork& network, const PathEntry& path) const;
  std::unique_ptr<Path> make_path(const ClassNetwork& network, const PathEntry& path) const;
  void begin_inner_step();
  /// Begins the rank's step in the inner communicator, if begin_step() was called only on another group of the rank.
  void follow_step();
  /// Computes the times of started receives from a rank, in the order of their starts: of all, or up to one of them.
  void play_receives(int source, const StartedLossyCall* until);
  /// Throws: ConfigError for a receive if a work of its class, name, layer and source is under way: the stale values
  /// are not known before the wait of that work.
  void check_receive(const CallArguments& arguments) const;
  bool samples(ElementType type) const;
  void visit_memories(sim::StateVisitor& visitor);
  /// Whether a started collective runs while the rank computes; otherwise it is left to the rank's queue.
  bool runs_ahead(const CallArguments& arguments);
  /// The channel of a collective in the queue: the second channel, if there is one, so that other calls may pass it.
  Communicator& channel_of_queue(const CallArguments& arguments);
  /// Whether a started receive is given to the inner communicator at its start.
  bool posts_ahead(const CallArguments& arguments) const;
  /// The start of a call, kept until its times are known; absent without a clock. Called before the call takes indices.
  std::optional<CallStart> start_of(const CallArguments& arguments) const;
  /// Moves the rank's clock over a blocking call that has taken its indices.
  void pass_time(const CallArguments& arguments, const CallStart& start);
  /// Times the started calls that come before a blocking one.
  void play_before(const CallArguments& arguments);

  std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
  const std::shared_ptr<RankState> state_;  ///< shared by this rank's communicator and those split from it
  GroupIdentity identity_;
  std::uint64_t steps_begun_ = 0;
  mutable StaleMemory stale_;
  Pool<Scratch> scratch_;
  StreamTurns turns_;  // turns at the buffers that calls share
  std::array<Paths, sim::kAllTrafficClasses.size()> paths_;
  // Networks of messages that arrive for certain, for classes with a fill that changes messages without losses, too
  // (inverse_probability).
  std::array<sim::Boxed<ClassNetwork>, sim::kAllTrafficClasses.size()> certain_networks_;
  std::array<Paths, sim::kAllTrafficClasses.size()> certain_paths_;
  std::unique_ptr<Communicator> clock_channel_;  // null: the inner communicator
  std::optional<GroupTimeline> timeline_;
  std::unique_ptr<Communicator> lane_channel_;
  Scratch lane_scratch_;  // scratch of the collective that runs on the lane
  std::optional<Lane> lane_;
};

}  // namespace droptest::comm
