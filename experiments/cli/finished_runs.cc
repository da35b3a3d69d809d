// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/finished_runs.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <vector>

#include "sim/error.h"

namespace droptest::cli {

void say_unread(const std::string& text) { std::cerr << "droptest: warning: " << text << std::endl; }

void add_again_option(CLI::App& command, experiments::Again& again) {
  command.add_flag_callback(
      "--again", [&again] { again = experiments::Again::kYes; },
      "Run finished runs again that lack a record which the spec asks for (/record); their records stay until\n"
      "the new ones are complete");
}

void add_accept_option(CLI::App& command, experiments::Stopped& stopped) {
  command.add_flag_callback(
      "--accept-stopped", [&stopped] { stopped = experiments::Stopped::kAccept; },
      "Take runs that an alert stopped as ended: they are not run again, and are no failures");
}

void require_records(const experiments::SweepPlan& plan, const std::string& out) {
  std::vector<experiments::RunDirectory> lacking;
  std::vector<std::string> records;
  for (std::size_t i = 0; i < plan.runs.size(); ++i) {
    const experiments::PlannedRun& planned = plan.runs[i];
    const experiments::RunDirectory directory = experiments::run_directory(out, plan.name, planned.run.run_id);
    if (planned.same_as != i || !experiments::has_result(directory)) continue;
    // A repetition that is complete only has to be moved.
    if (experiments::has_result(experiments::RunDirectory{directory.again()})) continue;
    const std::vector<std::string> missing = experiments::missing_records(directory, planned.run);
    if (missing.empty()) continue;
    lacking.push_back(directory);
    for (const std::string& one : missing) {
      if (std::find(records.begin(), records.end(), one) == records.end()) records.push_back(one);
    }
  }
  if (lacking.empty()) return;
  std::string text;
  for (const std::string& one : records) text += (text.empty() ? "" : ", ") + one;
  throw ConfigError(lacking.front().path +
                    (lacking.size() == 1 ? "" : " and " + std::to_string(lacking.size() - 1) + " more") +
                    ": finished, but without records that the spec asks for: " + text +
                    "; --again runs those runs once more, from the start");
}

}  // namespace droptest::cli
