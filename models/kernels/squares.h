// SPDX-License-Identifier: Apache-2.0
// Sums of squares, for norms.
#pragma once

#include <span>

#include "models/team.h"

namespace droptest::models {

/// The sum of the squares in double, in chunks whose sums are added in order. Determinism: the order depends on the
/// count alone.
template <class T>
double sum_of_squares(std::span<const T> values, const Team& team);

}  // namespace droptest::models
