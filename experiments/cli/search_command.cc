// SPDX-License-Identifier: Apache-2.0
// droptest search
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "experiments/cli/commands.h"
#include "experiments/cli/device_choice.h"
#include "experiments/cli/finished_runs.h"
#include "experiments/cli/marks_text.h"
#include "experiments/cli/outcome_text.h"
#include "experiments/cli/progress_display.h"
#include "experiments/cli/spec_options.h"
#include "experiments/cli/stop_signal.h"
#include "experiments/cli/watch_outputs.h"
#include "experiments/process/child_process.h"
#include "experiments/run/search_record.h"
#include "experiments/run/sweep_runner.h"
#include "experiments/run/threshold_search.h"
#include "experiments/spec/search_plan.h"
#include "experiments/spec/spec.h"
#include "experiments/training/run_device.h"

namespace droptest::cli {
namespace {

using experiments::RateJudgement;
using experiments::SearchProgress;
using experiments::SweepRun;
using experiments::Trial;
using experiments::TrialRequest;
using experiments::Verdict;

struct SearchCommandOptions {
  SpecOptions spec;
  std::string out = "results";
  int jobs = 0;  ///< 0: one for each core that this process may use
  experiments::IfBusy if_busy = experiments::IfBusy::kWait;
  bool quiet = false;
  WatchOutputOptions outputs;
};

std::string number_text(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

/// A rate in words: "5.2 %".
std::string rate_text(double rate) { return number_text("%.4g %%", 100 * rate); }

/// A percentage in words: "+1.250", "+4.120e+37" from a million on, or "-".
std::string percent_text(double percent) {
  if (!std::isfinite(percent)) return "-";
  return number_text(std::fabs(percent) < 1e6 ? "%+.3f" : "%+.3e", percent);
}

Trial trial_of(const SweepRun& run) {
  Trial trial;
  if (run.state == SweepRun::State::kFailed) {
    trial.status = Trial::Status::kFailed;
    trial.error = run.error;
  } else if (run.state == SweepRun::State::kFinished || run.state == SweepRun::State::kFoundFinished) {
    const nlohmann::json& loss = run.summary.at("validation").at("final_loss");
    const bool completed = run.summary.value("status", "") == "completed" && loss.is_number();
    trial.status = completed ? Trial::Status::kCompleted : Trial::Status::kDiverged;
    if (completed) trial.loss = loss.get<double>();
  }
  return trial;
}

/// The runs of one round as a sweep; two requests can mean the same run.
experiments::SweepPlan round_of(const experiments::SearchPlan& plan, const std::vector<TrialRequest>& requests) {
  experiments::SweepPlan round{plan.name(), plan.description(), plan.spec(), {}};
  std::map<std::string, std::size_t> by_id;
  for (const TrialRequest& request : requests) {
    round.runs.push_back(request.rate ? plan.at(*request.rate, request.repeat) : plan.lossless(request.repeat));
    experiments::PlannedRun& planned = round.runs.back();
    planned.same_as = by_id.try_emplace(planned.run.run_id, round.runs.size() - 1).first->second;
  }
  return round;
}

/// The summaries of the runs at each rate.
using SummariesOfRates = std::map<double, std::vector<nlohmann::json>>;

std::string judgements_table(const SearchProgress& progress, const SummariesOfRates& summaries) {
  std::vector<std::vector<std::string>> rows = {{"rate", "difference %", "from", "to", "seeds", "verdict"}};
  for (const auto& [rate, judgement] : progress.rates) {
    // The rate may have been trained ahead of the search without deciding anything.
    const auto trained = summaries.find(rate);
    if (trained == summaries.end()) continue;
    rows.push_back({rate_text(rate), percent_text(judgement.mean_percent), percent_text(judgement.low_percent),
                    percent_text(judgement.high_percent), std::to_string(judgement.trials.size()),
                    std::string(experiments::verdict_name(judgement.verdict)) + marks_suffix(trained->second)});
  }
  return table_text(rows);
}

std::string conclusion(const SearchProgress& progress) {
  std::string text;
  if (progress.threshold) text = "threshold " + rate_text(*progress.threshold) + ", between ";
  if (!progress.threshold) text = "threshold between ";
  text +=
      progress.surely_passes ? rate_text(*progress.surely_passes) + " (surely passes)" : "? (no rate surely passes)";
  text += " and ";
  text += progress.surely_fails ? rate_text(*progress.surely_fails) + " (surely fails)" : "? (no rate surely fails)";
  text += "; " + std::to_string(progress.runs) + " runs";
  if (!progress.remark.empty()) text += "; " + progress.remark;
  if (!progress.monotone) text += "; a rate fails below one that passes: the loss is no monotone curve here";
  return text + "\n";
}

/// Holds search.json while the search goes on; absent if waiting for it was interrupted.
std::optional<experiments::FileLock> hold_record(const SearchCommandOptions& options, const std::string& name) {
  const std::string path = experiments::search_file(options.out, name);
  if (options.if_busy == experiments::IfBusy::kWait) {
    return experiments::FileLock::wait_for(
        path + ".lock",
        [&](const std::string& holder) {
          if (options.quiet) return;
          std::cerr << "droptest: " << experiments::busy_text(path, holder) << "; waiting for it" << std::endl;
        },
        [] { return stop_requested(); });
  }
  std::optional<experiments::FileLock> lock =
      experiments::FileLock::try_take(path + ".lock", experiments::FileLock::Mode::kExclusive);
  if (!lock) throw experiments::BusyError(experiments::busy_text(path, experiments::lock_holder(path + ".lock")));
  return lock;
}

/// The whole search, if it needs no run that has not ended. `summaries` gets the summaries of its runs.
std::optional<SearchProgress> finished_search(const experiments::SearchPlan& plan, const std::string& out, int jobs,
                                              SummariesOfRates& summaries) {
  struct Unfinished {};
  const auto read_round = [&](const std::vector<TrialRequest>& requests) {
    const experiments::SweepPlan round = round_of(plan, requests);
    std::vector<Trial> trials;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const auto folder = experiments::run_directory(out, plan.name(), round.runs[i].run.run_id);
      if (!experiments::is_settled(folder, round.runs[i].run, experiments::Again::kNo)) throw Unfinished();
      const std::optional<nlohmann::json> summary = experiments::read_summary(folder);
      if (!summary) throw Unfinished();  // another process runs it again
      SweepRun run;
      run.state = SweepRun::State::kFoundFinished;
      run.summary = *summary;
      trials.push_back(trial_of(run));
      if (requests[i].rate) summaries[*requests[i].rate].push_back(run.summary);
    }
    return trials;
  };
  try {
    return search_threshold(plan.settings(), jobs, read_round, [](const SearchProgress&) {});
  } catch (const Unfinished&) {
    summaries.clear();
    return std::nullopt;
  }
}

int search(const SearchCommandOptions& options) {
  experiments::FileHashes files;
  const experiments::Spec spec = experiments::read_spec(options.spec.file, options.spec.overrides);
  (void)experiments::plan_sweep(spec);
  const experiments::SearchPlan plan(spec, &files);
  experiments::SweepOptions sweep_options;
  sweep_options.files = &files;
  sweep_options.out = options.out;
  const experiments::RunConfig twin = plan.lossless(0).run.config;
  experiments::require_run_device(twin);
  if (!options.quiet) say_device(plan.spec(), twin);
  sweep_options.jobs = experiments::jobs_at_once(options.jobs, twin);
  sweep_options.worker_command = {experiments::this_program(), "worker"};
  sweep_options.if_busy = options.if_busy;
  if (!options.quiet) sweep_options.say_unread = say_unread;

  catch_stop_signals();
  outlive_readers();
  SummariesOfRates summaries;
  std::optional<SearchProgress> finished = finished_search(plan, options.out, sweep_options.jobs, summaries);
  // A record that is complete needs no lock: its folder may be read-only.
  std::optional<experiments::FileLock> record;
  if (!finished || !experiments::is_search_recorded(options.out, plan, *finished)) {
    record = hold_record(options, plan.name());
    if (!record) return kExitInterrupted;
  }
  ProgressDisplay display(options.quiet ? DisplayMode::kQuiet : display_mode_of_stderr());
  const std::string folder = options.out + "/" + plan.name();
  WatchOutputs outputs(options.outputs, folder, folder + "/tensorboard");
  const auto run_round = [&](const std::vector<TrialRequest>& requests) {
    const experiments::SweepProgress done = experiments::run_planned(
        round_of(plan, requests), sweep_options,
        [&](const experiments::SweepProgress& now) {
          display.show(now);
          outputs.update();
        },
        [] { return stop_requested(); });
    display.close();
    if (!done.problem.empty()) throw std::runtime_error(done.problem + "; the same command continues the search");
    std::vector<Trial> trials;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      trials.push_back(trial_of(done.runs[i]));
      if (requests[i].rate) summaries[*requests[i].rate].push_back(done.runs[i].summary);
    }
    return trials;
  };
  std::map<double, std::size_t> told;
  const auto on_change = [&](const SearchProgress& now) {
    if (record) experiments::write_search_record(options.out, plan, now);
    for (const auto& [rate, judgement] : now.rates) {
      if (options.quiet || judgement.verdict == Verdict::kNotJudged || told[rate] == judgement.trials.size()) continue;
      told[rate] = judgement.trials.size();
      std::cerr << "rate " << rate_text(rate) << ": " << percent_text(judgement.mean_percent)
                << " % of the lossless loss [" << percent_text(judgement.low_percent) << ", "
                << percent_text(judgement.high_percent) << "], " << experiments::verdict_name(judgement.verdict) << "\n"
                << std::flush;
    }
  };
  if (finished) on_change(*finished);
  const SearchProgress found =
      finished ? *finished : search_threshold(plan.settings(), sweep_options.jobs, run_round, on_change);
  outputs.finish();

