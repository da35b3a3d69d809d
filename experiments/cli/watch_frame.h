// SPDX-License-Identifier: Apache-2.0
// The screen of droptest watch.
#pragma once

#include <cstddef>
#include <string>

#include "experiments/watch/watched_runs.h"

namespace droptest::cli {

/// The runs as lines of text: the number of runs in each state, the runs that go on and those that ended last, and the
/// last anomalies. There are at most `rows` lines after the heading, each at most `columns` wide.
std::string watch_frame(const experiments::WatchedRuns& runs, std::size_t columns, std::size_t rows);

}  // namespace droptest::cli
