// SPDX-License-Identifier: Apache-2.0
// Ctrl-C, SIGTERM, SIGHUP (a terminal that is closed) and SIGUSR1 (sbatch --signal=USR1@600) as a request to stop
// between two steps of a long command.
#pragma once

namespace droptest::cli {

/// From now on the first signal is remembered; a second SIGINT or SIGTERM ends the program at once, and its runs with
/// it. Further ones of SIGHUP, of which a closing terminal sends several, and SIGUSR1 do nothing. These two stay
/// ignored if they were ignored before, as under nohup.
void catch_stop_signals();

/// Whether one came.
bool stop_requested();

}  // namespace droptest::cli
