// SPDX-License-Identifier: Apache-2.0
// Copies and sums of tokens of several heads on a device.
#pragma once

#include <cstdint>

#include "models/attention/device_token_attention.h"

namespace droptest::models {

// E is float, Bf16 or Fp16.

/// copy_heads() copies `from` to `to`, add_heads() adds `from` to `to`. Shapes: equal.
template <class E>
void copy_heads(const DeviceHeadView<const E>& from, const DeviceHeadView<E>& to, comm::Stream& stream);
template <class E>
void add_heads(const DeviceHeadView<const E>& from, const DeviceHeadView<E>& to, comm::Stream& stream);

/// Gathers the listed heads of tokens, in this order, into packed [rows, batch, width].
template <class E>
void pack_rows(const DeviceHeadView<const E>& from, comm::DeviceSpan<const TokenHead> rows, comm::DeviceSpan<E> packed,
               comm::Stream& stream);
/// The inverse of pack_rows(): unpack_rows() sets the listed heads of tokens, add_rows() adds to them. `rows` has no
/// duplicates.
template <class E>
void unpack_rows(comm::DeviceSpan<const E> packed, comm::DeviceSpan<const TokenHead> rows, const DeviceHeadView<E>& to,
                 comm::Stream& stream);
template <class E>
void add_rows(comm::DeviceSpan<const E> packed, comm::DeviceSpan<const TokenHead> rows, const DeviceHeadView<E>& to,
              comm::Stream& stream);

/// to = from x exp(log_sum_exp - of_all) for each query. The factor is the weight of the branch in the softmax over the
/// keys of all branches, 0 for a query that the branch does not have. Shapes: log_sum_exp and of_all [batch, heads,
/// tokens].
template <class E>
void weigh_branch(const DeviceHeadView<const E>& from, comm::DeviceSpan<const float> log_sum_exp,
                  comm::DeviceSpan<const float> of_all, const DeviceHeadView<E>& to, comm::Stream& stream);

}  // namespace droptest::models
