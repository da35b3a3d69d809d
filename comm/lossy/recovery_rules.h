// SPDX-License-Identifier: Apache-2.0
// The residual loss rate of a recovery, and combinations of recoveries that have no meaning.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/lossy/network.h"

namespace droptest::comm {

/// Long-run fraction of data packets that stay missing in a half, on links without an override (HalfNetwork::links):
/// the loss rate without a recovery, the residual rate with one. Absent if no closed form is known. The second form is
/// for messages of `packets` packets.
std::optional<double> residual_rate(const HalfNetwork& half);
std::optional<double> residual_rate(const HalfNetwork& half, std::uint64_t packets);

/// The size of an all-reduce.
struct AllReduceSize {
  int ranks = 1;
  std::uint64_t elements = 0;
  ElementType type = ElementType::kFloat32;
};

/// The reason why a retransmission without a budget would hardly ever deliver the messages of such an all-reduce:
/// "takes ... tries on average ..., want at most ...". Absent: it delivers these messages, and smaller ones, too.
std::optional<std::string> endless_repetition(const ClassNetwork& network, const AllReduceSize& size);

/// A member of a class's network that has no meaning together with the others.
struct RecoveryRefusal {
  std::string pointer;  ///< within the class's network: "/recovery/hadamard"
  std::string reason;   ///< "got ..., want ..." or another reason
};

/// All members of a class's network that have no meaning together with the others. Throws: ConfigError for a path with
/// an unknown name.
std::vector<RecoveryRefusal> recovery_refusals(const ClassNetwork& network);

}  // namespace droptest::comm
