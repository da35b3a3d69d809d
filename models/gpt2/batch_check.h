// SPDX-License-Identifier: Apache-2.0
// Whether a batch is one that a model can read.
#pragma once

#include <cstdint>
#include <span>

#include "models/gpt2/batch_shape.h"
#include "models/gpt2/gpt2_config.h"

namespace droptest::models {

/// Throws: ConfigError for a shape that the model cannot have, other numbers of tokens or targets than the shape says,
/// a token outside of the vocabulary, or a target that is neither one of it nor kIgnoredTarget.
void check_batch(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, const BatchShape& shape,
                 const Gpt2Config& config);

/// Targets that are not ignored.
std::int64_t count_targets(std::span<const std::int32_t> targets);

}  // namespace droptest::models
