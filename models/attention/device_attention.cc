// SPDX-License-Identifier: Apache-2.0
#include "models/attention/device_attention.h"

#include "comm/bfloat16.h"
#include "comm/float16.h"
#include "models/attention/device_attention_views.h"
#include "models/attention/device_dilated_attention.h"
#include "models/attention/device_sequence_attention.h"
#include "models/attention/stateful_attention_of.h"

namespace droptest::models {

std::unique_ptr<StatefulAttention> make_device_attention(const AttentionOptions& options, const SequenceParallel& ranks,
                                                         std::int64_t first_head, std::int64_t heads, Ops& ops) {
  switch (ops.form().types().activations) {
    case comm::ElementType::kBfloat16:
      return stateful_attention_of<DeviceBlocks<comm::Bf16>>(options, ranks, first_head, heads, ops);
    case comm::ElementType::kFloat16:
      return stateful_attention_of<DeviceBlocks<comm::Fp16>>(options, ranks, first_head, heads, ops);
    default:
      return stateful_attention_of<DeviceBlocks<float>>(options, ranks, first_head, heads, ops);
  }
}

}  // namespace droptest::models
