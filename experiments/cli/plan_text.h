// SPDX-License-Identifier: Apache-2.0
// A plan as tables.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace droptest::cli {

/// The output of `droptest plan --json`.
struct PrintedPlan {
  nlohmann::json about;                              ///< all members but "runs"
  std::size_t runs = 0;                              ///< number of runs
  std::function<nlohmann::json(std::size_t i)> run;  ///< makes an element of "runs"
};

/// The text of a plan: each run, the memory of the largest one, and the time of those that are to do.
std::string plan_text(const PrintedPlan& plan);

}  // namespace droptest::cli
