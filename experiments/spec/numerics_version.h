// SPDX-License-Identifier: Apache-2.0
// Which numbers a spec gives: part of the run id.
#pragma once

namespace droptest::experiments {

/// Raised by each commit that moves results on purpose, so that no record is taken for a result of other numerics. Its
/// test, numerics_version_test.cc, has the golden losses.
inline constexpr int kNumericsVersion = 1;

}  // namespace droptest::experiments
