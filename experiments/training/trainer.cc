// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/trainer.h"

#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "comm/lossy/lossy_communicator.h"
#include "comm/metered_communicator.h"
#include "comm/rank_agreement.h"
#include "experiments/checkpoint/restore.h"
#include "experiments/data/example_set.h"
#include "experiments/records/loss_statistics_record.h"
#include "experiments/records/run_records.h"
#include "experiments/spec/kernels_in_use.h"
#include "experiments/spec/pipeline_plan.h"
#include "experiments/spec/rank_groups.h"
#include "experiments/spec/run_config.h"
#include "experiments/training/call_waits.h"
#include "experiments/training/compute_time.h"
#include "experiments/training/profiled_steps.h"
#include "experiments/training/rank_clock.h"
#include "experiments/training/rank_usage.h"
#include "experiments/training/replica_absences.h"
#include "experiments/training/rescue_state.h"
#include "experiments/training/stage_failures.h"
#include "experiments/training/step_profile.h"
#include "experiments/training/step_samples.h"
#include "experiments/training/trainer_parts.h"
#include "experiments/training/training_data.h"
#include "experiments/training/training_history.h"
#include "experiments/training/training_model.h"
#include "experiments/training/validation.h"
#include "experiments/training/workers.h"
#include "models/gpt2/gpt2_weights.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// One rank's training: its objects, and the loop over steps.
class Trainer {
 public:
  Trainer(const RunConfig& config, const Corpus& corpus, comm::Communicator& group, const TrainingHooks& hooks)
      : config_(config),
        group_(group),
        hooks_(hooks),
        history_(membership_at_start(hooks.checkpoints, config, group), config.parallel.text()),
        profile_([this] { return network_.packet_totals(); }),
        usage_(usage_scope(config), device_of(config)),
        clock_(group),
        metered_(group),
        network_(metered_, lossy_options(config, history_.membership())),
        // The loss layer loses no control traffic, but does not count its time as compute time.
        observed_(network_, &profile_),
        traces_(config, group, network_, clock_, profile_, hooks.on_trace),
        groups_(config, pipeline_plan(config), observed_),
        absences_(config, observed_, groups_.layout()),
        model_(config, groups_.tensor(), groups_.model_ranks(), {&profile_.times(), &profile_.device_timer()}),
        data_(make_training_data(
            config, corpus, group, [this](std::uint64_t step) { return share_of(step); }, hooks.on_lost_shard)),
        membership_(config, absences_, model_, network_, [this] { spread_embedding_for_certain(); }),
        samples_(config, membership_, model_, network_, profile_),
        validation_(
            config, corpus, group, network_, model_, membership_, profile_, [this] { tell_at_work(); },
            outcome_.diverged_step),
        log_(
            config, {group, metered_, network_, profile_, clock_, model_, workers_, usage_}, history_, hooks,
            [this](MetricsLine& line) { put_totals(line); }, outcome_),
        checkpoints_(
            config, group, profile_, history_, hooks, [this] { return training_state(); },
            [this] {
              if (workers_) workers_->settle();
            },
            [this] { return log_.take_checkpoint_request(); }, outcome_) {
    if (corpus.examples != nullptr) {
      outcome_.cut_examples = {corpus.examples->training.cut, corpus.examples->validation.cut};
    }
    model_.set_computed([this, pass_time = follow_passes(config, network_, model_)](const models::Action& action) {
      if (pass_time) pass_time(action);
      tell_at_work();
      if (action.is_forward()) hooks_.after_forward(group_.rank(), outcome_.steps + 1);
    });
    if (config.outer.is_on()) workers_.emplace(config, *groups_.layout().gradient_group(), network_, model_);
    parts_ = {&membership_};
    if (config.failures && config.failures->stage_rate > 0) {
      failures_.emplace(config, *groups_.pipeline(), groups_.tensor(), model_, network_, outcome_.stage_failures);
      parts_.push_back(&*failures_);
    }
    parts_.insert(parts_.end(), {&samples_, &validation_, &log_, &checkpoints_});
  }

  TrainingOutcome run() {
    try {
      return run_to_end();
    } catch (const CommError& error) {
      checkpoints_.leave_state(error.what());
      throw;
    }
  }

