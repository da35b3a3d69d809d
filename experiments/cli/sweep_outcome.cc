// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/sweep_outcome.h"

#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "experiments/cli/outcome_text.h"
#include "experiments/files/file_lock.h"

namespace droptest::cli {

using experiments::SweepRun;

void print_failures(const experiments::SweepPlan& plan, const experiments::SweepProgress& progress) {
  for (std::size_t i = 0; i < plan.runs.size(); ++i) {
    const SweepRun& run = progress.runs[i];
    if (run.state != SweepRun::State::kFailed) continue;
    std::cerr << "droptest: error: run " << plan.runs[i].run.run_id << " (" << point_text(plan, plan.runs[i])
              << ", seed " << seeds_text(plan.runs[i].seeds) << ") failed: " << run.error << "\n";
  }
}

void print_busy(const experiments::SweepPlan& plan, const experiments::SweepProgress& progress) {
  for (std::size_t i = 0; i < plan.runs.size(); ++i) {
    const SweepRun& run = progress.runs[i];
    if (run.state != SweepRun::State::kBusy || run.same_as != i) continue;
    std::cerr << "droptest: run "
              << experiments::busy_text(plan.runs[i].run.run_id + " (" + point_text(plan, plan.runs[i]) + ", seed " +
                                            seeds_text(plan.runs[i].seeds) + ")",
                                        run.holder)
              << "\n";
  }
}

void print_program_warnings(const experiments::SweepPlan& plan, const experiments::SweepProgress& progress) {
  std::map<std::string, std::size_t> runs;
  for (std::size_t i = 0; i < plan.runs.size(); ++i) {
    const SweepRun& run = progress.runs[i];
    if (run.same_as != i || run.summary.is_null() || !plan.runs[i].run.config.command) continue;
    for (const nlohmann::json& warning : run.summary.value("warnings", nlohmann::json::array())) {
      if (warning.at("pointer") == "/command") ++runs[warning.at("message").get<std::string>()];
    }
  }
  for (const auto& [message, count] : runs) {
    std::cerr << "droptest: warning: " << message << " (" << count << (count == 1 ? " run" : " runs") << ")\n";
  }
}

}  // namespace droptest::cli
