// SPDX-License-Identifier: Apache-2.0
// A resolved spec in types: one run, as the trainer needs it. docs/specs.md defines each value in JSON.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/backend_registry.h"
#include "comm/lossy/clock/time_model.h"
#include "comm/lossy/network.h"
#include "comm/parallel_layout.h"
#include "experiments/data/data_config.h"
#include "experiments/data/sample_plan.h"
#include "models/gpt2/gpt2_config.h"
#include "models/gpt2/shard_plan.h"
#include "models/gpt2/stage_range.h"
#include "models/kernels/update_decision.h"
#include "models/loss_scaler.h"
#include "models/ops/kernel_choice.h"
#include "models/optimizer.h"
#include "models/outer_step.h"
#include "models/pipeline/schedule.h"
#include "models/precision.h"

namespace droptest::experiments {

struct TrainingConfig {
  std::uint64_t steps = 300;
  std::uint64_t epochs = 0;  ///< epochs of shards or examples, after which the run ends; 0: it ends after its steps
  LastBatch last_batch = LastBatch::kTrained;  ///< the treatment of an epoch's last, smaller batch
  int batch_sequences = 8;                     ///< sequences per micro-batch of a replica
  int sequence_tokens = 128;
  int accumulation = 1;  ///< micro-batches of a replica per step
  models::ModelPrecision precision;
  models::LossScaleConfig loss_scale;
  double flag_loss_rate = 0;  ///< probability that a rank misses other ranks' overflows in a step
  models::LearningRateSchedule learning_rate;
  models::OptimizerConfig optimizer;
  double gradient_clip = 1.0;  ///< largest global norm; 0: no clipping
  models::UpdateRule::Norm gradient_norm = models::UpdateRule::Norm::kAgreed;

  /// The members by their names in a spec.
  void visit_members(const auto& visit) {
    visit("steps", steps);
    visit("epochs", epochs);
    visit("drop_last", last_batch, {{false, LastBatch::kTrained}, {true, LastBatch::kDropped}});
    visit("batch_sequences", batch_sequences);
    visit("sequence_tokens", sequence_tokens);
    visit("accumulation", accumulation);
    visit("precision", precision);
    visit("loss_scale", [this](const auto& of_scale) {
      loss_scale.visit_members(of_scale);
      of_scale("flag_loss_rate", flag_loss_rate);
    });
    learning_rate.visit_members(visit);
    optimizer.visit_members(visit);
    visit("gradient_clip", gradient_clip);
    using Norm = models::UpdateRule::Norm;
    visit("gradient_norm", gradient_norm, {{"agreed", Norm::kAgreed}, {"own", Norm::kOwn}});
  }
};

struct ValidationConfig {
  std::uint64_t every_steps = 50;      ///< steps between evaluations; another one follows the last step
  std::uint64_t tokens = 65536;        ///< least tokens of an evaluation; each one has the same tokens
  std::uint64_t selection_tokens = 0;  ///< least further tokens, evaluated after the last step; 0: none
  enum class Network : std::uint8_t { kLossless, kLossy } network = Network::kLossless;

  /// The members by their names in a spec.
  void visit_members(const auto& visit) {
    visit("every_steps", every_steps);
    visit("tokens", tokens);
    visit("selection_tokens", selection_tokens);
    visit("network", network, {{"lossless", Network::kLossless}, {"lossy", Network::kLossy}});
  }
};

struct RecordConfig {
  std::uint64_t every_steps = 10;         ///< steps between lines of metrics.jsonl; the last step always has one
  std::uint64_t sample_every_steps = 50;  ///< steps between samples of NMSE and divergence; 0: never
  enum class Links : std::uint8_t { kOmit, kInclude } links = Links::kOmit;
  /// Whether the final weights are kept.
  enum class Weights : std::uint8_t { kFinal, kNone } weights = Weights::kFinal;
  /// The first and the last step of trace.json; absent: there is none.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> profile_steps;

  /// The members by their names in a spec.
  void visit_members(const auto& visit) {
    visit("every_steps", every_steps);
    visit("sample_every_steps", sample_every_steps);
    visit("links", links, {{"omit", Links::kOmit}, {"include", Links::kInclude}});
    visit("weights", weights, {{"final", Weights::kFinal}, {"none", Weights::kNone}});
    visit("profile_steps", profile_steps);
  }
};

struct BackendConfig {
  std::string name = "local";
  std::chrono::milliseconds timeout{60000};
  /// Absent: choose_rendezvous() takes it from the launch. The launch also gives an empty host and port 0 of a TCP
  /// rendezvous.
  std::optional<comm::Rendezvous> rendezvous;
  int threads_per_rank = 1;

