// SPDX-License-Identifier: Apache-2.0
// The use of the machine by one rank.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "comm/metered_communicator.h"
#include "experiments/records/metrics.h"

namespace droptest::experiments {

/// Measures the rank's own thread, or its process if ranks are processes. Used on the rank's thread.
class RankUsageMeter {
 public:
  enum class Scope : std::uint8_t { kThread, kProcess };
  /// `device`: index of the rank's GPU; absent: it has none.
  RankUsageMeter(Scope scope, std::optional<int> device);

  /// The usage since the last call, or since the construction. `use`: the use of the rank's communicator so far.
  /// Throws: DeviceError.
  RankUsage take(const comm::CommunicatorUse& use);
  /// Memory in use on the rank's GPU: that of other programs now, and that of this process at its peak since the
  /// construction. Absent: not known. Throws: DeviceError.
  std::optional<std::uint64_t> device_peak_bytes() const;

 private:
  const Scope scope_;
  const std::optional<int> device_;
  const std::uint64_t device_total_bytes_;  ///< 0: not known
  std::chrono::steady_clock::time_point last_time_ = std::chrono::steady_clock::now();
  double last_cpu_seconds_;
  comm::CommunicatorUse last_use_;
};

}  // namespace droptest::experiments
