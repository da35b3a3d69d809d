// SPDX-License-Identifier: Apache-2.0
// A communicator that loses packets.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/buffer_use.h"
#include "comm/communicator.h"
#include "comm/lossy/clock/time_model.h"
#include "comm/lossy/clock/virtual_clock.h"
#include "comm/lossy/flows/flow_ledger.h"
#include "comm/lossy/network.h"
#include "comm/lossy/statistics/loss_statistics.h"
#include "sim/state_visitor.h"

namespace droptest::comm {

class LossyGroup;  // comm/lossy/lossy_group.h

struct LossyOptions {
  Network network;
  /// Steps between samples of NMSE and divergence (each sample costs an exact collective); 0: never.
  std::uint64_t sample_every_steps = 0;
  /// Off: collect_statistics() gives no counts of losses.
  Counting counting = Counting::kOn;
  /// Absent: no clock runs, and no collective has a virtual time.
  std::optional<TimeModel> time;
};

/// Decorates any communicator: classes with a network lose packets on their path; the other classes, barriers and
/// groups of one rank go straight to the inner communicator. docs/paths.md defines the lost values, docs/recovery.md
/// the values that replace them.
/// Determinism: the fates are a pure function of the seed and the program order of the collectives; results are as
/// deterministic as the inner communicator. At loss 0 a path gives the bits of the same path without loss; on `local`
/// those are the bits of the bare backend.
class LossyCommunicator final : public Communicator {
 public:
  /// `inner` is borrowed and outlives this. Throws: ConfigError for a fill or path that has no meaning.
  LossyCommunicator(Communicator& inner, const LossyOptions& options);
  /// Owns `inner`.
  LossyCommunicator(std::unique_ptr<Communicator> inner, const LossyOptions& options);
  ~LossyCommunicator() override;

  int rank() const override;
  int world_size() const override;
  int world_rank(int rank) const override;
  std::string_view backend() const override;
  bool leaves_lost_out(sim::TrafficClass traffic_class) const override;
  bool stops_lost_gradients(sim::TrafficClass traffic_class) const override;
  /// After many steps all ranks merge their verdicts on them, so that memory does not grow with the run. Ranks: all of
  /// the group that was not split, with the same steps, between the same collectives.
  void begin_step(std::uint64_t step) override;
  void run(const CallArguments& arguments) override;
  /// A work of a class with a network is planned at its start, where it is refused if it has no meaning, its packets
  /// get their indices, and mostly their fates. Its data move while the rank computes; a thread of the group runs its
  /// collectives one after the other. A wait requires only that the peers have started the same call. With a clock, a
  /// collective's wait also computes the times of all works that the rank has started. This requires that the peers
  /// wait, too, and that ranks with several common groups start their works in one order. Where fates depend on time
  /// (processes that depend on time, deadlines, recoveries that send again), a collective runs at the first wait for it
  /// or for one that its rank started later, over all groups of the rank; a blocking collective, barrier(), split(), a
  /// LosslessScope, stop_clock() and statistics are such waits for all. A receive gets its fates at its wait.
  /// docs/backends.md has the rules. The same holds for collectives in host memory, and for all collectives with a
  /// clock, where the inner communicator has no twin().
  std::unique_ptr<WorkInFlight> begin(const CallArguments& arguments) override;
  /// The parts share this communicator's links and their packet indices, so no fate is used twice.
  std::unique_ptr<Communicator> split(int color, int key) override;
  void abort(std::string_view reason) noexcept override;

  /// While alive, all calls of this rank, in groups split from here too, go straight to the inner communicator: nothing
  /// is counted, and no virtual time passes. For evaluation. Ranks: all, around the same calls.
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

  /// While alive, all messages of this rank, in groups split from here too, arrive for certain, but take their usual
  /// path, like messages that recovery `protect` names: they use up their packets, take their time, are counted, and
  /// update the memories of fills and feedback. So memories of `stale` get their first values. A call belongs to the
  /// scope of its start. Ranks: all, around the same calls.
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
  /// memories of all communicators that were split from this one. Of one that was split: its own memories alone. A run
  /// that is restored into a communicator of equal options and equal splits continues with the same bits. Stale values
  /// on a device are read on the stream of their last call, which outlives this communicator. Throws: ConfigError while
  /// works are under way.
  void visit_state(sim::StateVisitor& visitor);

  /// Gradients from now on are multiplied by `gradient_factor`, compared with those so far (a loss scale changes): the
  /// values that fills and feedback remember of classes of gradients are, too. Remembered values of any class that are
  /// not finite become 0, so that an overflow ends with its step. In all groups of this rank. No works are under way.
  void rescale_memories(double gradient_factor);

  /// Memory of the loss layer on this rank now, in all groups of the rank. No works are under way.
  LayerBuffers buffers() const;

  /// While it is alive, the calling thread's time is no compute time of the virtual clock: sampling, logging. The calls
  /// of this communicator pause the clock themselves, those of classes without a network too.
  VirtualClock::Pause pause_clock();
  /// Adds `seconds` to the virtual compute time, on top of the given or measured time of the step: for computation
  /// between starts and waits. Nothing happens without a clock. Throws: ConfigError for negative seconds.
  void pass_compute_time(double seconds);
  /// The same for a share of the step's given compute time, out of TimeModel::later_share.
  void pass_compute_share(double share);
  /// Works started before it, but for receives whose fates depend on time, take their time at once, as a wait for all
  /// of them would. While it is alive, collectives do not move the virtual clock: for an evaluation over the lossy
  /// network.
  VirtualClock::Stop stop_clock();

  /// Compares, over the reliable inner communicator, the digest of each link's fates at its two ends. Ranks: all.
  /// Throws: CommError that names the link's ranks where the digests differ.
  void verify_fates();

  /// Statistics since the start of all ranks of the group added up, with those of the groups split from it; one entry
  /// per class that has a network and was used, the same on every rank. A split group's own statistics hold all that
  /// its ranks counted, in every group. The counts hold all started calls whose fates are drawn. The sums of samples
  /// hold a started call of a rank once the rank has waited for it and for all sampled calls before it: where ranks
  /// have waited for different works, they hold different calls of different ranks. Ranks: all, with one `detail`.
  using LinkDetail = comm::LinkDetail;
  std::vector<ClassStatistics> collect_statistics(LinkDetail detail);

  /// NMSE, cosine and divergence of the steps sampled since the last call, added up over ranks; one entry per class
  /// that was sampled, the same on every rank. Started calls count as in collect_statistics(). Ranks: all.
  std::vector<ClassSample> take_samples();

  /// Packets that this rank has counted so far, in all groups. Each link is counted on one rank.
  PacketTotals packet_totals() const;

  /// The group's virtual time: the latest clock, mean compute time, sums of counts; absent without a time model.
  /// Ranks: all.
  std::optional<VirtualTime> collect_time();

 private:
  explicit LossyCommunicator(std::unique_ptr<LossyGroup> group);

  std::unique_ptr<LossyGroup> group_;
};

}  // namespace droptest::comm