  if (!options.quiet) {
    std::cout << judgements_table(found, summaries) << conclusion(found) << "the record is " << folder
              << "/search.json; next: droptest report " << folder << "\n";
  }
  if (found.status == SearchProgress::Status::kFailed) {
    std::cerr << "droptest: error: " << found.remark << "\n";
    return kExitFailedRun;
  }
  if (found.status == SearchProgress::Status::kStopped) {
    std::cerr << "droptest: " << found.remark << "\n";
    return kExitInterrupted;
  }
  return kExitSuccess;
}

}  // namespace

void add_search_command(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("search", "Find the highest loss rate that training tolerates");
  const auto options = std::make_shared<SearchCommandOptions>();  // shared by CLI11's bindings and the action
  add_spec_options(*command, options->spec);
  add_out_option(*command, options->out);
  add_jobs_option(*command, options->jobs);
  add_if_busy_option(*command, options->if_busy, {"wait", "fail"});
  add_watch_output_options(*command, options->outputs);
  command->add_flag("--quiet", options->quiet, "Print only errors");
  command->footer(
      "Bisection over paired runs: each rate has the seeds of the lossless twin. The spec's `search` section says "
      "what\n"
      "is searched (docs/specs.md); its members have defaults. Runs that have their result already are not "
      "repeated.\n\n"
      "Examples:\n"
      "  droptest search experiments/specs/threshold.json\n"
      "  droptest search spec.json --set /search/tolerance_percent=2 --set /search/high=20%");
  command->callback([options, &chosen] { chosen = [options] { return search(*options); }; });
}

}  // namespace droptest::cli
