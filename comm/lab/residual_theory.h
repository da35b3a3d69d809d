// SPDX-License-Identifier: Apache-2.0
// The expected survival and error of an all-reduce of a given size with recovery: the closed forms at the residual loss
// rate.
#pragma once

#include <cstdint>
#include <optional>

#include "comm/lab/collective_theory.h"
#include "comm/lossy/network.h"

namespace droptest::comm {

struct ExpectedAllReduce {
  std::optional<Survival> survival;  ///< absent if no closed form is known
  /// Absent if no closed form is known, and under error feedback, which depends on earlier calls.
  std::optional<double> nmse;
};

/// Only the residual loss rate of an element matters, since links are independent. The rate is equal for all elements
/// if every message is whole blocks of the parity code. A shorter last block loses less. Then the error, which is not
/// linear in the rate, has no closed form here, and neither has the survival over several hops, a product of rates.
/// Interleaving and the Hadamard transform move error without changing its energy.
ExpectedAllReduce expected_all_reduce(const ClassNetwork& network, int ranks, Inputs inputs, std::uint64_t elements,
                                      ElementType type, ReduceOp op = ReduceOp::kSum);

}  // namespace droptest::comm
