// SPDX-License-Identifier: Apache-2.0
// Offloaded attention on a device: queries, keys and values wait in page-locked host memory for the backward pass.
#pragma once

#include <cstdint>
#include <memory>

#include "models/attention/stateful_attention.h"

namespace droptest::models {

/// As make_offloaded_attention(), for the operations of a device, which are borrowed. Copies are on a stream of their
/// own; the next chunk is copied while the device computes. Blocking: never, but where it allocates.
std::unique_ptr<StatefulAttention> make_device_offloaded_attention(const AttentionOptions& options, Ops& ops);

/// Buffers on their way to the host and back (CudaOffload), two each.
inline constexpr std::uint64_t kDevicePassages = 2 + 2;
/// Chunks of one kind on the device at once: queries, keys and values that are met, and those on their way.
inline constexpr std::uint64_t kDeviceResidentChunks = 3 + kDevicePassages;

}  // namespace droptest::models
