// SPDX-License-Identifier: Apache-2.0
// The memory that the loss layer will need for a collective, computed before the collective runs.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "comm/lossy/fill/scratch.h"
#include "comm/lossy/network.h"
#include "comm/lossy/paths/path_messages.h"

namespace droptest::comm {

/// Numbers of elements on the rank that has most of them.
struct CallMemory {
  using Slot = Scratch::Slot;
  /// Elements taken during the call, by slot.
  std::array<std::uint64_t, static_cast<std::size_t>(Slot::kSentinel)> scratch{};
  std::uint64_t remembered = 0;  ///< elements kept until the next message of the name: stale values, feedback, states

  /// Sets the elements of a buffer; a later size replaces an earlier one.
  void take(Slot slot, std::uint64_t elements) { scratch[static_cast<std::size_t>(slot)] = elements; }
};

/// A collective in its network, for questions about its memory.
struct SizedCall {
  const ClassNetwork& network;
  const CallShape& shape;
  int ranks = 1;

  /// The elements of the largest part of a rank.
  std::uint64_t part() const;
  /// The sum over ranks that have so many elements each.
  std::uint64_t of_all_ranks(std::uint64_t elements) const { return static_cast<std::uint64_t>(ranks) * elements; }
  /// Whether contributions to a sum leave values for the next call.
  bool remembers_contributions() const;
  /// Whether values of the gather half leave values for the next call.
  bool remembers_results() const;
};

/// The memory of LossyCall and its path. `is_sampled`: the call is compared with an exact one.
CallMemory memory_of(const SizedCall& call, bool is_sampled);

}  // namespace droptest::comm
