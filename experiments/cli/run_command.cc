// SPDX-License-Identifier: Apache-2.0
// droptest run, and the hidden `worker` that runs one folder's run for it and for sweeps.
#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "comm/json/json_text.h"
#include "comm/rendezvous/launch_environment.h"
#include "experiments/cli/commands.h"
#include "experiments/cli/device_choice.h"
#include "experiments/cli/finished_runs.h"
#include "experiments/cli/number_options.h"
#include "experiments/cli/run_one.h"
#include "experiments/cli/spec_options.h"
#include "experiments/cli/stop_signal.h"
#include "experiments/process/child_process.h"
#include "experiments/run/execute_run.h"
#include "sim/error.h"

namespace droptest::cli {
namespace {

using experiments::Again;
using experiments::ExecuteOptions;
using experiments::IfBusy;
using experiments::RunDirectory;

struct RunOptions {
  SpecOptions spec;
  std::size_t number = 0;  ///< number of the run, from 1; 0: the spec's only one
  std::string out = "results";
  RunManner how;
};

struct WorkerOptions {
  std::string directory;
  std::string point = "{}";
  ExecuteOptions::Lock lock = ExecuteOptions::Lock::kTake;
  std::string labels = "[]";
  std::string warnings = "[]";
  std::string files = "[]";
  std::uint64_t states_not_left = 0;
};

/// The plan with only the requested run.
experiments::SweepPlan plan_of_one(const RunOptions& options, experiments::FileHashes& files) {
  experiments::SweepPlan plan = load_plan(options.spec, &files);
  const std::size_t runs = plan.runs.size();
  if (options.number == 0 && runs > 1) {
    throw ConfigError(options.spec.file + ": asks for " + std::to_string(runs) + " runs; use: droptest sweep " +
                      options.spec.file + ", or --run 1 to --run " + std::to_string(runs) + " for one of them");
  }
  if (options.number > runs) {
    throw ConfigError(options.spec.file + ": --run: got " + std::to_string(options.number) + ", want 1 to " +
                      std::to_string(runs) + ", the runs that it asks for");
  }
  experiments::PlannedRun chosen = std::move(plan.runs[options.number == 0 ? 0 : options.number - 1]);
  chosen.same_as = 0;
  plan.points = 1;
  plan.warnings.clear();
  for (const experiments::Warning& warning : chosen.run.warnings) plan.warnings.push_back({warning, 1});
  plan.runs.clear();
  plan.runs.push_back(std::move(chosen));
  return plan;
}

int run(const RunOptions& options) {
  experiments::FileHashes files;
  const experiments::SweepPlan plan = plan_of_one(options, files);
  const experiments::PlannedRun& planned = plan.runs.front();
  const RunDirectory directory = experiments::run_directory(options.out, plan.name, planned.run.run_id);
  // The ranks under a launcher decide together, once they are connected.
  if (options.how.again == Again::kNo && !is_launched(planned.run.config)) require_records(plan, options.out);
  const auto say_first = [&] {
    say_warnings(options.spec, plan);
    say_device(plan.spec, planned.run.config);
  };
  return run_one(planned, directory, files, options.how, say_first);
}

int work(const WorkerOptions& options) {
  const RunDirectory directory{options.directory};
  experiments::ResolvedRun resolved = experiments::resolve(comm::load_json(directory.spec()), directory.spec());
  resolved.warnings = experiments::warnings_from_json(comm::parse_json(options.warnings, "--warnings"));
  resolved.labels = comm::parse_json(options.labels, "--labels");
  experiments::FileHashes files;
  files.remember(comm::parse_json(options.files, "--files"));
  ExecuteOptions execute{comm::parse_json(options.point, "--point"), worker_command(), kExitUserError, &files};
  execute.lock = options.lock;
  execute.states_not_left = options.states_not_left;
  if ((resolved.config.checkpoint || resolved.config.command) &&
      !comm::launch_environment(comm::process_environment())) {
    catch_stop_signals();
    execute.stop_requested = [] { return stop_requested(); };
    if (resolved.config.command) experiments::end_after_parent();
  }
  execute.say_problem = [](const std::string& text) { std::cerr << "droptest: " << text << std::endl; };
  experiments::execute_run(resolved, directory, execute);
  return kExitSuccess;
}

}  // namespace

void add_run_command(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("run", "Train one run and write its records");
  const auto options = std::make_shared<RunOptions>();  // shared by CLI11's bindings and the action
  add_spec_options(*command, options->spec);
  add_integer(*command, "--run", options->number,
              "Which run of a spec that asks for several, from 1, in the order of sweep", {1, experiments::kMaxRuns});
  add_out_option(*command, options->out);
  add_if_busy_option(*command, options->how.if_busy, {"wait", "skip", "fail"});
  add_again_option(*command, options->how.again);
  command->add_flag_callback(
      "--fresh", [options] { options->how.resume = experiments::CheckpointPlace::Resume::kNever; },
      "Start from the beginning where an earlier attempt left checkpoints; they are removed");
  command->add_flag("--quiet", options->how.quiet, "Print only errors");
  add_watch_output_options(*command, options->how.outputs);
  command->footer(
      "A run that has its result already is not repeated. Ranks of the gloo backend are started here, or by mpirun,\n"
      "srun, torchrun or by hand with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (docs/launching.md).\n\n"
      "Examples:\n"
      "  droptest run spec.json --set /training/steps=100 --set /network/loss/loss_rate=5%\n"
      "  droptest run spec.json --set /backend/name=gloo\n"
      "  droptest run sweep.json --run 3\n"
      "  mpirun -np 4 droptest run spec.json --set /backend/name=gloo");
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

void add_worker_command(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("worker", "Run the run of a folder's spec.json")->group("");
  const auto options = std::make_shared<WorkerOptions>();  // shared by CLI11's bindings and the action
  command->add_option("FOLDER", options->directory)->required();
  command->add_option("--point", options->point);
  command->add_option("--labels", options->labels);
  command->add_flag_callback("--locked", [options] { options->lock = ExecuteOptions::Lock::kHeldByParent; });
  command->add_option("--warnings", options->warnings);
  command->add_option("--files", options->files);
  command->add_option("--states-not-left", options->states_not_left);
  command->callback([options, &chosen] { chosen = [options] { return work(*options); }; });
}

}  // namespace droptest::cli
