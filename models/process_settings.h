// SPDX-License-Identifier: Apache-2.0
// Settings of the C library for a whole process.
#pragma once

namespace droptest::models {

/// Tells the C library to retain freed memory for later allocations instead of returning it to the system. oneDNN
/// allocates working memory in every GEMM; without this setting, each GEMM waits for fresh pages. Only main() may call
/// it, no library.
void keep_freed_memory();

/// Returns the freed memory that the C library retains to the system. Call it after one-time work, such as reading a
/// file of weights.
void return_freed_memory();

}  // namespace droptest::models
