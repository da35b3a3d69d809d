// SPDX-License-Identifier: Apache-2.0
// The schedule of a pipeline as a picture.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace droptest::cli {

/// The picture of the member `schedule` of experiments::layout_plan(): a line for each rank, a box for each action from
/// its begin to its end, with the number of its micro-batch; later chunks of a rank are darker.
std::string schedule_svg(const nlohmann::json& schedule);

}  // namespace droptest::cli
