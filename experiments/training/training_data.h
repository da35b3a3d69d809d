// SPDX-License-Identifier: Apache-2.0
// The batches of one rank's training steps, in order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "experiments/data/corpus.h"
#include "experiments/records/data_record.h"
#include "experiments/spec/run_config.h"
#include "sim/state_visitor.h"

namespace droptest::experiments {

/// The part of a training step that a rank reads.
struct StepData {
  std::vector<Batch> micro_batches;
  /// Sequences of all replicas that have targets. 0: all are in shards set aside, so there is nothing to train on.
  std::uint64_t sequences = 0;
};

/// The replicas that take a step.
struct ReplicaShare {
  int replicas = 1;
  std::optional<int> own = 0;  ///< the rank's replica among them; absent: it takes no part
};

/// Owner: one rank. Ranks: all of the run make the same calls in the same order.
class TrainingData {
 public:
  virtual ~TrainingData() = default;
  /// The data of the step after those taken so far. Ranks of one replica get the same; equal global batches are the
  /// same samples, whatever the layout is. Throws: ConfigError, on every rank, that names the file through which more
  /// samples are lost than the config allows.
  virtual StepData take(std::uint64_t step) = 0;
  /// Steps from here to the end of the data, where the data ends the run.
  virtual std::optional<std::uint64_t> steps_left() const = 0;
  /// The position and the lost shards. Data of another kind or of other files begins anew where it is restored.
  virtual void visit_state(sim::StateVisitor& visitor) = 0;
  /// Absent: the data has no samples that can be counted.
  virtual std::optional<DataRecord> record() const = 0;
};

/// `share_of`: of each step; the replicas are the same on every rank. `group`: all ranks; borrowed, as `config` is.
/// `on_lost` hears of each shard that is set aside, on rank 0.
std::unique_ptr<TrainingData> make_training_data(const RunConfig& config, const Corpus& corpus,
                                                 comm::Communicator& group,
                                                 std::function<ReplicaShare(std::uint64_t)> share_of,
                                                 std::function<void(const LostShard&)> on_lost);

/// Sequences of a step of all replicas.
std::uint64_t global_batch_sequences(const RunConfig& config);

/// Opens and splits the data of a run. `access` is for shards. Throws: ConfigError.
Corpus load_corpus(const RunConfig& config, const FileAccess& access = {});

}  // namespace droptest::experiments
