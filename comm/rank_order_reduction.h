// SPDX-License-Identifier: Apache-2.0
// The one reduction of all our backends: in rank order, so that equal inputs give equal bits everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "comm/communicator.h"

namespace droptest::comm {

/// A block of the sum stays in the first-level cache while every rank's input streams by once.
inline constexpr std::size_t kReductionBlockBytes = 8192;

/// Writes ((x0 op x1) op x2) ... to every output. x_r starts at inputs[r], and each range has count_elems elements.
/// An output may be one of the inputs; other overlaps are not allowed. A NaN is the maximum of anything.
/// Determinism: the order of the inputs is the order of the operations, for each element.
void reduce_in_rank_order(ReduceOp op, ElementType type, std::span<const std::byte* const> inputs,
                          std::span<std::byte* const> outputs, std::uint64_t count_elems);

/// Changes elements first_element onwards of a reduction while the inputs' values of them are still in the cache,
/// before any output has them. It may read those of the inputs.
using ChangeBlock = std::function<void(std::uint64_t first_element, Tensor block)>;

/// The same with a last word on each block, in order.
void reduce_in_rank_order(ReduceOp op, ElementType type, std::span<const std::byte* const> inputs,
                          std::span<std::byte* const> outputs, std::uint64_t count_elems, const ChangeBlock& change);

}  // namespace droptest::comm
