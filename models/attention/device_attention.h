// SPDX-License-Identifier: Apache-2.0
// StatefulAttention on a device: over sequence ranks, within documents, dilated, or offloaded in chunks.
#pragma once

#include <cstdint>
#include <memory>

#include "models/attention/stateful_attention.h"

namespace droptest::models {

/// make_stateful_attention() for the operations of a device. Throws: ConfigError if this build has no CUDA.
std::unique_ptr<StatefulAttention> make_device_attention(const AttentionOptions& options, const SequenceParallel& ranks,
                                                         std::int64_t first_head, std::int64_t heads, Ops& ops);

}  // namespace droptest::models
