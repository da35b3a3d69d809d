// SPDX-License-Identifier: Apache-2.0
// A loss process in a spec's JSON -> the process.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/loss/loss_process.h"

namespace droptest::comm {

/// Writes every probability in `loss`, at any depth, as a fraction. `where` names the place of `loss` in messages. A
/// text that is no probability stays as it is, and its complete message is appended to `errors`.
nlohmann::json with_fractions(const nlohmann::json& loss, const std::string& where, std::vector<std::string>& errors);

/// Makes the process. A trace's file is read, and its hash written into `loss` as "sha256", so that the resolved spec
/// names the file's contents. Throws: ConfigError that names `where`: a wrong parameter, a file that cannot be read, is
/// no trace, or has another hash than the given one.
std::unique_ptr<sim::LossProcess> loss_from_json(nlohmann::json& loss, const std::string& where);

}  // namespace droptest::comm
