// SPDX-License-Identifier: Apache-2.0
// Settings of the C library for a whole process.
#pragma once

namespace droptest::models {

/// Tells the C library to keep memory that was freed for the next call instead of giving it back to the system. oneDNN
/// allocates working memory in every GEMM; without this, each one waits for fresh pages. For main(): libraries must
/// not.
void keep_freed_memory();

/// Gives the freed memory that the C library keeps back to the system: after work that is done once, such as a file of
/// weights.
void return_freed_memory();

}  // namespace droptest::models
