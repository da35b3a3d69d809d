// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/validation.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "experiments/data/example_set.h"
#include "experiments/spec/run_traffic.h"
#include "models/kernels/update_decision.h"

namespace droptest::experiments {
namespace {

/// The tokens of the selection loss, which follow those of validation; absent: the config wants none.
std::optional<EvaluationBatches> selection_batches(const RunConfig& config, const Corpus& corpus) {
  const std::uint64_t wanted = selection_targets(config);
  if (wanted == 0) return std::nullopt;
  const std::uint64_t first = validation_targets(config);
  return EvaluationBatches(corpus.validation.part(first, corpus.validation.size() - first), wanted,
                           config.training.batch_sequences, config.training.sequence_tokens);
}

}  // namespace

std::unique_ptr<const EvaluationData> validation_data(const RunConfig& config, const Corpus& corpus) {
  const int sequences = config.training.batch_sequences;
  const int length = config.training.sequence_tokens;
  if (corpus.examples != nullptr) {
    return std::make_unique<const EvaluationExamples>(corpus.examples->validation, sequences, length);
  }
  return std::make_unique<const EvaluationBatches>(corpus.validation, validation_targets(config), sequences, length);
}

double agree_on_mean(double value, comm::Communicator& group, std::string_view name) {
  const auto ranks = static_cast<std::size_t>(group.world_size());
  std::vector<double> values(ranks);
  const std::vector<std::uint64_t> counts(ranks, 1);
  group.all_gather(comm::ConstTensor(std::span<const double>(&value, 1)), comm::Tensor(std::span<double>(values)),
                   counts, {sim::TrafficClass::kControl, name, -1});
  return models::mean_of_ranks(values);
}

Validation::Validation(const RunConfig& config, const Corpus& corpus, comm::Communicator& group,
                       comm::LossyCommunicator& network, TrainingModel& model, const ReplicaMembership& there,
                       StepProfile& profile, std::function<void()> is_at_work,
                       std::optional<std::uint64_t>& diverged_step)
    : config_(config),
      group_(group),
      network_(network),
      model_(model),
      there_(there),
      profile_(profile),
      is_at_work_(std::move(is_at_work)),
      diverged_step_(diverged_step),
      data_(validation_data(config, corpus)),
      labels_(corpus.examples == nullptr ? std::vector<std::int32_t>() : corpus.examples->validation.labels),
      selection_(selection_batches(config, corpus)) {}

void Validation::after_update(FinishedStep& finished) {
  if (!finished.is_last && !is_multiple(finished.step, config_.validation.every_steps)) return;
  validate(finished.line);
  if (finished.is_last && selection_) select(finished.line);
  finished.is_logged = true;
}

void Validation::validate(MetricsLine& line) {
  const StepProfile::Scope scope(profile_, TrainerPhase::kEvaluation);
  is_at_work_();
  const Evaluated evaluated = evaluate(*data_, "validation_loss");
  const double loss = evaluated.mean_loss;
  network_.verify_fates();
  if (model_.config().classifies() && group_.rank() == 0) {
    predictions_ = predictions_of(evaluated.logits, labels_);
    line.classification = to_json(quality_of(*predictions_, model_.config().classes, config_.seeds.data));
  }
  line.validation_loss = results_.final_loss = loss;
  results_.tokens = data_->count_targets();
  if (!std::isfinite(loss)) {
    diverged_step_ = line.step;
  } else if (!results_.best_loss || loss < *results_.best_loss) {
    results_.best_loss = loss;
  }
}

void Validation::select(MetricsLine& line) {
  const StepProfile::Scope scope(profile_, TrainerPhase::kEvaluation);
  const double loss = evaluate(*selection_, "selection_loss").mean_loss;
  line.selection_loss = results_.selection_loss = loss;
  results_.selection_tokens = selection_->count_targets();
  if (!std::isfinite(loss)) diverged_step_ = line.step;
}

Evaluated Validation::evaluate(const EvaluationData& data, const char* name) {
  const Attendance& there = there_.now();
  const auto stop = network_.stop_clock();
  std::optional<comm::LossyCommunicator::LosslessScope> lossless;
  if (config_.validation.network == ValidationConfig::Network::kLossless) lossless.emplace(network_);
  Evaluated result;
  if (there.takes_part) {
    comm::Communicator& ranks = there.absent.empty() ? group_ : there.groups->world();
    const auto detail =
        model_.config().classifies() ? models::EvaluationDetail::kLogits : models::EvaluationDetail::kLoss;
    result = experiments::evaluate(model_, data, there.groups, detail, is_at_work_);
    result.mean_loss = agree_on_mean(result.mean_loss, ranks, name);
  }
  if (!there.absent.empty()) {
    group_.broadcast(comm::Tensor(std::span<double>(&result.mean_loss, 1)), 0, {sim::TrafficClass::kControl, name});
  }
  return result;
}

}  // namespace droptest::experiments
