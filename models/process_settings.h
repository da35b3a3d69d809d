// SPDX-License-Identifier: Apache-2.0
// What a program sets for its whole process before it computes. Libraries must not; programs call these first in
// main().
#pragma once

namespace droptest::models {

/// Tells the C library to keep memory that was freed for the next call instead of giving it back to the system. oneDNN
/// allocates working memory in every product; without this, each one waits for fresh pages.
void keep_freed_memory();

/// Lets OpenMP threads that wait for work sleep after some microseconds. By default they spin for milliseconds, and
/// where somebody else needs the core, a step takes many times as long. The OpenMP library reads its environment when
/// it is loaded, so this starts the program again with `argv` and the variables set; it does nothing where
/// OMP_WAIT_POLICY, GOMP_SPINCOUNT or KMP_BLOCKTIME is set already.
void let_waiting_threads_sleep(char** argv);

}  // namespace droptest::models
