// SPDX-License-Identifier: Apache-2.0
// Attention on a device in plain float arithmetic, for every element type and width.
#pragma once

#include "models/kernels/attention.h"

namespace droptest::models {

/// attention_forward() and attention_backward() without tensor cores. Shapes and determinism: as there.
template <class E>
void plain_attention_forward(comm::DeviceSpan<const E> qkv, const AttentionShape& shape,
                             comm::DeviceSpan<float> log_sum_exp, comm::DeviceSpan<E> output, comm::Stream& stream,
                             const DropoutMask& dropout = {});
template <class E>
void plain_attention_backward(comm::DeviceSpan<const E> grad_output, comm::DeviceSpan<const E> qkv,
                              comm::DeviceSpan<const E> output, comm::DeviceSpan<const float> log_sum_exp,
                              const AttentionShape& shape, comm::DeviceSpan<E> grad_qkv,
                              comm::DeviceSpan<float> scratch, comm::Stream& stream, const DropoutMask& dropout = {});

}  // namespace droptest::models
