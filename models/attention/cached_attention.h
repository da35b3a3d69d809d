// SPDX-License-Identifier: Apache-2.0
// Attention of tokens that come one after another, over keys and values of all tokens so far.
#pragma once

#include <memory>

#include "models/attention/stateful_attention.h"

namespace droptest::models {

/// Causal attention of evaluations, each of which has the tokens behind those of the one before
/// (BatchShape::first_position); one at position 0 forgets all. Keys and values are those that this rank computed then:
/// with packet loss, they are what the rank had received. One sequence. There is no backward pass. Throws: ConfigError
/// for a device.
std::unique_ptr<StatefulAttention> make_cached_attention(Ops& ops);

}  // namespace droptest::models
