// SPDX-License-Identifier: Apache-2.0
// One value for all ranks from the values that each computes for itself.
#pragma once

#include <string_view>

#include "comm/communicator.h"

namespace droptest::experiments {

/// The mean over ranks, the same on every rank; exactly the value where all ranks have the same one, and not finite
/// where any rank's value is not. Ranks: all. Traffic is of class control.
double agree_on_mean(double value, comm::Communicator& group, std::string_view name);

}  // namespace droptest::experiments
