// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/single_rank.h"

#include "comm/run_ranks.h"
#include "experiments/training/run_device.h"
#include "experiments/training/training_model.h"
#include "models/gpt2/gpt2_weights.h"
#include "sim/error.h"

namespace droptest::experiments {

models::StoredTensors initial_weights(const RunConfig& config) {
  models::StoredTensors weights;
  comm::run_ranks(1, config.backend.timeout, [&](comm::Communicator& group) {
    RunConfig on_host = config;
    on_host.device = Device::kCpu;
    on_host.training.precision = {};
    on_host.model.attention.sequence = {};
    TrainingModel model(on_host, group);
    set_starting_weights(model, config, group);
    weights = models::gather_gpt2_weights(config.model, model.parameters(), group);
  });
  return weights;
}

Evaluated evaluate_on_one_rank(const RunConfig& config, const models::StoredTensors& weights, const std::string& where,
                               const EvaluationData& data, models::EvaluationDetail detail, int threads) {
  require_run_device(config);
  Evaluated result;
  comm::run_ranks(1, config.backend.timeout, [&](comm::Communicator& group) {
    RunConfig in_full = config;
    in_full.training.precision = {};
    in_full.model.attention.sequence = {};
    in_full.backend.threads_per_rank = threads;
    TrainingModel model(in_full, group);
    models::load_gpt2_weights(config.model, model.parameters(), group, weights, where);
    model.set_values();
    result = evaluate(model, data, nullptr, detail);
  });
  return result;
}

}  // namespace droptest::experiments
