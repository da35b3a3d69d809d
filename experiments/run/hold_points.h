// SPDX-License-Identifier: Apache-2.0
// Named points at which a test holds a running program (docs/ci.md, "Tests that interfere with a running program").
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "comm/clock.h"
#include "comm/rendezvous/launch_environment.h"

namespace droptest::experiments {

/// The points are `step-N`, before step N of a run; `forward-N`, after each forward pass of step N; and `all-reduce`,
/// before the measurements of `droptest doctor`.
/// While the folder has a file with the name of a point, each rank that comes to that point creates an empty file
/// `<point>.rank-<rank>.pid-<process>`, and waits until the file of the point is gone.
/// Thread safety: all methods may be called from any thread.
class HoldPoints {
 public:
  /// The hold points of the folder that the variable DROPTEST_HOLD_FOLDER names; absent if the variable is not set.
  /// `clock` measures all waits; borrowed. Throws: ConfigError if there is no such folder, or if a file in it names no
  /// point.
  static std::optional<HoldPoints> of(const comm::Environment& environment,
                                      const comm::Clock& clock = comm::steady_clock());

  /// Returns at once if the folder has no file of the point. Throws: ConfigError after ten minutes, and if the rank
  /// cannot create its file.
  void wait_before_step(int rank, std::uint64_t step) const;
  void wait_after_forward(int rank, std::uint64_t step) const;
  void wait_before_all_reduce(int rank) const;

 private:
  HoldPoints(std::string folder, const comm::Clock& clock);
  void wait_at(const std::string& point, int rank) const;

  std::string folder_;
  const comm::Clock* clock_;
};

}  // namespace droptest::experiments
