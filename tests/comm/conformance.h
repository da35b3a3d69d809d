// SPDX-License-Identifier: Apache-2.0
// What every backend must do, checked on one rank against references that each rank computes alone.
#pragma once

#include <cstdint>

#include "comm/communicator.h"

namespace droptest::comm {

/// Calls every operation for float, double and uint64, in place and out of place, for counts of 0, 1, around the
/// group's size and above 1000, even and uneven. Ranks: all. Throws: std::runtime_error that names the operation where
/// a result differs by one bit from the rank-order reference, an input was written, or a byte past an output changed.
/// Returns a digest of all results, which must be equal for all backends and differs between ranks.
std::uint64_t check_conformance(Communicator& communicator);

/// The same over subgroups: halves, reversed order, nested, and ranks that belong to none.
std::uint64_t check_conformance_of_splits(Communicator& communicator);

}  // namespace droptest::comm
