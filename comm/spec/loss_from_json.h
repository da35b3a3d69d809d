// SPDX-License-Identifier: Apache-2.0
// A loss process as a spec writes it -> the process.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/loss/loss_process.h"

namespace droptest::comm {

/// Writes every probability in `loss`, at any depth, as a fraction. `where` names the place of `loss` in messages.
/// What is no probability is left as it is, and its complete message appended to `errors`.
nlohmann::json with_fractions(const nlohmann::json& loss, const std::string& where, std::vector<std::string>& errors);

/// Makes the process. A trace's file is read, and its hash written into `loss` as "sha256", so that what was resolved
/// names the contents.
/// Throws: ConfigError that names `where`: a wrong parameter, a file that cannot be read, is no trace, or has another
/// hash than the one given.
std::unique_ptr<sim::LossProcess> loss_from_json(nlohmann::json& loss, const std::string& where);

}  // namespace droptest::comm
