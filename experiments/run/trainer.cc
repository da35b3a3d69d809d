// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <numeric>
#include <optional>

#include "comm/lossy/lossy_communicator.h"
#include "experiments/run/evaluation.h"
#include "experiments/run/rank_agreement.h"
#include "experiments/run/replica_divergence.h"
#include "experiments/run/stage_failures.h"
#include "experiments/run/training_model.h"
#include "experiments/spec/pipeline_plan.h"
#include "models/gpt2/gpt2_weights.h"

namespace droptest::experiments {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kFinalLossLines = 10;
/// Of the compute time of a step. A GEMM of the forward pass is followed by two of the backward pass.
constexpr double kBackwardShare = 2.0 / 3;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

comm::LossyOptions lossy_options(const RunConfig& config) {
  comm::LossyOptions options;
  options.network = config.network;
  options.network.seed = config.seeds.network;
  options.sample_every_steps = config.record.sample_every_steps;
  options.time = config.time;
  // Gradient buckets overlap with the rest of the backward pass; a pipeline's stages compute when they can.
  if (options.time && config.parallel.data > 1) options.time->later_share = kBackwardShare;
  if (options.time && config.parallel.pipeline > 1) options.time->later_share = 1;
  return options;
}

std::optional<EvaluationBatches> selection_batches(const RunConfig& config, const Corpus& corpus) {
  const std::uint64_t wanted = selection_targets(config);
  if (wanted == 0) return std::nullopt;
  const std::uint64_t first = validation_targets(config);
  return EvaluationBatches(corpus.validation.part(first, corpus.validation.size() - first), wanted,
                           config.training.batch_sequences, config.training.sequence_tokens);
}

bool is_multiple(std::uint64_t step, std::uint64_t every) { return every != 0 && step % every == 0; }

/// One rank's run: the objects of training, and the measurements so far.
class Trainer {
 public:
  Trainer(const RunConfig& config, const Corpus& corpus, comm::Communicator& group,
          const std::function<void(const MetricsLine&)>& on_line)
      : config_(config),
        group_(group),
        on_line_(on_line),
        network_(group, lossy_options(config)),
        // The loss layer loses no control traffic, but does not count its time as compute time.
        groups_(config.parallel, network_),
        replicas_(groups_.group(comm::ParallelDimension::kData)),
        alone_(groups_.group(comm::ParallelDimension::kTensor) == nullptr ? network_.split(group.rank(), 0) : nullptr),
        tensor_group_(alone_ == nullptr ? *groups_.group(comm::ParallelDimension::kTensor) : *alone_),
        model_(config, tensor_group_, model_ranks()),
        batches_(corpus.training, config.seeds.data, config.training.batch_sequences, config.training.sequence_tokens),
        validation_(corpus.validation, validation_targets(config), config.training.batch_sequences,
                    config.training.sequence_tokens),
        selection_(selection_batches(config, corpus)) {
    if (config.time && config.parallel.pipeline > 1) {
      model_.set_computed([this, plan = model_.pipeline()](const models::Action& action) {
        const auto stage = static_cast<std::size_t>(action.stage);
        network_.pass_compute_share(compute_share(config_, plan->stages[stage], action.kind));
      });
    } else if (config.time && config.parallel.data > 1) {
      // The time of a block passes before its sums over tensor-parallel ranks: these need the port of the buckets that
      // the block behind it has started, and wait for what is left of them then.
      model_.set_computed([this](const models::Action& action) {
        if (action.is_forward()) pass_backward_time(config_.model.layers - 1);
      });
      model_.set_backward_passed([this](int layer) { pass_backward_time(layer - 1); });
    }
    if (config.failures) failures_.emplace(config, *pipeline_group(), tensor_group_, model_);
    set_starting_weights(model_, config, tensor_group_);
    spread_starting_weights();
  }

  TrainingOutcome run() {
    start_ = Clock::now();
    MetricsLine first;
    validate(first);
    log(first);
    while (outcome_.steps < config_.training.steps && !outcome_.diverged_step) take_step();
    finish();
    return std::move(outcome_);
  }

