// SPDX-License-Identifier: Apache-2.0
#include "models/attention/device_sequence_attention.h"

namespace droptest::models {

template class SequenceAttentionOf<DeviceHeads<float>>;
template class SequenceAttentionOf<DeviceHeads<comm::Bf16>>;
template class SequenceAttentionOf<DeviceHeads<comm::Fp16>>;

}  // namespace droptest::models
