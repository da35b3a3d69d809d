// SPDX-License-Identifier: Apache-2.0
// Schedules as CSV files, in the form of torch.distributed.pipelining.
#pragma once

#include <string>
#include <string_view>

#include "models/pipeline/schedule.h"

namespace droptest::models {

/// A row for each rank, a cell for each action: stage, kind (F, I, W or B) and micro-batch, as in "2F0". Two actions
/// share a cell as in "(0F7;7B3)OVERLAP_F_B"; empty cells mean nothing. `name` is the file's, for errors. The result is
/// not yet validated. Throws: ConfigError that names line and cell.
PipelineSchedule schedule_from_csv(std::string_view text, const std::string& name);

/// The same form. The column of an action is the time at which it begins, where each kind takes one unit, and a whole
/// backward pass two.
std::string csv_of(const PipelineSchedule& schedule);

}  // namespace droptest::models
