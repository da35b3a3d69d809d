// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/single_rank.h"

#include "comm/run_ranks.h"
#include "experiments/data/corpus.h"
#include "experiments/run/evaluation.h"
#include "models/gpt2/gpt2.h"
#include "models/gpt2/gpt2_weights.h"
#include "sim/error.h"

namespace droptest::experiments {

models::StoredTensors initial_weights(const RunConfig& config) {
  models::StoredTensors weights;
  comm::run_ranks(1, config.backend.timeout, [&](comm::Communicator& group) {
    models::Gpt2<float> model(config.model, group, config.backend.threads_per_rank);
    if (config.initial_weights.empty()) {
      model.initialize(config.seed);
    } else {
      models::load_gpt2_weights(model, group, models::read_safetensors(config.initial_weights), config.initial_weights);
    }
    weights = models::gather_gpt2_weights(model, group);
  });
  return weights;
}

Evaluation evaluate(const RunConfig& config, const models::StoredTensors& weights, const std::string& where,
                    std::span<const std::uint16_t> tokens, int threads) {
  if (tokens.size() < 2) {
    throw ConfigError("evaluation data: " + std::to_string(tokens.size()) + " tokens, want at least 2");
  }
  Evaluation result;
  result.tokens = tokens.size() - 1;
  const EvaluationBatches batches(tokens, result.tokens, config.training.batch_sequences,
                                  config.training.sequence_tokens);
  comm::run_ranks(1, config.backend.timeout, [&](comm::Communicator& group) {
    models::Gpt2<float> model(config.model, group, threads);
    models::load_gpt2_weights(model, group, weights, where);
    result.mean_loss = mean_loss(model, batches);
  });
  return result;
}

}  // namespace droptest::experiments
