// SPDX-License-Identifier: Apache-2.0
// DilatedAttention in the memory of a device, with the same messages and losses.
#pragma once

#include "models/attention/device_sequence_attention.h"
#include "models/attention/dilated_attention.h"

namespace droptest::models {

extern template class DilatedAttentionOf<DeviceHeads<float>>;
extern template class DilatedAttentionOf<DeviceHeads<comm::Bf16>>;
extern template class DilatedAttentionOf<DeviceHeads<comm::Fp16>>;

}  // namespace droptest::models
