// SPDX-License-Identifier: Apache-2.0
// Schedules as CSV files, in the form of torch.distributed.pipelining.
#pragma once

#include <string>
#include <string_view>

#include "models/pipeline/schedule.h"

namespace droptest::models {

/// Parses a schedule with a row for each rank and a cell for each action: stage, kind (F, I, W or B) and micro-batch,
/// as in "2F0". Two actions can share a cell, as in "(0F7;7B3)OVERLAP_F_B"; empty cells are ignored. `name` is the
/// file's name in errors. The result is not validated. Throws: ConfigError that names line and cell.
PipelineSchedule schedule_from_csv(std::string_view text, const std::string& name);

/// The CSV text of a schedule. The column of an action is the time at which it begins, if a whole backward pass takes
/// two units and every other action one. Two actions that share a cell are in the column of the first one.
std::string csv_of(const PipelineSchedule& schedule);

}  // namespace droptest::models
