// SPDX-License-Identifier: Apache-2.0
// Initial weights, and evaluation on one rank: the whole model without its training.
#pragma once

#include <string>

#include "experiments/spec/run_config.h"
#include "experiments/training/evaluation.h"
#include "models/files/safetensors.h"

namespace droptest::experiments {

/// The weights that the run starts from: its file's, or random ones of its seed. Throws: ConfigError.
models::StoredTensors initial_weights(const RunConfig& config);

/// Evaluates `weights` in the run's model on one rank, in float32. `where` names the weights in messages. Throws:
/// ConfigError for weights that do not fit; as EvaluationData::batch().
Evaluated evaluate_on_one_rank(const RunConfig& config, const models::StoredTensors& weights, const std::string& where,
                               const EvaluationData& data, models::EvaluationDetail detail, int threads);

}  // namespace droptest::experiments
