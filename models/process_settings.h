// SPDX-License-Identifier: Apache-2.0
// Settings of a whole process, before it computes. Libraries must not; programs call these first in
// main().
#pragma once

namespace droptest::models {

/// Tells the C library to keep memory that was freed for the next call instead of giving it back to the system. oneDNN
/// allocates working memory in every GEMM; without this, each one waits for fresh pages.
void keep_freed_memory();

}  // namespace droptest::models
