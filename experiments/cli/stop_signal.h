// SPDX-License-Identifier: Apache-2.0
// Ctrl-C and SIGTERM as a request to stop between two steps of a long command.
#pragma once

namespace droptest::cli {

/// From now on the first signal is remembered; a second one ends the program at once, and its runs with it.
void catch_stop_signals();

/// Whether one came.
bool stop_requested();

}  // namespace droptest::cli