 private:
  TrainingOutcome run_to_end() {
    log_.begin();
    const auto resumed = checkpoints_.restore();
    const bool has_unrecorded = checkpoints_.rescue().has_unrecorded();
    start_records(resumed ? std::optional(resumed->step - (has_unrecorded ? 1 : 0)) : std::nullopt);
    if (resumed) {
      history_.resume(resumed->step);
      membership_.resume(resumed->step);
      if (resumed->memberships) begin_membership(*resumed->memberships);
      if (auto line = checkpoints_.rescue().take_unrecorded()) record_step(*line);
    } else {
      begin();
    }
    while (outcome_.steps < last_step() && !outcome_.diverged_step && !outcome_.stopped_after &&
           outcome_.alert.empty()) {
      const std::uint64_t step = outcome_.steps + 1;
      hooks_.before_step(group_.rank(), step);
      traces_.begin_step(step, model_.ops().stream());
      take_step(step);
      traces_.end_step(step);
    }
    traces_.finish();
    checkpoints_.finish();
    outcome_.skipped_steps = model_.scaler().skipped();
    outcome_.loss_scale = model_.scaler().scale();
    outcome_.resumed_at = history_.resumed_at();
    outcome_.started_from = history_.started_from();
    outcome_.earlier_memberships = history_.earlier_memberships();
    outcome_.validation_final_loss = validation_.results().final_loss;
    outcome_.validation_best_loss = validation_.results().best_loss;
    outcome_.validation_tokens = validation_.results().tokens;
    outcome_.selection_loss = validation_.results().selection_loss;
    outcome_.selection_tokens = validation_.results().selection_tokens;
    outcome_.predictions = std::move(validation_.predictions());
    if (!outcome_.stopped_after) finish();
    // A run that never updated its parameters has trained nothing.
    const bool ended =
        outcome_.steps > 0 && !outcome_.stopped_after && !outcome_.diverged_step && outcome_.alert.empty();
    if (ended && model_.scaler().is_on() && outcome_.skipped_steps == outcome_.steps) {
      outcome_.diverged_step = outcome_.steps;
    }
    if (group_.rank() == 0 && !outcome_.replicas_change) hooks_.on_end();
    return std::move(outcome_);
  }

  /// Rank 0 may have a million lines of metrics to read again: meanwhile the others, which wait for the first step,
  /// hear from it more often than they time out. `step`: hooks_.on_start()'s.
  void start_records(std::optional<std::uint64_t> step) {
    if (!step) {
      if (group_.rank() == 0) hooks_.on_start(step);
      return;
    }
    run_on_root(group_, config_.backend.timeout / 4, "records of a resumed run", [&] { hooks_.on_start(step); });
  }

  void begin() {
    if (config_.start) {
      start_from_checkpoint();
    } else {
      set_starting_weights(model_, config_, groups_.tensor());
      spread_starting_weights();
    }
    if (workers_) workers_->begin();
    MetricsLine first;
    first.step = outcome_.steps;
    validation_.validate(first);
    log_.note_memory(first.step);
    log_.write(first, outcome_.steps >= last_step());
  }

  TrainingState training_state() {
    TrainingState state = {model_.ops(),
                           model_.tensors(),
                           [this](models::StateVisitor& visitor) { model_.visit_state(visitor); },
                           [this](sim::StateVisitor& visitor) {
                             network_.visit_state(visitor);
                             if (failures_) failures_->visit_state(visitor);
                             if (workers_) workers_->visit_state(visitor);
                           },
                           [this](sim::StateVisitor& visitor) { visit_progress(visitor); },
                           [this] { return memberships(); }};
    return hooks_.state(group_.rank(), std::move(state));
  }

  /// Begins a membership after the state of another layout was restored.
  void begin_membership(const nlohmann::json& before) {
    history_.begin_membership(before, outcome_.steps);
    (void)model_.parameters();
    model_.set_values();  // the rounded values, too
    spread_starting_weights();
  }

  /// The losses of the memberships so far; this one is the last.
  nlohmann::json memberships() {
    const std::vector<comm::ClassStatistics> statistics =
        network_.collect_statistics(comm::LossyCommunicator::LinkDetail::kOmit);
    (void)log_.collect_time();
    return history_.count(outcome_.steps, loss_statistics_json(statistics, config_.network)["classes"]);
  }

