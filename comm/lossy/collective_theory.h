// SPDX-License-Identifier: Apache-2.0
// What an all-reduce under loss gives on average, in closed form.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "comm/lossy/network.h"

namespace droptest::comm {

/// What the ranks put in: zero-mean values that are independent from rank to rank, or the same values.
enum class Inputs : std::uint8_t { kIndependent, kIdentical };

/// One all-reduce, as far as its expectation depends on it. Only the loss rate of a process matters: links are
/// independent, and at one element each link contributes one packet. Bursts change the spread, not the mean.
struct LossyAllReduce {
  std::string_view path = "direct";
  int ranks = 2;
  double reduce_loss_rate = 0;
  double gather_loss_rate = 0;
  Fill reduce_fill = Fill::kZero;
  Fill gather_fill = Fill::kZero;
  Consistency consistency = Consistency::kPerReceiver;
  Inputs inputs = Inputs::kIndependent;
};

/// The case of a configured network.
LossyAllReduce all_reduce_case(const ClassNetwork& network, int ranks, Inputs inputs);

/// Mean fraction, over elements and ranks, that arrives in each half, own values included.
struct Survival {
  double reduce = 1;  ///< of the contributions to a result
  double gather = 1;  ///< of the results at a receiver
};
/// Nothing for a path without closed forms.
std::optional<Survival> expected_survival(const LossyAllReduce& all_reduce);

/// E|result - exact|^2 / E|exact|^2 over elements and ranks. Nothing where there is no closed form: `stale`, whose
/// error depends on the calls before.
std::optional<double> expected_nmse(const LossyAllReduce& all_reduce);

}  // namespace droptest::comm
