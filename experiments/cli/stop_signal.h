// SPDX-License-Identifier: Apache-2.0
// Ctrl-C, SIGTERM, SIGHUP (a terminal that is closed) and SIGUSR1 (sbatch --signal=USR1@600) as a request to stop
// between two steps of a long command.
#pragma once

namespace droptest::cli {

/// From now on the first signal is remembered. A second SIGINT or SIGTERM ends the program at once, and its runs with
/// it. Further signals SIGHUP (a closing terminal sends several) and SIGUSR1 have no effect. These two stay ignored if
/// they were ignored before, as under nohup.
void catch_stop_signals();

/// Whether a signal came.
bool stop_requested();

/// Lets a command with records go on if nobody reads its output, as in `droptest run spec.json | head`.
void outlive_readers();

}  // namespace droptest::cli
