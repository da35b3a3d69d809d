// SPDX-License-Identifier: Apache-2.0
#include "models/attention/device_offloaded_attention.h"

#include "comm/bfloat16.h"
#include "comm/float16.h"
#include "models/attention/attention_views.h"
#include "models/attention/device_attention_views.h"
#include "models/attention/offloaded_attention_of.h"

namespace droptest::models {
std::unique_ptr<StatefulAttention> make_device_offloaded_attention(const AttentionOptions& options, Ops& ops) {
  switch (ops.form().types().activations) {
    case comm::ElementType::kBfloat16:
      return std::make_unique<OffloadedAttention<DeviceBlocks<comm::Bf16>>>(options, ops);
    case comm::ElementType::kFloat16:
      return std::make_unique<OffloadedAttention<DeviceBlocks<comm::Fp16>>>(options, ops);
    default:
      return std::make_unique<OffloadedAttention<DeviceBlocks<float>>>(options, ops);
  }
}

}  // namespace droptest::models
