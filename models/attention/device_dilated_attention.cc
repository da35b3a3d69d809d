// SPDX-License-Identifier: Apache-2.0
#include "models/attention/device_dilated_attention.h"

namespace droptest::models {

template class DilatedAttentionOf<DeviceHeads<float>>;
template class DilatedAttentionOf<DeviceHeads<comm::Bf16>>;
template class DilatedAttentionOf<DeviceHeads<comm::Fp16>>;

}  // namespace droptest::models
