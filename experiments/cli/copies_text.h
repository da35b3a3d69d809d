// SPDX-License-Identifier: Apache-2.0
// Words on weights of which the ranks of a run had different copies.
#pragma once

#include <string>

namespace droptest::cli {

/// Whose copies were written, and how far apart they are at most; empty: all are equal. `pipeline`: stages of the run.
std::string copies_text(double largest_difference, int pipeline);

}  // namespace droptest::cli
