// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/training_model.h"

#include "experiments/run/cpu_training_model.h"
#include "experiments/run/cuda_training_model.h"
#include "models/files/safetensors.h"
#include "models/gpt2/gpt2_tensors.h"
#include "models/gpt2/gpt2_weights.h"
#include "models/gpt2/initial_weights.h"

namespace droptest::experiments {

std::unique_ptr<TrainingModel> make_training_model(const RunConfig& config, comm::Communicator& network,
                                                   comm::Communicator& group) {
  if (config.device == Device::kCuda) return std::make_unique<CudaTrainingModel>(config, network, group);
  return std::make_unique<CpuTrainingModel>(config, network, group);
}

void set_starting_weights(TrainingModel& model, const RunConfig& config, comm::Communicator& group) {
  if (config.initial_weights.empty()) {
    models::set_initial_weights<float>(models::gpt2_tensors(config.model, group.world_size(), group.rank()),
                                       config.seeds.weights, model.parameters());
  } else {
    models::load_gpt2_weights<float>(config.model, model.parameters(), group,
                                     models::read_safetensors(config.initial_weights), config.initial_weights);
  }
  model.set_values();
}

}  // namespace droptest::experiments
