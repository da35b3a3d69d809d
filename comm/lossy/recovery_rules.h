// SPDX-License-Identifier: Apache-2.0
// The mean missing rate of a recovery, and combinations that have no meaning.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/lossy/network.h"

namespace droptest::comm {

/// Long-run fraction of data packets that stay missing in a half: the loss rate, or what its recovery leaves of it.
/// Nothing where no closed form is known. The second form is that of messages of so many packets.
std::optional<double> residual_rate(const HalfNetwork& half);
std::optional<double> residual_rate(const HalfNetwork& half, std::uint64_t packets);

/// An all-reduce, as far as its messages are concerned.
struct AllReduceSize {
  int ranks = 1;
  std::uint64_t elements = 0;
  std::uint64_t element_bytes = 4;
};

/// Why the messages of such an all-reduce would hardly ever get across by a retransmission without a budget: "takes ...
/// tries on average ..., want at most ...". Absent: they do, as those of smaller ones do then.
std::optional<std::string> endless_repetition(const ClassNetwork& network, const AllReduceSize& size);

/// A member of a class's network that has no meaning together with the others.
struct RecoveryRefusal {
  std::string pointer;  ///< within the class's network: "/recovery/hadamard"
  std::string reason;   ///< "got ..., want ..." or why not
};

/// All such members; empty where the recovery of the network has a meaning. The path is known.
std::vector<RecoveryRefusal> recovery_refusals(const ClassNetwork& network);

}  // namespace droptest::comm
