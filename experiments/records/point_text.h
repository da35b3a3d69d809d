// SPDX-License-Identifier: Apache-2.0
// A sweep point as people read it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace droptest::experiments {

/// A sweep point in short: "one bad link, tensor: 4". Values of labels (as records have them) by those, a loss process
/// as "loss: bernoulli loss_rate=5%", other values as JSON.
std::string point_text(const nlohmann::json& point, const nlohmann::json& labels);

/// "7", or "weights 7, data 7, network 8" where they differ. `seeds` as records have them.
std::string seeds_text(const nlohmann::json& seeds);

}  // namespace droptest::experiments
