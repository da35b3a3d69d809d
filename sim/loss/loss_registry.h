// SPDX-License-Identifier: Apache-2.0
// Loss processes by name: the one list that a new process is added to.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sim/loss/loss_process.h"
#include "sim/parameters.h"

namespace droptest::sim {

/// One entry: the "model" of a spec, a line for `droptest list`, and how to make it.
struct LossProcessEntry {
  std::string_view model;
  std::string_view summary;  ///< the losses that it models, with its parameters
  std::unique_ptr<LossProcess> (*make)(const Parameters&);
};

/// All known processes, in the order in which they are listed.
const std::vector<LossProcessEntry>& loss_processes();

/// Makes the process that `parameters` describes: {"model": ..., and the model's own parameters}.
/// Throws: ConfigError for an unknown model (listing the known ones), an unknown, missing or out-of-range parameter.
std::unique_ptr<LossProcess> make_loss_process(const Parameters& parameters);

}  // namespace droptest::sim
