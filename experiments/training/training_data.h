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
  /// Sequences of all replicas that have targets. 0: all sequences are in shards that were set aside.
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
  /// The data of the next step, which is `step`. Ranks of one replica get the same data; equal global batches have the
  /// same samples, whatever the layout is. Throws: ConfigError, on every rank, that names the file through which more
  /// samples are lost than the config allows.
  virtual StepData take(std::uint64_t step) = 0;
  /// Steps from here to the end of the data; absent: the data does not end the run.
  virtual std::optional<std::uint64_t> steps_left() const = 0;
  /// Visits the position and the lost shards. If the state is that of other data, the data begins anew.
  virtual void visit_state(sim::StateVisitor& visitor) = 0;
  /// The shards and samples so far; absent: the data has no shards.
  virtual std::optional<DataRecord> record() const = 0;
};

/// The data of the run. `share_of`: the replicas that take a step, the same on every rank. `group`: all ranks;
/// borrowed, as `config` is. `on_lost`: called on rank 0 for each shard that is set aside.
std::unique_ptr<TrainingData> make_training_data(const RunConfig& config, const Corpus& corpus,
                                                 comm::Communicator& group,
                                                 std::function<ReplicaShare(std::uint64_t)> share_of,
                                                 std::function<void(const LostShard&)> on_lost);

/// Sequences of a step of all replicas.
std::uint64_t global_batch_sequences(const RunConfig& config);

/// Opens and splits the data of a run. `access`: used for shards. Throws: ConfigError.
Corpus load_corpus(const RunConfig& config, const FileAccess& access = {});

}  // namespace droptest::experiments
