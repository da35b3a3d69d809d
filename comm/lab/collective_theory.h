// SPDX-License-Identifier: Apache-2.0
// The expected survival and error of an all-reduce under loss: closed forms, or an exact computation over the path's
// hops.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "comm/communicator.h"
#include "comm/lossy/network.h"

namespace droptest::comm {

/// The inputs of the ranks: zero-mean values that are independent from rank to rank, or the same values on all ranks.
enum class Inputs : std::uint8_t { kIndependent, kIdentical };

/// The parameters of the expectation of one all-reduce. Only the loss rate of a process matters: links are independent,
/// and at one element each link contributes one packet. Bursts change the spread, not the mean.
struct LossyAllReduce {
  std::string_view path = "direct";
  int ranks = 2;
  double reduce_loss_rate = 0;
  double gather_loss_rate = 0;
  Fill reduce_fill = Fill::kZero;
  Fill gather_fill = Fill::kZero;
  Consistency consistency = Consistency::kPerReceiver;
  Inputs inputs = Inputs::kIndependent;
  int group_ranks = 0;           ///< ranks of one group, on a path with groups
  ReduceOp op = ReduceOp::kSum;  ///< a sum or a mean
};

/// The case of a configured network.
LossyAllReduce all_reduce_case(const ClassNetwork& network, int ranks, Inputs inputs, ReduceOp op = ReduceOp::kSum);

/// Mean fraction of arrived values in each half, over elements and ranks, own values included.
struct Survival {
  double reduce = 1;  ///< share of the contributions to a result
  double gather = 1;  ///< share of the results at a receiver
};
/// Absent for a path without closed forms and hops. Throws: ConfigError for an unknown path.
std::optional<Survival> expected_survival(const LossyAllReduce& all_reduce);

/// E|result - exact|^2 / E|exact|^2 over elements and ranks. Absent for `stale`, because its error depends on earlier
/// calls, and for count_rescale over so many ranks that the distribution of the counts would take minutes.
std::optional<double> expected_nmse(const LossyAllReduce& all_reduce);

}  // namespace droptest::comm
