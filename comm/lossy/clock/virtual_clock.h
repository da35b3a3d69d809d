// SPDX-License-Identifier: Apache-2.0
// One rank's virtual clock: compute time, and the time of its collectives.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "comm/communicator.h"
#include "comm/lossy/clock/time_model.h"
#include "comm/lossy/flows/send_times.h"
#include "comm/lossy/network.h"
#include "sim/state_visitor.h"
#include "sim/time/straggler.h"

namespace droptest::comm {

/// Two times of a call at one of its ranks.
struct CallTiming {
  double ready_seconds = 0;  ///< time at which all ranks of a collective, or the sender of a message, have their data
  double end_seconds = 0;
};

/// The clock of one rank, shared by its groups.
class VirtualClock {
 public:
  /// `network`: the losses and recoveries of all classes, on which the times depend. Throws: ConfigError for a model
  /// that has no meaning.
  VirtualClock(const Network& network, const TimeModel& model, int world_rank);

  const Network& network() const { return network_; }
  const TimeModel& model() const { return model_; }
  VirtualTime& time() { return time_; }
  SendTimes& send_times() { return send_times_; }

  /// The network's timeline: the times at which the rank's sending port and its receiving port are free.
  struct Ports {
    double sends_from = 0;
    double receives_from = 0;
    void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, sends_from, receives_from); }
  };
  Ports& ports() { return ports_; }
  /// Whether a Stop is alive.
  bool is_stopped() const { return stops_ > 0; }
  /// Moves the rank's clock to the end of the call, if the call ends later: the rank waits for the network. `of` is the
  /// class of the call.
  void wait_for(const CallTiming& call, sim::TrafficClass of);
  /// Moves the clock by `share` of a step's given compute time, multiplied by the rank's straggler factor of the step.
  /// Throws: ConfigError for a negative share.
  void compute_share(double share);

  /// Begins another step of the rank. Given compute time passes at once, except TimeModel::later_share.
  void begin_step(std::uint64_t step);

  /// Must be called within a pause: the state then holds all compute time measured so far.
  void visit_state(sim::StateVisitor& visitor);

  /// The processor time of the calling thread is not compute time while a Pause is alive. Pauses may be nested.
  class Pause {
   public:
    /// A null clock has no effect.
    explicit Pause(VirtualClock* clock);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    VirtualClock* clock_;
  };

  /// When a Stop ends, the clock, its counts and the ports are again as they were at its beginning. Losses that depend
  /// on time use a separate time while it is alive, so that the losses of later messages do not change. Stops may be
  /// nested.
  class Stop {
   public:
    /// A null clock has no effect.
    explicit Stop(VirtualClock* clock);
    ~Stop();
    Stop(const Stop&) = delete;
    Stop& operator=(const Stop&) = delete;

   private:
    Pause pause_;
    VirtualClock* clock_;
    VirtualTime before_;
    Ports ports_before_;
  };

 private:
  void compute(double seconds, std::uint64_t index);
  double thread_seconds() const;

  Network network_;
  TimeModel model_;
  int world_rank_;
  sim::Straggler straggler_;
  VirtualTime time_;
  Ports ports_;
  SendTimes send_times_;
  std::optional<std::uint64_t> step_;
  int pauses_ = 0;
  int stops_ = 0;
  double resumed_ = 0;  // thread time at the end of the last pause
};

/// The network of the paths: `network`, in which late packets are lost if there is a deadline or a quorum.
Network with_deadlines(const Network& network, const TimeModel& model);

/// The group's time: the latest clock, the means over ranks of the parts of the time, and the sums of the counts.
/// Ranks: all of `group`.
VirtualTime collect_time(Communicator& group, const VirtualTime& mine);

}  // namespace droptest::comm
