// SPDX-License-Identifier: Apache-2.0
// The version of the numerics, which decides the results of a spec: part of the run id.
#pragma once

#include <string_view>

#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// The newest version that a spec can have.
inline constexpr int kNewestNumerics = 3;

/// A version of the numerics, and what in the spec has had other results since.
struct Numerics {
  int version = 1;
  std::string_view changed;  ///< words for people; empty for version 1
};

/// Of a resolved spec, as a function of what it asks for: the version of the last change on purpose that moves its
/// losses or times. So no record is taken for a result of other numerics, and a spec that no change concerns keeps its
/// id. numerics_version_test.cc has golden losses of each version.
Numerics numerics_of(const RunConfig& config);

}  // namespace droptest::experiments
