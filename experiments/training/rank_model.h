// SPDX-License-Identifier: Apache-2.0
// A model on the ranks of a run without its training: evaluation over the run's network, and generation of text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/lossy/statistics/loss_statistics.h"
#include "experiments/data/corpus.h"
#include "experiments/spec/run_config.h"
#include "experiments/training/evaluation.h"
#include "models/files/safetensors.h"

namespace droptest::experiments {

/// The result of an evaluation over a network.
struct NetworkEvaluation {
  Evaluated result;
  std::vector<comm::ClassStatistics> statistics;  ///< statistics of the packets
};

/// Evaluates `weights` on local ranks with the run's layout and network, which loses packets. `where` names the weights
/// in messages. Throws: ConfigError for weights that do not fit, or a layout that shards them.
NetworkEvaluation evaluate_over_network(const RunConfig& config, const models::StoredTensors& weights,
                                        const std::string& where, const EvaluationData& data,
                                        models::EvaluationDetail detail);

struct GenerationOptions {
  int tokens = 64;         ///< most new tokens; the model's context may have room for fewer
  double temperature = 0;  ///< 0: the token with the largest logit
  int top_k = 0;           ///< the number of tokens with the largest logits to draw from; 0: all
  std::uint64_t seed = 1;  ///< seed of the draws
  std::int32_t end = -1;   ///< a token that ends the text; negative: none does
  enum class Cache : std::uint8_t { kUsed, kUnused } cache = Cache::kUsed;
};

struct Generation {
  std::vector<std::int32_t> tokens;               ///< tokens after the prompt
  std::vector<comm::ClassStatistics> statistics;  ///< statistics of the packets
};

/// Continues `prompt` on local ranks with the run's layout and network, which loses packets. A pass with the cache has
/// one token, a pass without it all tokens so far. Shapes: prompt at least 1. Throws: ConfigError as
/// evaluate_over_network(), for replicas or sequence ranks, for a model with a classification head, and for a prompt
/// that fills the context.
/// Determinism: without loss, the cache changes the logits only by rounding.
Generation generate(const RunConfig& config, const models::StoredTensors& weights, const std::string& where,
                    std::span<const std::int32_t> prompt, const GenerationOptions& options);

/// The next token by its logits: draw number `number` of the options' seed.
std::int32_t choose_token(std::span<const double> logits, const GenerationOptions& options, std::uint64_t number);

}  // namespace droptest::experiments
