// SPDX-License-Identifier: Apache-2.0
// Words on weights of which the ranks of a run had different copies.
#pragma once

#include <string>

namespace droptest::cli {

/// The ranks whose copies were written, and the largest difference; empty: all are equal. `pipeline`: the run's stages.
std::string copies_text(double largest_difference, int pipeline);

}  // namespace droptest::cli
