// SPDX-License-Identifier: Apache-2.0
// Runs as metrics for OpenMetrics' readers, and for node_exporter's text collector. docs/watching.md.
#pragma once

#include <string>

#include "experiments/watch/watched_runs.h"

namespace droptest::experiments {

/// The state of the runs in the text format of OpenMetrics 1.0, without time stamps. Labels have the experiment, the
/// run, its point and its seed; also traffic classes and ranks, if a metric has them.
std::string open_metrics_text(const WatchedRuns& runs);

}  // namespace droptest::experiments
