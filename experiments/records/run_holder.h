// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "experiments/records/run_records.h"

namespace droptest::experiments {

/// The process that works on a run, as its lock and its records show it.
struct RunHolder {
  std::string name;  ///< "process 4711 on host node3", or "another process"
  /// Seconds since it wrote a line, where it is on another machine whose locks do not show here; absent: it holds the
  /// lock.
  std::optional<double> silent_seconds;
  /// Where it has been silent for more than ten minutes, nobody knows whether it works; counted as one that ended.
  bool works() const;
  /// "process 4711 on host node3", or with the seconds of silence.
  std::string text() const;
};

/// Absent: nobody does; a lock that a killed process of this machine left counts as none.
std::optional<RunHolder> holder_of(const RunDirectory& directory);

}  // namespace droptest::experiments