  /// The members by their names in a spec, except for the rendezvous.
  void visit_members(const auto& visit) {
    visit("name", name);
    visit("timeout_seconds", timeout);
    visit("threads_per_rank", threads_per_rank);
  }
};

/// The stages of a pipeline and the order of their work (docs/parallelism.md). It has no effect without a pipeline.
struct PipelineConfig {
  models::ScheduleKind schedule = models::ScheduleKind::kOneForwardOneBackward;
  std::vector<std::string> rows;      ///< a schedule as CSV, a row for each rank, in place of a kind
  int chunks = 1;                     ///< stages of each rank
  std::vector<int> layers_per_stage;  ///< empty: equal numbers
};

/// A replica that takes no part in some steps.
struct ReplicaAbsence {
  int data_rank = 1;
  std::uint64_t from = 1;              ///< the step before which it leaves
  std::optional<std::uint64_t> until;  ///< the first step with it again; absent: none
  /// The step of the checkpoint from which the other replicas go on without this one, if replicas have shards of the
  /// state. Absent: each replica has all of the state.
  std::optional<std::uint64_t> reload_step;

  /// The members by their names in a spec.
  void visit_members(const auto& visit) {
    visit("data_rank", data_rank);
    visit("from", from);
    visit("until", until);
    visit("reload_step", reload_step);
  }
  /// The first step without the replica.
  std::uint64_t first_without() const { return reload_step ? *reload_step + 1 : from; }
};

/// The data ranks that take no part in a step, in order. A pure function of its arguments.
std::vector<int> absent_replicas(const std::vector<ReplicaAbsence>& absences, std::uint64_t step);

/// Parts of a run that fail while it trains (docs/parallelism.md).
struct FailureConfig {
  std::vector<ReplicaAbsence> replicas;
  double stage_rate = 0;  ///< probability that a stage of a pipeline loses its weights before a step
  /// The new blocks of a failed stage: a mean of the neighbours', plain or weighted by the squares of their
  /// gradients, the block of the stage before, zeros, or random weights.
  enum class Replacement : std::uint8_t { kMean, kWeighted, kCopy, kZero, kRandom } replacement = Replacement::kMean;

  /// The members by their names in a spec.
  void visit_members(const auto& visit) {
    visit("stages", [this](const auto& of_stages) {
      using enum Replacement;
      of_stages("rate", stage_rate);
      of_stages("replacement", replacement,
                {{"mean", kMean}, {"weighted", kWeighted}, {"copy", kCopy}, {"zero", kZero}, {"random", kRandom}});
    });
    visit("replicas", replicas);
  }
};

/// Checkpoints of a run (docs/checkpoints.md).
struct CheckpointConfig {
  std::uint64_t every_steps = 0;  ///< steps between checkpoints; 0: only on request
  int keep = 2;                   ///< complete checkpoints that stay
  enum class Writing : std::uint8_t { kInBackground, kAtOnce } writing = Writing::kInBackground;
  enum class OnSignal : std::uint8_t { kTake, kIgnore } on_signal = OnSignal::kTake;  ///< answer to SIGTERM and SIGINT
  /// The consequence of a checkpoint that cannot be written.
  enum class OnError : std::uint8_t { kContinue, kStop } on_error = OnError::kContinue;
  std::vector<std::string> before;  ///< command on rank 0 before each checkpoint; empty: none
  std::vector<std::string> after;   ///< command on rank 0 after each checkpoint; empty: none

  /// The members by their names in a spec.
  void visit_members(const auto& visit) {
    visit("every_steps", every_steps);
    visit("keep", keep);
    visit("async", writing, {{true, Writing::kInBackground}, {false, Writing::kAtOnce}});
    visit("on_signal", on_signal, {{true, OnSignal::kTake}, {false, OnSignal::kIgnore}});
    visit("on_error", on_error, {{"continue", OnError::kContinue}, {"stop", OnError::kStop}});
    visit("before", before);
    visit("after", after);
  }
};

/// The checkpoint of another run that a run begins with, whatever the layouts of the two are.
struct StartConfig {
  std::string manifest;    ///< path of its manifest.json
  std::uint64_t step = 0;  ///< the last step before the checkpoint
  int membership = 1;      ///< the number of memberships before this run's

  /// The members by their names in a spec.
  void visit_members(const auto& visit) {
    visit("manifest", manifest);
    visit("step", step);
    visit("epoch", membership);
  }
};

/// A run is started again if its ranks die.
struct RestartConfig {
  int attempts = 3;            ///< further attempts after the first
  double backoff_seconds = 1;  ///< the pause before the second attempt; each further pause is twice as long

  /// The members by their names in a spec.
  void visit_members(const auto& visit) {
    visit("attempts", attempts);
    visit("backoff_seconds", backoff_seconds);
  }
};

/// A run goes on with fewer replicas if ranks die (docs/checkpoints.md).
struct ElasticConfig {
  int min_data = 1;
  int max_data = 1;

  /// The members by their names in a spec.
  void visit_members(const auto& visit) {
    visit("min_data", min_data);
    visit("max_data", max_data);
  }
};

/// An action on a kind of anomaly (docs/watching.md).
struct AlertConfig {
  std::string when;                 ///< name of the kind, or "any"
  std::optional<double> threshold;  ///< absent: the usual one
  enum class Action : std::uint8_t { kLog, kStop, kCheckpoint, kCommand } action = Action::kLog;
  std::vector<std::string> command;  ///< kCommand: program and arguments
  double interval_seconds = 60;      ///< kCommand: least seconds of the run between two starts

