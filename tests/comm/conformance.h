// SPDX-License-Identifier: Apache-2.0
// The contract of every backend, checked on one rank against references that each rank computes alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/communicator.h"
#include "tests/sanitizers.h"

namespace droptest::comm {

/// Bytes of a message of which a quarter is more than Gloo buffers of a rank's sends. ThreadSanitizer takes many times
/// as long for each byte; with it, connections and Gloo buffer parts of it, but not all.
inline constexpr std::size_t kLargeMessageBytes = std::size_t{kThreadSanitizer ? 20 : 80} << 20;

/// Calls every operation for float, double and uint64, in place and out of place, for counts of 0, 1, around the
/// group's size and above 1000, even and uneven. Ranks: all. Throws: std::runtime_error that names the operation where
/// a result differs by one bit from the rank-order reference, an input was written, or a byte past an output changed.
/// Returns a digest of all results, which must be equal for all backends and differs between ranks.
std::uint64_t check_conformance(Communicator& communicator);

/// The same over subgroups: halves, reversed order, nested, and ranks that belong to none.
std::uint64_t check_conformance_of_splits(Communicator& communicator);

/// The same two for communicators that add in an order of their own: with these inputs every order gives one sum.
std::uint64_t check_conformance_of_any_order(Communicator& communicator);
std::uint64_t check_conformance_of_splits_of_any_order(Communicator& communicator);

/// The operations of check_conformance with messages and parts on both sides of 64 KiB, with and without the 168 bytes
/// of a Gloo message that name the call.
std::uint64_t check_message_sizes(Communicator& communicator);

/// check_conformance of the communicator and of its channels, on a thread each at the same time.
std::uint64_t check_conformance_of_channels(Communicator& communicator);

/// Exchanges of kLargeMessageBytes: a ring of all ranks, and pairs that send to each other at once. Ranks: all. Throws,
/// and returns a digest, as above.
std::uint64_t check_large_exchanges(Communicator& communicator);

}  // namespace droptest::comm
