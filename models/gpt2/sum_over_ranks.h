// SPDX-License-Identifier: Apache-2.0
// The sums over ranks of a model on the host, in the element type of its messages.
#pragma once

#include <span>

#include "comm/communicator.h"
#include "models/gpt2/execution.h"

namespace droptest::models {

/// data = the ranks' sum. With messages of bfloat16 each rank's part is rounded before it is sent, and so is what
/// arrives. Ranks: all; one all_reduce.
template <class T>
void sum_over_ranks(const Execution& execution, std::span<T> data, const comm::Message& message);

}  // namespace droptest::models
