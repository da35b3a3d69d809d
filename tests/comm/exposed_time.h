// SPDX-License-Identifier: Apache-2.0
// The exposed communication of a rank over all traffic classes.
#pragma once

#include <numeric>

#include "comm/lossy/clock/time_model.h"

namespace droptest::comm {

/// The sum over the classes of `time`. Units: seconds.
inline double exposed_seconds(const VirtualTime& time) {
  return std::accumulate(time.exposed.begin(), time.exposed.end(), 0.0);
}

}  // namespace droptest::comm
