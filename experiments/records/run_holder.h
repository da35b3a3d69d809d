// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "experiments/records/run_records.h"

namespace droptest::experiments {

/// The process that works on a run, as its lock and its records show it.
struct RunHolder {
  std::string name;  ///< "process 4711 on host node3", or "another process"
  /// Seconds since the process wrote a line, if it is on another machine, whose locks do not show here; absent: it
  /// holds the lock.
  std::optional<double> silent_seconds;
  /// Whether the process works. If it has been silent for more than ten minutes, that is unknown, and counts as ended.
  bool works() const;
  /// The holder in words: "process 4711 on host node3", or with the seconds of silence.
  std::string text() const;
};

/// The holder of a run; absent: none. A lock that a killed process of this machine left counts as none.
std::optional<RunHolder> holder_of(const RunDirectory& directory);

}  // namespace droptest::experiments