  /// Takes the parameters and the optimizer of another run.
  void start_from_checkpoint() {
    const std::string& path = config_.start->manifest;
    const Manifest manifest = manifest_of_root(path, group_);
    if (config_.attention_is_replaced && !manifest.attention.empty() &&
        manifest.attention != recorded_attention(config_)) {
      throw ConfigError(
          "/start/manifest: " + path + ": attention was computed by " + manifest.attention +
          ", which a rank's machine does not have; want one that has it, or /kernels/attention \"flash\"");
    }
    const TrainingState state = training_state();
    RestoredState restored = RestoredState::recut(std::filesystem::path(path).parent_path(), manifest, state);
    restored.put(state);
    (void)checkpoints_.rescue().take_unrecorded();  // the line belongs to the other run
    history_.start_from({manifest.run_id, manifest.step, config_.start->membership, restored.difference().max,
                         restored.difference().tensors});
    begin_membership(manifest.memberships);
  }

  void visit_progress(sim::StateVisitor& visitor) {
    double seconds = log_.seconds();
    visit_values(visitor, outcome_.steps, outcome_.tokens, validation_.results(), outcome_.stage_failures, history_,
                 checkpoints_.rescue(), log_.last_losses(), training_seconds_, seconds, *data_,
                 validation_.predictions());
    if (visitor.turn() != sim::StateVisitor::Turn::kRestore) return;
    log_.set_seconds(seconds);
  }

  /// Gathers the starting weights without loss. So parameters that are lost later become older values, not zeros.
  void spread_starting_weights() {
    if (config_.network.of(sim::TrafficClass::kParameterGather)) {
      const auto stop = network_.stop_clock();
      const comm::LossyCommunicator::ProtectedScope arrives(network_);
      model_.gather_values();
    }
    spread_embedding_for_certain();
  }

  /// Gives the first stage the owner's values of the tied embedding, without loss. Ranks: all of a pipeline.
  void spread_embedding_for_certain() {
    if (!config_.network.of(sim::TrafficClass::kEmbeddingGradient)) return;
    const auto stop = network_.stop_clock();
    const comm::LossyCommunicator::ProtectedScope arrives(network_);
    model_.spread_embedding();
  }

  /// The last step of the run: the step in which its data ends, or the config's.
  std::uint64_t last_step() const {
    const std::optional<std::uint64_t> left = data_->steps_left();
    return left ? outcome_.steps + *left : config_.training.steps;
  }

  StepData take_data(std::uint64_t step) {
    const StepProfile::Scope scope(profile_, TrainerPhase::kData);
    return data_->take(step);
  }

  models::StepResult train_model(const StepData& data, double learning_rate, std::uint64_t step) {
    std::optional<StepProfile::Scope> scope;
    if (config_.device == Device::kCuda) scope.emplace(profile_, TrainerPhase::kDevice);
    return model_.take_step(data.micro_batches, learning_rate, overflow_flags(config_, group_.rank(), step));
  }

  void tell_at_work() const {
    if (group_.rank() == 0) hooks_.is_at_work();
  }

  void take_step(std::uint64_t step) {
    const TrainingConfig& training = config_.training;
    MetricsLine line;
    line.step = step;

    tell_at_work();
    const Clock::time_point step_start = Clock::now();
    network_.begin_step(step);
    for (TrainerPart* part : parts_) part->begin_step(step, line);
    const StepData data = take_data(step);
    // A skipped step leaves the schedule where it is.
    line.learning_rate = training.learning_rate.at(step - 1 - model_.scaler().skipped());
    if (data.sequences > 0) {
      models::StepResult result;
      const double scale = model_.scaler().scale();
      if (membership_.now().takes_part) result = train_model(data, *line.learning_rate, step);
      membership_.share(result);
      if (workers_) workers_->finish_step(step, result);
      line.train_loss = result.loss;
      line.gradient_norm = result.gradient_norm;
      if (model_.scaler().is_on()) note_scale(scale, result, line);
      if (model_.scaler().is_on() ? gives_up() : !result.updated) {
        const auto pause = network_.pause_clock();
        outcome_.diverged_step = step;
        line.tokens = outcome_.tokens;
        log_.write(line, /*is_last=*/true);
        return;
      }
    }
    training_seconds_ += seconds_since(step_start);
    outcome_.steps = step;
    outcome_.tokens += data.sequences * static_cast<std::uint64_t>(training.sequence_tokens);
    checkpoints_.rescue().keep(line, [this](sim::StateVisitor& visitor) { visit_progress(visitor); });
    spread_embedding();
    record_step(line);
  }

  /// Called after the state of a rescue is kept: its values are those of the step, whether this message arrives or not.
  void spread_embedding() {
    if (!membership_.now().takes_part) return;
    const Clock::time_point start = Clock::now();
    model_.spread_embedding();
    training_seconds_ += seconds_since(start);
  }

