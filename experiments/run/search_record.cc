// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/search_record.h"

#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "experiments/records/run_records.h"
#include "experiments/schema/schema_kinds.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

nlohmann::json rate_or_null(const std::optional<double>& rate) {
  return rate ? nlohmann::json(*rate) : nlohmann::json(nullptr);
}

std::string_view trial_status_name(Trial::Status status) {
  switch (status) {
    case Trial::Status::kNotRun:
      return "not_run";
    case Trial::Status::kCompleted:
      return "completed";
    case Trial::Status::kDiverged:
      return "diverged";
    case Trial::Status::kFailed:
      return "failed";
  }
  DROPTEST_CHECK(false, "unknown status of a trial");
}

nlohmann::json trial_json(const PlannedRun& planned, const Trial& trial) {
  return {
      {"run_id", planned.run.run_id},
      {"seed", planned.seeds.network},
      {"status", trial_status_name(trial.status)},
      {"loss", trial.status == Trial::Status::kCompleted ? comm::finite_or_null(trial.loss) : nlohmann::json(nullptr)}};
}

nlohmann::json settings_json(const SearchSettings& settings) {
  return {{"pointer", settings.pointer},
          {"low", settings.low},
          {"high", settings.high},
          {"tolerance_percent", settings.tolerance_percent},
          {"resolution", settings.resolution},
          {"confidence", settings.confidence},
          {"seeds", settings.seeds},
          {"max_seeds", settings.max_seeds},
          {"max_runs", settings.max_runs}};
}

nlohmann::json judgement_json(const SearchPlan& plan, const SearchProgress& progress, const RateJudgement& judgement) {
  nlohmann::json runs = nlohmann::json::array();
  for (const auto& [repeat, trial] : judgement.trials) {
    nlohmann::json run = trial_json(plan.at(judgement.rate, repeat), trial);
    const auto twin = progress.twins.find(repeat);
    const bool paired = trial.status == Trial::Status::kCompleted && twin != progress.twins.end() &&
                        twin->second.status == Trial::Status::kCompleted;
    run["difference_percent"] =
        paired ? comm::finite_or_null(100 * (trial.loss / twin->second.loss - 1)) : nlohmann::json(nullptr);
    runs.push_back(std::move(run));
  }
  const bool judged = judgement.verdict != Verdict::kNotJudged;
  const auto percent = [judged](double value) {
    return judged ? comm::finite_or_null(value) : nlohmann::json(nullptr);
  };
  return {{"rate", judgement.rate},
          {"verdict", verdict_name(judgement.verdict)},
          {"pairs", judgement.pairs},
          {"mean_percent", percent(judgement.mean_percent)},
          {"low_percent", percent(judgement.low_percent)},
          {"high_percent", percent(judgement.high_percent)},
          {"runs", std::move(runs)}};
}

std::string_view search_status_name(SearchProgress::Status status) {
  switch (status) {
    case SearchProgress::Status::kSearching:
      return "searching";
    case SearchProgress::Status::kFound:
      return "found";
    case SearchProgress::Status::kLowFails:
      return "low_fails";
    case SearchProgress::Status::kHighPasses:
      return "high_passes";
    case SearchProgress::Status::kBudgetSpent:
      return "budget_spent";
    case SearchProgress::Status::kStopped:
      return "stopped";
    case SearchProgress::Status::kFailed:
      return "failed";
  }
  DROPTEST_CHECK(false, "unknown status of a search");
}

nlohmann::json search_json(const SearchPlan& plan, const SearchProgress& progress) {
  nlohmann::json twins = nlohmann::json::array();
  for (const auto& [repeat, trial] : progress.twins) twins.push_back(trial_json(plan.lossless(repeat), trial));
  nlohmann::json rates = nlohmann::json::array();
  for (const auto& [rate, judgement] : progress.rates) rates.push_back(judgement_json(plan, progress, judgement));
  return {{"schema_version", 1},
          {"name", plan.name()},
          {"description", plan.description()},
          {"spec", plan.spec()},
          {"settings", settings_json(plan.settings())},
          {"status", search_status_name(progress.status)},
          {"remark", progress.remark},
          {"threshold", rate_or_null(progress.threshold)},
          {"interval", {{"low", rate_or_null(progress.surely_passes)}, {"high", rate_or_null(progress.surely_fails)}}},
          {"monotone", progress.monotone},
          {"runs", progress.runs},
          {"twins", std::move(twins)},
          {"rates", std::move(rates)}};
}

}  // namespace

std::string search_file(const std::string& out, std::string_view name) {
  return out + "/" + std::string(name) + "/search.json";
}

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kNotJudged:
      return "not_judged";
    case Verdict::kPasses:
      return "passes";
    case Verdict::kFails:
      return "fails";
    case Verdict::kUndecided:
      return "undecided";
  }
  DROPTEST_CHECK(false, "unknown verdict");
}

bool is_search_recorded(const std::string& out, const SearchPlan& plan, const SearchProgress& progress) {
  try {
    return comm::load_json(search_file(out, plan.name())) == search_json(plan, progress);
  } catch (const ConfigError&) {
    return false;
  }
}

void write_search_record(const std::string& out, const SearchPlan& plan, const SearchProgress& progress) {
  write_record(SchemaKind::kSearch, search_file(out, plan.name()), search_json(plan, progress));
}

}  // namespace droptest::experiments
