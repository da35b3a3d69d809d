// SPDX-License-Identifier: Apache-2.0
// The wall time of one rank by activity: a breakdown that is always on, and a recording of some steps for a trace.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/device/stream_timer.h"
#include "comm/lossy/flows/flow_ledger.h"
#include "comm/metered_communicator.h"
#include "comm/wall_times.h"
#include "experiments/records/metrics.h"
#include "experiments/training/call_waits.h"
#include "models/phase_times.h"

namespace droptest::experiments {

/// The phases of a step outside the model.
enum class TrainerPhase : std::uint8_t {
  kData,        ///< batches are chosen and read
  kEvaluation,  ///< an evaluation with its passes and collectives
  kSampling,    ///< samples of errors and of the divergence of replicas
  kCheckpoint,  ///< training waits for a checkpoint
  kRecords,     ///< lines of metrics, and their collection from all ranks
  kDevice,      ///< the host submits a step's work to a GPU, or waits for it
  kOther,       ///< everything else
};

/// Owner: one rank. All calls are on its thread.
class StepProfile final : public comm::CallObserver, private comm::WallTimes::Listener {
 public:
  /// `packets`: the packets that this rank has counted so far.
  explicit StepProfile(std::function<comm::PacketTotals()> packets, const comm::Clock& clock = comm::steady_clock());

  /// The wall times that the model adds its phases to (models::Phase).
  models::PhaseTimes& times() { return times_; }
  /// While it lives, time without another phase is that phase's. An evaluation covers everything within it, as do
  /// sampling, checkpoints and records.
  class Scope : public comm::WallTimes::Scope {
   public:
    Scope(StepProfile& profile, TrainerPhase phase);
  };
  /// Sets RankUsage::phase_seconds and communication_seconds to the seconds since the last call. Their sum is the time
  /// that has passed. Activities that took no time are left out.
  void put_seconds(RankUsage& usage);

  /// The calls of training since begin_step(), or since the last take_calls(); begins count from `origin`.
  std::vector<TimedCall> take_calls(comm::Clock::TimePoint origin);

  void begins(const comm::MeteredCall& call) override;
  void ends() override;

  /// The timer of work on a device, used while a recording lasts. Its labels below kPhaseNames.size() are the phases of
  /// a model.
  comm::StreamTimer& device_timer() { return device_timer_; }
  /// Records from now on; times count from `origin`. `stream`: the stream of the rank's device; null: none.
  void start_recording(comm::Clock::TimePoint origin, comm::Stream* stream = nullptr);
  bool is_recording() const { return origin_.has_value(); }
  void begin_step();
  void end_step(std::uint64_t step);
  /// Ends the recording and returns the spans of this rank, for trace_document().
  nlohmann::json take_recording();

 private:
  struct OpenCall {
    nlohmann::json span;  ///< null: not recorded
    comm::PacketTotals packets;
    comm::Stream* stream = nullptr;  ///< null: not measured on a device
  };
  void ended(std::size_t activity, comm::Clock::TimePoint begin, comm::Clock::TimePoint end) override;
  double microseconds(comm::Clock::TimePoint time) const;
  void add(nlohmann::json span, comm::Clock::TimePoint begin, comm::Clock::TimePoint end);
  void add_device(const std::vector<comm::StreamTimer::Piece>& pieces);

  models::PhaseTimes times_;
  comm::StreamTimer device_timer_;
  std::vector<nlohmann::json> device_calls_;  ///< spans of the calls on a device; their labels follow the phases'
  std::function<comm::PacketTotals()> packets_;
  std::optional<comm::Clock::TimePoint> origin_;  ///< absent: nothing is recorded
  comm::Clock::TimePoint step_begin_{};
  OpenCall call_;
  std::vector<TimedCall> calls_;  ///< the last one may be under way; begins count from the clock's epoch
  bool is_timed_ = false;         ///< the call under way is the last of calls_
  std::vector<nlohmann::json> spans_;
};

}  // namespace droptest::experiments
