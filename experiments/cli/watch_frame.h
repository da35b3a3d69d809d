// SPDX-License-Identifier: Apache-2.0
// The screen of droptest watch.
#pragma once

#include <cstddef>
#include <string>

#include "experiments/watch/watched_runs.h"

namespace droptest::cli {

/// The runs as lines of text: how many are in which state, the runs that go on and those that ended last, and the last
/// anomalies. Lines are at most `columns` wide, and there are at most `rows`, but for the heading.
std::string watch_frame(const experiments::WatchedRuns& runs, std::size_t columns, std::size_t rows);

}  // namespace droptest::cli
