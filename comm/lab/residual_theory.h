// SPDX-License-Identifier: Apache-2.0
// What an all-reduce of a given size gives on average where links recover: the closed forms at what stays missing.
#pragma once

#include <cstdint>
#include <optional>

#include "comm/lab/collective_theory.h"
#include "comm/lossy/network.h"

namespace droptest::comm {

struct ExpectedAllReduce {
  std::optional<Survival> survival;  ///< nothing where no closed form is known
  std::optional<double> nmse;        ///< likewise, and with error feedback, whose error depends on the calls before
};

/// Only the rate at which an element stays missing matters, since links are independent. It is the same for all
/// elements where every part of the message is whole blocks of the parity code; a shorter last block loses less, and
/// then the error, which is not linear in the rate, has no closed form here. Interleaving and the Hadamard transform
/// move error without changing its energy.
ExpectedAllReduce expected_all_reduce(const ClassNetwork& network, int ranks, Inputs inputs, std::uint64_t elements,
                                      std::uint64_t element_bytes, ReduceOp op = ReduceOp::kSum);

}  // namespace droptest::comm