 private:
  models::ModelRanks model_ranks() {
    models::ModelRanks ranks;
    ranks.data = {replicas_, config_.sharding};
    ranks.all = &network_;
    ranks.data_stride = config_.parallel.stride(comm::ParallelDimension::kData);
    ranks.pipeline.group = pipeline_group();
    ranks.pipeline.stride = config_.parallel.stride(comm::ParallelDimension::kPipeline);
    ranks.pipeline.plan = pipeline_plan(config_);
    return ranks;
  }

  /// Null: there is one stage.
  comm::Communicator* pipeline_group() const {
    return config_.parallel.pipeline == 1 ? nullptr : groups_.group(comm::ParallelDimension::kPipeline);
  }

  /// Gathers the starting weights, which reach all ranks: later lost parameters are then older values, not zeros.
  void spread_starting_weights() {
    if (!config_.network.of(sim::TrafficClass::kParameterGather)) return;
    const auto stop = network_.stop_clock();
    const comm::LossyCommunicator::ProtectedScope arrives(network_);
    model_.gather_values();
  }

  /// Of a block that comes next. All have equal times; the head comes before them, with a time in proportion to its
  /// GEMM.
  void pass_backward_time(int layer) {
    if (layer < 0) return;
    const models::Gpt2Config& model = config_.model;
    const double block = 12.0 * model.width;
    const double head = layer == model.layers - 1 ? model.vocabulary : 0;
    network_.pass_compute_share(kBackwardShare / config_.training.accumulation * (block + head) /
                                (block * model.layers + model.vocabulary));
  }

  std::uint64_t tokens_of_step() const {
    const TrainingConfig& training = config_.training;
    return static_cast<std::uint64_t>(config_.parallel.data) * static_cast<std::uint64_t>(training.accumulation) *
           static_cast<std::uint64_t>(training.batch_sequences) * static_cast<std::uint64_t>(training.sequence_tokens);
  }

  void take_step() {
    const TrainingConfig& training = config_.training;
    const std::uint64_t step = outcome_.steps + 1;
    MetricsLine line;
    line.step = step;

    const Clock::time_point step_start = Clock::now();
    network_.begin_step(step);
    if (failures_) fail_stages(step);
    std::vector<Batch> micro_batches;
    // Replicas take micro-batches in turn: equal global batches are the same text.
    for (int m = 0; m < training.accumulation; ++m) {
      micro_batches.push_back(batches_.batch(step, m * config_.parallel.data + groups_.coordinates().data));
    }
    line.learning_rate = training.learning_rate.at(step - 1);
    const models::StepResult result = model_.take_step(micro_batches, *line.learning_rate);
    line.train_loss = result.loss;
    line.gradient_norm = result.gradient_norm;
    if (!result.updated) {
      const auto pause = network_.pause_clock();
      outcome_.diverged_step = step;
      line.tokens = outcome_.tokens;
      log(line);
      return;
    }
    training_seconds_ += seconds_since(step_start);
    const auto pause = network_.pause_clock();

    outcome_.steps = step;
    outcome_.tokens += tokens_of_step();
    const bool last = step == training.steps;
    const bool sampled = is_multiple(step, config_.record.sample_every_steps);
    const bool validated = last || is_multiple(step, config_.validation.every_steps);
    if (sampled) sample(line);
    if (validated) validate(line);
    if (last && selection_) select(line);
    if (last || sampled || validated || is_multiple(step, config_.record.every_steps)) log(line);
  }

  void fail_stages(std::uint64_t step) {
    const auto stop = network_.stop_clock();
    for (const int stage : failures_->take(step)) outcome_.stage_failures.push_back({step, stage});
  }

  double evaluate(const EvaluationBatches& batches, const char* name) {
    const auto stop = network_.stop_clock();
    std::optional<comm::LossyCommunicator::LosslessScope> lossless;
    if (config_.validation.network == ValidationConfig::Network::kLossless) lossless.emplace(network_);
    return agree_on_mean(mean_loss(model_, batches, &groups_), group_, name);
  }

