// SPDX-License-Identifier: Apache-2.0
// The gradient norm, computed independently of the optimizer.
#pragma once

#include <cmath>
#include <span>

#include "comm/communicator.h"
#include "models/gpt2/gpt2_messages.h"

namespace droptest::models {

/// The square root of the total of the ranks' sums of squares, equal on every rank. Ranks: all.
inline double norm_over_ranks(double squares, comm::Communicator& tensor_group) {
  tensor_group.all_reduce(std::span<double>(&squares, 1), comm::ReduceOp::kSum, Gpt2Messages::gradient_squares());
  return std::sqrt(squares);
}

}  // namespace droptest::models
