// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a run: the steps at which they are taken, and the one that the run continues from.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "experiments/checkpoint/checkpoint_commands.h"
#include "experiments/checkpoint/checkpoint_folder.h"
#include "experiments/checkpoint/rank_snapshot.h"
#include "experiments/checkpoint/starting_checkpoint.h"
#include "experiments/files/manifest.h"
#include "experiments/records/metrics.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// Owner: one rank's trainer. Ranks: all of the group make the same calls after the same steps; the group is used
/// without a loss layer. One checkpoint is written at a time, by a thread of each rank: if it is not complete at the
/// step of the next one, that step waits for it. A checkpoint that cannot be written leaves training and the older
/// checkpoints as they are, and is reported at a later step.
class Checkpointer {
 public:
  using Report = CheckpointReport;

  /// `config` and `group` are borrowed. Throws no error of files. `membership` is that of the layout. `waits` is called
  /// on rank 0 while ranks wait for files, some times in a timeout.
  Checkpointer(CheckpointPlace place, const RunConfig& config, int membership, comm::Communicator& group, Report report,
               std::function<void()> waits);
  /// Waits for the thread that writes.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  struct Restored {
    std::uint64_t step = 0;
    /// Manifest::memberships of a checkpoint of another layout: parameters and moments were cut anew.
    std::optional<nlohmann::json> memberships;
  };
  /// Gives the state that of the newest intact checkpoint, or leaves it as it is if there is none. Throws: ConfigError
  /// if there are checkpoints and none is intact; for a checkpoint of another layout, if the run always has all
  /// replicas.
  std::optional<Restored> restore(const TrainingState& state);

  /// The reason why a checkpoint is taken after a step; required: training cannot go on without it.
  enum class Because : std::uint8_t { kInterval, kRequested, kRequired };
  /// Takes a checkpoint if its time has come, or if it is asked for; a requested one is complete when this returns.
  /// Throws: ConfigError for a checkpoint that failed, if it is required or the config says that training ends then.
  void after_step(std::uint64_t step, const TrainingState& state, Because because);
  /// Leaves this rank's state to complete_rescue(), with these losses (Manifest::memberships). `progress`: the saved
  /// bytes of TrainingState::visit_progress() that belong to the model. Ranks: each by itself. Throws: ConfigError.
  void leave(std::uint64_t step, const TrainingState& state, std::vector<std::byte> progress,
             nlohmann::json memberships);
  /// Returns when the last checkpoint is complete.
  void finish();

  const CheckpointTotals& totals() const { return totals_; }

 private:
  struct Written {
    RankFile file;
    std::string error;  ///< empty: it is written
  };
  void take(std::uint64_t step, const TrainingState& state);
  /// Completes the checkpoint that is being written, if its files are.
  enum class Wait : std::uint8_t { kNo, kYes };
  void poll(Wait wait);
  Manifest manifest_of(std::uint64_t step, nlohmann::json memberships) const;
  std::string commit(const std::vector<std::string>& files);
  void fail(std::uint64_t step, const std::string& error);
  std::optional<int> replica_of() const;
  bool is_root() const { return group_.rank() == 0; }

  const CheckpointPlace place_;
  const RunConfig& config_;
  const int membership_;
  comm::Communicator& group_;
  const Report report_;
  const std::function<void()> waits_;
  const CheckpointFolder folder_;
  CheckpointTotals totals_;
  std::optional<std::uint64_t> required_step_;
  std::uint64_t writing_step_ = 0;
  nlohmann::json writing_memberships_;
  std::optional<std::future<Written>> writing_;
  CheckpointCommands commands_;
};

}  // namespace droptest::experiments
