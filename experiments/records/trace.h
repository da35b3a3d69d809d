// SPDX-License-Identifier: Apache-2.0
// trace.json: the profiled steps of a run in Chrome's trace event format. docs/profiling.md is the format.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace droptest::experiments {

/// The trace of all ranks from the spans of each (StepProfile::take_recording()). A collective waits from its begin on
/// this rank until the last rank of its group has begun it, and a receive until its sender has; the rest of its time is
/// transfer. For a call that was started, both are parts of its wait; the time between start and wait that the rank
/// spends in no other call is its overlap with computation. `run`: facts of the run, which the trace carries.
nlohmann::json trace_document(const std::vector<nlohmann::json>& ranks, const nlohmann::json& run);

}  // namespace droptest::experiments
