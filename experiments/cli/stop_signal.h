// SPDX-License-Identifier: Apache-2.0
// Ctrl-C, SIGTERM, SIGHUP (a terminal that is closed) and SIGUSR1 (sbatch --signal=USR1@600) as a request to stop
// between two steps of a long command.
#pragma once

namespace droptest::cli {

/// From now on the first signal is remembered; a second SIGINT or SIGTERM ends the program at once, and its runs with
/// it. A terminal that is closed sends several SIGHUP. SIGHUP and SIGUSR1 stay ignored where they are, as under nohup.
void catch_stop_signals();

/// Whether one came.
bool stop_requested();

}  // namespace droptest::cli
