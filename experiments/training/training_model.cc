// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/training_model.h"

#include <algorithm>
#include <vector>

#include "experiments/files/weights_file.h"
#include "experiments/spec/model_options.h"
#include "models/gpt2/gpt2_tensors.h"
#include "models/gpt2/gpt2_weights.h"
#include "models/gpt2/initial_weights.h"
#include "models/ops/cuda_ops.h"
#include "models/ops/host_ops.h"
#include "models/process_settings.h"

namespace droptest::experiments {
namespace {

std::unique_ptr<models::Ops> make_ops(const RunConfig& config, comm::Communicator& network, const ModelTimers& timers) {
  if (config.device == Device::kCuda) return models::make_cuda_ops(cuda_options(config), network, timers.device);
  return models::make_host_ops(host_options(config), network, timers.host);
}

}  // namespace

TrainingModel::TrainingModel(const RunConfig& config, comm::Communicator& tensor_group, const models::ModelRanks& ranks,
                             const ModelTimers& timers)
    : end_of_text_(config.data.end_of_text),
      model_(model_of(config), make_ops(config, tensor_group, timers), config.training.optimizer, slot_options(config),
             ranks),
      step_(model_, config.training.gradient_clip, config.training.gradient_norm, config.training.loss_scale) {}

models::StepResult TrainingModel::take_step(std::span<const Batch> micro_batches, double learning_rate,
                                            models::UpdateRule::Flags flags) {
  std::vector<models::MicroBatch> views;
  std::vector<std::vector<std::int32_t>> documents(micro_batches.size());
  for (std::size_t m = 0; m < micro_batches.size(); ++m) views.push_back(view_of(micro_batches[m], documents[m]));
  return step_.take(views, learning_rate, flags);
}

models::MicroBatch TrainingModel::view_of(const Batch& batch, std::vector<std::int32_t>& documents) const {
  models::MicroBatch view{batch.tokens,
                          batch.targets,
                          {batch.sequences, batch.length, batch.first_position, batch.step, batch.first_sample}};
  if (!end_of_text_) return view;
  documents = documents_of(batch, *end_of_text_);
  view.documents = documents;
  return view;
}

double TrainingModel::evaluate(const Batch& batch, models::EvaluationDetail detail) {
  std::vector<std::int32_t> documents;
  return model_.evaluate(view_of(batch, documents), detail);
}

std::span<models::Parameter<float>> TrainingModel::parameters() {
  model_.download(models::Gpt2::Fields::kValues);
  return model_.parameters<float>();
}

void set_starting_weights(TrainingModel& model, const RunConfig& config, comm::Communicator& tensor_group) {
  // Called once: each call of parameters() undoes changes that no set_values() followed.
  const std::span<models::Parameter<float>> parameters = model.parameters();
  if (config.initial_weights.empty()) {
    models::set_initial_weights<float>(model.tensors(), config.seeds.weights, parameters);
  } else {
    // The file may have no head and no adapters.
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const models::Gpt2Tensor& tensor = model.tensors()[i];
      if (tensor.name != models::kClassTensor && tensor.adapts.empty()) continue;
      models::set_initial_weights<float>(std::span(&tensor, 1), config.seeds.weights, parameters.subspan(i, 1));
    }
    models::load_gpt2_weights(config.model, parameters, tensor_group, read_weights(config.initial_weights),
                              config.initial_weights, models::MissingHead::kStays);
    models::return_freed_memory();  // the file's tensors of the whole model
  }
  model.set_values();
}

}  // namespace droptest::experiments
