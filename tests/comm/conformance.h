// SPDX-License-Identifier: Apache-2.0
// Checks of the contract of every backend, against references that each rank computes without communication.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/communicator.h"
#include "tests/sanitizers.h"

namespace droptest::comm {

/// The bytes of a message; a quarter of it is more than Gloo buffers of a rank's sends. ThreadSanitizer is slow, so it
/// has a smaller size, which connections and Gloo buffer in part, but not as a whole.
inline constexpr std::size_t kLargeMessageBytes = std::size_t{kThreadSanitizer ? 20 : 80} << 20;

/// Calls every operation for float, double and uint64, in place and out of place, for counts of 0, 1, around the
/// group's size and above 1000, even and uneven. Ranks: all. Throws: std::runtime_error that names the operation if a
/// result differs by one bit from the rank-order reference, if an input was written, or if a byte past an output
/// changed. Returns a digest of all results, which must be equal for all backends and differs between ranks.
std::uint64_t check_conformance(Communicator& communicator);

/// check_conformance() over subgroups: halves, reversed order, nested groups, and ranks that belong to no group.
std::uint64_t check_conformance_of_splits(Communicator& communicator);

/// The two checks for communicators that add in any order: with these inputs, every order gives the same sum.
std::uint64_t check_conformance_of_any_order(Communicator& communicator);
std::uint64_t check_conformance_of_splits_of_any_order(Communicator& communicator);

/// The operations of check_conformance with messages and parts on both sides of 64 KiB, with and without the 168 bytes
/// of a Gloo message that name the call.
std::uint64_t check_message_sizes(Communicator& communicator);

/// check_conformance() of the communicator and of its channels, each on a separate thread at the same time.
std::uint64_t check_conformance_of_channels(Communicator& communicator);

/// Exchanges messages of kLargeMessageBytes in a ring of all ranks, and in pairs that send to each other at once.
/// Ranks: all. Throws, and returns a digest, as check_conformance().
std::uint64_t check_large_exchanges(Communicator& communicator);

}  // namespace droptest::comm
