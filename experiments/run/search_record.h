// SPDX-License-Identifier: Apache-2.0
// search.json: the state of a search for a tolerable loss rate. docs/records.md is the format.
#pragma once

#include <string>
#include <string_view>

#include "experiments/run/threshold_search.h"
#include "experiments/spec/search_plan.h"

namespace droptest::experiments {

/// The path of the record: <out>/<name>/search.json.
std::string search_file(const std::string& out, std::string_view name);

std::string_view verdict_name(Verdict verdict);

/// Whether the file is there and has exactly this progress.
bool is_search_recorded(const std::string& out, const SearchPlan& plan, const SearchProgress& progress);

/// Checks the record against its schema (CheckError: a bug of ours) and writes it whole or not at all.
void write_search_record(const std::string& out, const SearchPlan& plan, const SearchProgress& progress);

}  // namespace droptest::experiments
