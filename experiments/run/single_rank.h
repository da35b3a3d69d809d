// SPDX-License-Identifier: Apache-2.0
// Initial weights and evaluation: they need a whole model on one rank, without training it.
#pragma once

#include <cstdint>
#include <string>

#include "experiments/data/token_source.h"
#include "experiments/run_config.h"
#include "models/files/safetensors.h"

namespace droptest::experiments {

/// The weights that the run starts from: its file's, or random ones of its seed. Throws: ConfigError.
models::StoredTensors initial_weights(const RunConfig& config);

struct Evaluation {
  double mean_loss = 0;      ///< nats per token
  std::uint64_t tokens = 0;  ///< predicted: all but the first
};

/// The mean loss of `weights` in the run's model over tokens, in sequences of training.sequence_tokens.
/// `where` names the weights in messages. Throws: ConfigError for weights that do not fit, or fewer than two tokens;
/// as Tokens::read().
Evaluation evaluate(const RunConfig& config, const models::StoredTensors& weights, const std::string& where,
                    const Tokens& tokens, int threads);

}  // namespace droptest::experiments
