// SPDX-License-Identifier: Apache-2.0
// Operations on the elements of tensors in device memory, in the order of their stream. Each operation gives the bits
// of its twin on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/device/stream.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {

/// Elements of a tensor that are changed by the same operation.
struct ElementRun {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  double factor = 1;  ///< factor of kScale and kDivide

  friend bool operator==(const ElementRun&, const ElementRun&) = default;
};

/// The new value of each element x of the runs, with y the same element of another tensor: 0, the lowest value of the
/// type, y, x + y, max(x, y), x * factor, x / factor, or x if it is finite and else 0. The factor is rounded to the
/// type first (to float for bfloat16 and float16).
enum class RunOperation : std::uint8_t { kZero, kLowest, kCopy, kSum, kMax, kScale, kDivide, kFinite };

/// Changes all runs in one launch. `from` has the shape of `data`, or is empty if the operation does not read it.
void change_runs_on_device(RunOperation operation, ConstTensor from, Tensor data, std::span<const ElementRun> runs);

/// Sets ascending ranges to zero, in one launch; without ranges there is no launch.
inline void zero_ranges_on_device(Tensor data, std::span<const sim::ElementRange> ranges) {
  if (ranges.empty()) return;
  std::vector<ElementRun> runs;
  for (const sim::ElementRange& range : ranges) runs.push_back({range.begin, range.end});
  change_runs_on_device(RunOperation::kZero, {}, data, runs);
}

/// reduce_in_rank_order() in one launch.
void reduce_on_device(ReduceOp op, ElementType type, std::span<const std::byte* const> inputs,
                      std::span<std::byte* const> outputs, std::uint64_t count_elems, Stream& stream);

}  // namespace droptest::comm
