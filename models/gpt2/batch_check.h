// SPDX-License-Identifier: Apache-2.0
// Whether a batch is one that a model can read.
#pragma once

#include <cstdint>
#include <span>

#include "models/gpt2/batch_shape.h"
#include "models/gpt2/gpt2_config.h"

namespace droptest::models {

/// Throws: ConfigError for a shape that the model cannot have, other numbers of tokens or targets than the shape says,
/// or a token outside of the vocabulary.
void check_batch(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, const BatchShape& shape,
                 const Gpt2Config& config);

}  // namespace droptest::models
