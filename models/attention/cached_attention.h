// SPDX-License-Identifier: Apache-2.0
// Attention of new tokens over the cached keys and values of all earlier tokens.
#pragma once

#include <memory>

#include "models/attention/stateful_attention.h"

namespace droptest::models {

/// Causal attention for evaluations of one sequence. Each evaluation has the next tokens of the sequence
/// (BatchShape::first_position); an evaluation at position 0 empties the cache first. The cache has the keys and values
/// that this rank computed, from the activations that it received. There is no backward pass: backward() throws
/// CheckError. Throws: ConfigError for a device.
std::unique_ptr<StatefulAttention> make_cached_attention(Ops& ops);

}  // namespace droptest::models
