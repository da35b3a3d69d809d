// SPDX-License-Identifier: Apache-2.0
// The memory that a training step takes on the host on top of weights, gradients and moments.
#pragma once

#include <cstdint>

#include "models/gpt2/execution.h"
#include "models/gpt2/gpt2_config.h"

namespace droptest::models {

/// Bytes of one rank's saved activations, logits and working memory of a micro-batch, in float, forward and backward:
/// what a Gpt2<float> holds after its first pass, without the copies of messages that its communicator makes.
/// At most 2^63. `config` is valid for so many ranks.
std::uint64_t host_activation_bytes(const Gpt2Config& config, int ranks, int rank, const BatchShape& shape,
                                    int threads);

}  // namespace droptest::models