  /// Called after the update: measurements, the line, the checkpoint.
  void record_step(MetricsLine& line) {
    const auto pause = network_.pause_clock();
    FinishedStep finished{line.step, line.step == last_step(), line};
    for (TrainerPart* part : parts_) part->after_update(finished);
  }

  /// The members of a line that count over the whole run.
  void put_totals(MetricsLine& line) const {
    if (const auto record = data_->record()) line.lost_samples = record->lost_samples;
    if (checkpoints_.are_taken()) line.failed_checkpoints = checkpoints_.failed();
  }

  ReplicaShare share_of(std::uint64_t step) const {
    const Attendance& there = absences_.at(step);
    return {there.replicas, there.takes_part ? std::optional(there.index) : std::nullopt};
  }

  /// Remembered gradients follow the scale, and values of an overflow are forgotten.
  void note_scale(double scale, const models::StepResult& result, MetricsLine& line) {
    const double next = model_.scaler().scale();
    if (!result.updated || next != scale) network_.rescale_memories(next / scale);
    line.loss_scale = scale;
    line.skipped_steps = model_.scaler().skipped();
    if (result.updated) return;
    if (!std::isfinite(*line.train_loss)) line.train_loss.reset();
    if (!std::isfinite(*line.gradient_norm)) line.gradient_norm.reset();
  }

  /// Ranks that missed a flag have counts of their own: all end with rank 0.
  bool gives_up() {
    const bool own = model_.scaler().gives_up();
    if (config_.training.flag_loss_rate == 0) return own;
    return number_of_root(own ? 1 : 0, group_, "overflows in a row") != 0;
  }

  void finish() {
    network_.verify_fates();
    outcome_.data = data_->record();
    outcome_.steps_with_fewer_replicas = steps_with_fewer_replicas(config_, history_.begun_after() + 1, outcome_.steps);
    outcome_.statistics = network_.collect_statistics(config_.record.links == RecordConfig::Links::kInclude
                                                          ? comm::LossyCommunicator::LinkDetail::kInclude
                                                          : comm::LossyCommunicator::LinkDetail::kOmit);
    if (config_.record.weights == RecordConfig::Weights::kFinal) {
      checkpoints_.rescue().forget();  // moments are part of the state of a rescue
      tell_at_work();
      model_.end_training();
      outcome_.weights =
          models::gather_gpt2_weights(config_.model, model_.parameters(), groups_.tensor(), groups_.pipeline());
      outcome_.memory.note_process(outcome_.steps);
      log_.note_device_memory(outcome_.steps);
    }
    if (const std::vector<double>& losses = log_.last_losses(); !losses.empty()) {
      outcome_.train_final_loss =
          std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
    }
    outcome_.seconds = log_.seconds();
    if (training_seconds_ > 0) {
      outcome_.tokens_per_second = static_cast<double>(outcome_.tokens) / training_seconds_;
    }
  }

  const RunConfig& config_;
  comm::Communicator& group_;
  const TrainingHooks& hooks_;
  TrainingHistory history_;
  StepProfile profile_;
  RankUsageMeter usage_;
  RankClock clock_;
  comm::MeteredCommunicator metered_;
  comm::LossyCommunicator network_;
  comm::MeteredCommunicator observed_;  ///< the loss layer, with all that it waits for
  ProfiledSteps traces_;
  RankGroups groups_;
  ReplicaAbsences absences_;
  TrainingModel model_;
  std::optional<Workers> workers_;
  std::optional<StageFailures> failures_;
  std::unique_ptr<TrainingData> data_;
  TrainingOutcome outcome_;
  ReplicaMembership membership_;
  StepSamples samples_;
  Validation validation_;
  StepLog log_;
  RunCheckpoints checkpoints_;
  std::vector<TrainerPart*> parts_;  ///< the parts, in the order in which a step calls them
  double training_seconds_ = 0;
};

}  // namespace

TrainingOutcome train(const RunConfig& config, const Corpus& corpus, comm::Communicator& group,
                      const TrainingHooks& hooks) {
  models::validate(config.model, config.parallel.tensor);
  return Trainer(config, corpus, group, hooks).run();
}

TrainingOutcome train(const RunConfig& config, const Corpus& corpus, comm::Communicator& group,
                      const std::function<void(const MetricsLine&)>& on_line) {
  TrainingHooks hooks;
  hooks.on_line = on_line;
  return train(config, corpus, group, hooks);
}

}  // namespace droptest::experiments