  /// The members by their names in a spec. The action of a command has no word of its own.
  void visit_members(const auto& visit) {
    visit("when", when);
    visit("threshold", threshold);
    visit("do", [this](const auto& of_action) {
      of_action("kind", action, {{"log", Action::kLog}, {"stop", Action::kStop}, {"checkpoint", Action::kCheckpoint}});
      of_action("command", command);
      of_action("interval_seconds", interval_seconds);
    });
  }
};

/// The activations that a run saves, and their place (docs/memory.md). The offload of parameters and optimizer state is
/// a part of ShardOptions.
struct MemoryConfig {
  models::Recompute recompute = models::Recompute::kSaveAll;
  int every = 1;  ///< one block of this many is computed again
  models::SavedPlace place{};
  models::RecomputeTraffic traffic = models::RecomputeTraffic::kKept;
  std::string directory{};  ///< the folder of an offload file; empty: the system's temporary folder

  /// The members by their names in a spec.
  void visit_members(const auto& visit) {
    using models::Recompute;
    using models::RecomputeTraffic;
    visit("recompute", recompute,
          {{"none", Recompute::kSaveAll}, {"selective", Recompute::kSelective}, {"full", Recompute::kBlock}});
    visit("every", every);
    visit("recompute_traffic", traffic, {{"kept", RecomputeTraffic::kKept}, {"sent", RecomputeTraffic::kSent}});
    visit("cut", place.cut);
    visit("offload", place.offloaded);
    visit("directory", directory);
  }
  /// The options for a model with that many blocks.
  models::SlotOptions options(int layers) const;
};

/// Keys of a run's draws. The draws of one key are those of another run with this key, whatever the other keys are.
struct Seeds {
  std::uint64_t weights = 1;  ///< random weights to start from
  std::uint64_t data = 1;     ///< choice of batches
  std::uint64_t network = 1;  ///< packets' fates and the draws of time

  /// The members by their names in a spec.
  void visit_members(const auto& visit) {
    visit("weights", weights);
    visit("data", data);
    visit("network", network);
  }
  bool agree() const { return weights == data && data == network; }
  bool operator==(const Seeds&) const = default;
};

/// The processor of a run's ranks.
enum class Device : std::uint8_t { kCpu, kCuda };

/// A program of the user's own, which the run starts in the place of training.
struct CommandConfig {
  std::vector<std::string> words;               ///< the program and its arguments, with names in braces
  std::map<std::string, std::string> settings;  ///< the value of each setting by its name, as text
};

struct RunConfig {
  std::string name;
  Seeds seeds;
  std::optional<CommandConfig> command;  ///< present: only the name, the seeds and the network have a meaning
  models::Gpt2Config model;
  std::string initial_weights;  ///< safetensors file, or folder of Hugging Face's files; empty: random
  DataConfig data;
  comm::ParallelLayout parallel;
  bool tensor_sequence = false;   ///< whether tensor-parallel ranks cut the residual stream by tokens
  models::ShardOptions sharding;  ///< the shards of data-parallel ranks
  PipelineConfig pipeline;
  BackendConfig backend;
  Device device = Device::kCpu;
  int device_index = 0;  ///< which of the machine's CUDA devices this process uses; no part of a spec
  comm::Network network;
  std::optional<comm::TimeModel> time;  ///< absent: no virtual clock
  std::optional<FailureConfig> failures;
  std::optional<CheckpointConfig> checkpoint;
  std::optional<StartConfig> start;
  std::optional<RestartConfig> restart;
  MemoryConfig memory;
  models::OuterOptions outer;
  models::KernelChoices kernels;       ///< the choices of the spec, by operation
  bool attention_is_replaced = false;  ///< the machine, not the spec, chose attention's kernel
  std::optional<ElasticConfig> elastic;
  /// The number of replicas in the spec. Present if the run has fewer of them at times and cuts its checkpoints anew
  /// for these: in an elastic run, and if replicas leave with shards of the state.
  std::optional<int> full_data;
  std::vector<AlertConfig> alerts;
  TrainingConfig training;
  ValidationConfig validation;
  RecordConfig record;

  /// The members by their names in a spec, except for those that resolvers read.
  void visit_members(const auto& visit) {
    visit("name", name);
    visit("backend", backend);
    visit("training", [this](const auto& of_training) {
      training.visit_members(of_training);
      of_training("dropout", model.dropout);
    });
    visit("checkpoint", checkpoint);
    visit("start", start);
    visit("restart", restart);
    visit("elastic", elastic);
    visit("alerts", alerts);
    visit("failures", failures);
    visit("validation", validation);
    visit("record", record);
  }
};

/// The rules by which the stages of the run's model save and cut activations.
models::SlotOptions slot_options(const RunConfig& config);

}  // namespace droptest::experiments
