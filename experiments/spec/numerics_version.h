// SPDX-License-Identifier: Apache-2.0
// The version of the numerics, which decides the results of a spec: part of the run id.
#pragma once

namespace droptest::experiments {

/// Each commit that changes results on purpose raises it, so that no record is taken for a result of other numerics.
/// Its test, numerics_version_test.cc, has the golden losses.
inline constexpr int kNumericsVersion = 1;

}  // namespace droptest::experiments
