// SPDX-License-Identifier: Apache-2.0
// SequenceAttention in the memory of a device, with the same messages and losses, for elements of type E.
#pragma once

#include "comm/bfloat16.h"
#include "comm/float16.h"
#include "models/attention/device_head_memory.h"
#include "models/attention/sequence_attention.h"

namespace droptest::models {

/// Attention and its saved activations. The mask of a pass covers the whole sequences.
template <class E>
using DeviceSavedAttention = SavedAttentionOf<DeviceHeads<E>>;
template <class E>
using DeviceSequenceAttention = SequenceAttentionOf<DeviceHeads<E>>;

extern template class SequenceAttentionOf<DeviceHeads<float>>;
extern template class SequenceAttentionOf<DeviceHeads<comm::Bf16>>;
extern template class SequenceAttentionOf<DeviceHeads<comm::Fp16>>;

}  // namespace droptest::models
