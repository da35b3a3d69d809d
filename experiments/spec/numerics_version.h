// SPDX-License-Identifier: Apache-2.0
// The version of the numerics, which decides the results of a spec: part of the run id.
#pragma once

#include <string_view>

#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// The newest version that a spec can have.
inline constexpr int kNewestNumerics = 3;

/// A version of the numerics, and the part of the spec that has other results since that version.
struct Numerics {
  int version = 1;
  std::string_view changed;  ///< words for people; empty for version 1
};

/// The version of the last deliberate change of the numerics that moves the losses or times of a resolved spec. So no
/// record is taken for a result of other numerics, and a spec that no change concerns keeps its id.
/// numerics_version_test.cc has golden losses of each version.
Numerics numerics_of(const RunConfig& config);

}  // namespace droptest::experiments
