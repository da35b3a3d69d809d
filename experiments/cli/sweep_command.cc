// SPDX-License-Identifier: Apache-2.0
// droptest sweep
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "experiments/cli/commands.h"
#include "experiments/cli/device_choice.h"
#include "experiments/cli/finished_runs.h"
#include "experiments/cli/known_names.h"
#include "experiments/cli/marks_text.h"
#include "experiments/cli/outcome_text.h"
#include "experiments/cli/progress_display.h"
#include "experiments/cli/slurm_sweep.h"
#include "experiments/cli/spec_options.h"
#include "experiments/cli/stop_signal.h"
#include "experiments/cli/sweep_outcome.h"
#include "experiments/cli/watch_outputs.h"
#include "experiments/process/child_process.h"
#include "experiments/run/best_over.h"
#include "experiments/run/sweep_runner.h"
#include "experiments/training/run_device.h"

namespace droptest::cli {
namespace {

using experiments::Again;
using experiments::SweepProgress;
using experiments::SweepRun;

struct SweepCommandOptions {
  SpecOptions spec;
  std::string out = "results";
  int jobs = 0;  ///< 0: one for each core that this process may use
  std::string pin = "cores";
  experiments::IfBusy if_busy = experiments::IfBusy::kSkip;
  Again again = Again::kNo;
  experiments::Stopped stopped = experiments::Stopped::kRunAgain;
  bool quiet = false;
  SlurmSweepOptions slurm;
  WatchOutputOptions outputs;
};

/// The id of a run; if another point is the same run, also that point.
std::string run_text(const experiments::SweepPlan& plan, std::size_t i) {
  const experiments::PlannedRun& planned = plan.runs[i];
  if (planned.same_as == i) return planned.run.run_id;
  const experiments::PlannedRun& same = plan.runs[planned.same_as];
  const std::string point = point_text(plan, same);
  const std::string seeds = "seed " + seeds_text(same.seeds);
  if (point == point_text(plan, planned)) return planned.run.run_id + " (the run of " + seeds + ")";
  return planned.run.run_id + " (the run of " + point + (same.seeds == planned.seeds ? "" : ", " + seeds) + ")";
}

std::string summary_table(const experiments::SweepPlan& plan, const SweepProgress& progress) {
  const bool selects = !plan.best_over.empty();
  std::vector<std::vector<std::string>> rows = {{"point", "seed", "status", "validation loss"}};
  if (selects) rows.front().emplace_back("selection loss");
  rows.front().emplace_back("run");
  for (std::size_t i = 0; i < plan.runs.size(); ++i) {
    const nlohmann::json& summary = progress.runs[i].summary;
    if (summary.is_null()) continue;
    rows.push_back({point_text(plan, plan.runs[i]), seeds_text(plan.runs[i].seeds), status_text(summary),
                    loss_text(summary.at("validation").at("final_loss"))});
    if (selects) rows.back().push_back(loss_text(summary.at("validation").value("selection_loss", nlohmann::json())));
    rows.back().push_back(run_text(plan, i));
  }
  return table_text(rows);
}

/// A row for each point without the pointers of best_over: the values that won.
std::string best_table(const experiments::SweepPlan& plan, const SweepProgress& progress) {
  std::vector<nlohmann::json> summaries;
  for (const SweepRun& run : progress.runs) summaries.push_back(run.summary);
  std::vector<std::vector<std::string>> rows = {{"point", "best", "selection loss", "validation loss", "seeds"}};
  const experiments::PointNames names(plan.swept);
  for (const experiments::BestPoint& best : experiments::best_points(plan, summaries)) {
    const std::string point = names.text(best.point, best.labels);
    if (best.values.is_null()) {
      rows.push_back({point, "none: no value has a loss for each seed", "-", "-", "0"});
      continue;
    }
    std::vector<nlohmann::json> own;
    for (const std::size_t run : best.runs) own.push_back(summaries[run]);
    rows.push_back(
        {point, names.text(best.values, best.labels), loss_text(best.mean_selection_loss),
         loss_text(best.mean_validation_loss ? nlohmann::json(*best.mean_validation_loss) : nlohmann::json()),
         std::to_string(best.runs.size()) + marks_suffix(own)});
  }
  return "best by the mean selection loss over the seeds:\n" + table_text(rows);
}

/// The command that sweeps the same runs on this machine.
std::string local_command_of(const SweepCommandOptions& options) {
  std::string text = "droptest sweep " + options.spec.file;
  for (const std::string& assignment : options.spec.overrides) text += " --set '" + assignment + "'";
  if (options.out != SweepCommandOptions().out) text += " --out " + options.out;
  return text;
}

/// Submits the runs without a result as job arrays.
int sweep_by_slurm(const SweepCommandOptions& options) {
  experiments::FileHashes files;
  const experiments::SweepPlan plan = load_plan(options.spec, &files);
  if (plan.runs.front().run.config.command) {
    throw ConfigError(options.spec.file +
                      ": /command: got a program of your own with --slurm, which does not know what " +
                      "it needs; want the spec without --slurm, as in a batch script of your own");
  }
  if (options.again == Again::kNo) require_records(plan, options.out);
  if (!options.quiet) say_warnings(options.spec, plan);
  experiments::SubmissionOptions submission;
  submission.out = options.out;
  submission.again = options.again;
  submission.stopped = options.stopped;
  if (!options.quiet) submission.say_unread = say_unread;
  submission.if_busy = options.if_busy;
  SlurmSweepOptions slurm = options.slurm;
  slurm.local_command = local_command_of(options);
  return submit_sweep(plan, submission, slurm, options.quiet ? Verbosity::kQuiet : Verbosity::kNormal);
}

int sweep(const SweepCommandOptions& options) {
  if (options.slurm.chosen) return sweep_by_slurm(options);
  require_no_sbatch_options(options.slurm);
  experiments::FileHashes files;
  const experiments::SweepPlan plan = load_plan(options.spec, &files);
  if (options.again == Again::kNo) require_records(plan, options.out);
  experiments::SweepOptions sweep_options;
  sweep_options.files = &files;
  sweep_options.out = options.out;
  const experiments::RunConfig& demanding = experiments::most_demanding(plan.runs);
  experiments::require_run_device(demanding);
  if (!options.quiet) {
    say_warnings(options.spec, plan);
    say_device(plan.spec, demanding);
  }
  // A program may take all cores, or a GPU: only its user can ask for several at once.
  const int asked = options.jobs == 0 && demanding.command ? 1 : options.jobs;
  sweep_options.jobs = experiments::jobs_at_once(asked, demanding);
  using Pin = experiments::SweepOptions::Pin;
  sweep_options.pin = options.pin == "cores" ? Pin::kCores : Pin::kNone;
  sweep_options.if_busy = options.if_busy;
  sweep_options.again = options.again;
  sweep_options.stopped = options.stopped;
  if (!options.quiet) sweep_options.say_unread = say_unread;
  sweep_options.worker_command = {experiments::this_program(), "worker"};

  catch_stop_signals();
  outlive_readers();
  ProgressDisplay display(options.quiet ? DisplayMode::kQuiet : display_mode_of_stderr());
  const std::string folder = options.out + "/" + plan.name;
  WatchOutputs outputs(options.outputs, folder, folder + "/tensorboard");
  bool told = false;
  const SweepProgress progress = experiments::run_sweep(
      plan, sweep_options,
      [&](const SweepProgress& now) {
        if (!now.problem.empty() && !std::exchange(told, true)) {
          std::cerr << "droptest: error: " << now.problem << "; no more runs are started\n";
        }
        display.show(now);
        outputs.update();
      },
      [] { return stop_requested(); });
  display.close();
  outputs.finish();

  if (!options.quiet) {
    std::cout << summary_table(plan, progress);
    if (!plan.best_over.empty()) std::cout << best_table(plan, progress);
  }
  if (!options.quiet) print_program_warnings(plan, progress);
  print_failures(plan, progress);
  print_busy(plan, progress);
  if (!progress.problem.empty()) {
    std::cerr << "droptest: error: " << progress.problem << "; " << progress.ended() << " of " << plan.runs.size()
              << " runs in " << folder << " have ended; the same command continues with the others\n";
    return kExitFailedRun;
  }
  if (progress.busy() != 0 && !stop_requested()) {
    std::cerr << "droptest: " << progress.busy() << " of " << plan.runs.size() << " runs in " << folder
              << " are busy: other processes are at work on them; the same command takes what they leave\n";
    return progress.failed() == 0 ? kExitBusy : kExitFailedRun;
  }
  if (progress.ended() < plan.runs.size()) {
    std::cerr << "droptest: stopped: " << progress.ended() << " of " << plan.runs.size() << " runs are kept in "
              << folder << "; the same command continues with the others\n";
    return kExitInterrupted;
  }
  if (!options.quiet) {
    std::cout << plan.runs.size() << (plan.runs.size() == 1 ? " run" : " runs") << " in " << folder
              << "; next: droptest report " << folder << "\n";
  }
  return progress.failed() == 0 ? kExitSuccess : kExitFailedRun;
}

}  // namespace

void add_sweep_command(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("sweep", "Train all runs of a spec, several at once");
  const auto options = std::make_shared<SweepCommandOptions>();  // shared by CLI11's bindings and the action
  add_spec_options(*command, options->spec);
  add_out_option(*command, options->out);
  add_jobs_option(*command, options->jobs);
  command
      ->add_option("--pin", options->pin,
                   "cores: each run has cores of its own, unless more runs at once than cores are asked for;\n"
                   "none: the kernel places all threads")
      ->check(one_of({"cores", "none"}))
      ->capture_default_str();
  add_if_busy_option(*command, options->if_busy, {"wait", "skip", "fail"});
  add_again_option(*command, options->again);
  add_accept_option(*command, options->stopped);
  command->add_flag("--quiet", options->quiet, "Print only errors");
  add_watch_output_options(*command, options->outputs);
  add_slurm_options(*command, options->slurm);
  command->footer(
      "Runs that have their result already are not repeated, so a sweep that was stopped is continued by the same\n"
      "command. A run that fails is recorded, and the others go on; the exit code is then 1.\n\n"
      "Examples:\n"
      "  droptest sweep experiments/specs/quickstart.json\n"
      "  droptest sweep spec.json --jobs 8 --out /scratch/results --set /repeat/seeds=5\n"
      "  droptest sweep spec.json --slurm --array-limit 8 -- --partition=gpu --time=2:00:00");
  command->callback([options, &chosen] { chosen = [options] { return sweep(*options); }; });
}

}  // namespace droptest::cli