  /// Measures the validation loss, and compares the ranks' views of the fates so far.
  void validate(MetricsLine& line) {
    const double loss = evaluate(validation_, "validation_loss");
    network_.verify_fates();
    line.validation_loss = loss;
    outcome_.validation_final_loss = loss;
    outcome_.validation_tokens = validation_.count_targets();
    if (!std::isfinite(loss)) {
      outcome_.diverged_step = line.step;
    } else if (!outcome_.validation_best_loss || loss < *outcome_.validation_best_loss) {
      outcome_.validation_best_loss = loss;
    }
  }

  /// Measures the loss by which the best of several runs is chosen.
  void select(MetricsLine& line) {
    const double loss = evaluate(*selection_, "selection_loss");
    line.selection_loss = loss;
    outcome_.selection_loss = loss;
    outcome_.selection_tokens = selection_->count_targets();
    if (!std::isfinite(loss)) outcome_.diverged_step = line.step;
  }

  /// Samples the replicas' divergence, and each class's error since the last sample.
  void sample(MetricsLine& line) {
    // The parameters that passes gathered are gone by now; what owners have is equal everywhere.
    if (!config_.sharding.shards_values()) {
      const ReplicaDivergence divergence = measure_replica_divergence(model_.parameters(), groups_);
      line.divergence = divergence.all;
      line.divergence_groups = divergence.groups;
    }
    for (const comm::ClassSample& sampled : network_.take_samples()) {
      line.classes[std::string(sim::traffic_class_name(sampled.traffic_class))] = {sampled.nmse, sampled.cosine};
    }
  }

  void log(MetricsLine& line) {
    line.tokens = outcome_.tokens;
    line.seconds = seconds_since(start_);
    outcome_.time = network_.collect_time();
    if (outcome_.time) line.virtual_seconds = outcome_.time->seconds;
    if (line.train_loss) {
      last_losses_.push_back(*line.train_loss);
      if (last_losses_.size() > kFinalLossLines) last_losses_.pop_front();
    }
    if (group_.rank() == 0) on_line_(line);
  }

  void finish() {
    network_.verify_fates();
    outcome_.statistics = network_.collect_statistics(config_.record.links == RecordConfig::Links::kInclude
                                                          ? comm::LossyCommunicator::LinkDetail::kInclude
                                                          : comm::LossyCommunicator::LinkDetail::kOmit);
    if (config_.record.weights == RecordConfig::Weights::kFinal) {
      outcome_.weights =
          models::gather_gpt2_weights(config_.model, model_.parameters(), tensor_group_, pipeline_group());
    }
    if (!last_losses_.empty()) {
      outcome_.train_final_loss =
          std::accumulate(last_losses_.begin(), last_losses_.end(), 0.0) / static_cast<double>(last_losses_.size());
    }
    outcome_.seconds = seconds_since(start_);
    if (training_seconds_ > 0) {
      outcome_.tokens_per_second = static_cast<double>(outcome_.tokens) / training_seconds_;
    }
  }

  const RunConfig& config_;
  comm::Communicator& group_;
  const std::function<void(const MetricsLine&)>& on_line_;
  comm::LossyCommunicator network_;
  comm::ParallelGroups groups_;
  comm::Communicator* replicas_;  ///< null: there is one
  std::unique_ptr<comm::Communicator> alone_;
  comm::Communicator& tensor_group_;
  TrainingModel model_;
  std::optional<StageFailures> failures_;
  TrainingBatches batches_;
  EvaluationBatches validation_;
  std::optional<EvaluationBatches> selection_;  ///< the tokens after those of validation_

  Clock::time_point start_;
  double training_seconds_ = 0;
  std::deque<double> last_losses_;
  TrainingOutcome outcome_;
};

}  // namespace

TrainingOutcome train(const RunConfig& config, const Corpus& corpus, comm::Communicator& group,
                      const std::function<void(const MetricsLine&)>& on_line) {
  models::validate(config.model, config.parallel.tensor);
  return Trainer(config, corpus, group, on_line).run();
}

}  // namespace droptest::experiments
