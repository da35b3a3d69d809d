// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/run_one.h"

#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "comm/rendezvous/launch_environment.h"
#include "experiments/cli/commands.h"
#include "experiments/cli/finished_runs.h"
#include "experiments/cli/outcome_text.h"
#include "experiments/cli/progress_display.h"
#include "experiments/cli/stop_signal.h"
#include "experiments/process/child_process.h"
#include "experiments/run/repetition.h"

namespace droptest::cli {

namespace fs = std::filesystem;

std::vector<std::string> worker_command() { return {experiments::this_program(), "worker"}; }

bool is_launched(const experiments::RunConfig& config) {
  return config.backend.name != "local" && comm::launch_environment(comm::process_environment()).has_value();
}

int run_one(const experiments::PlannedRun& planned, const experiments::RunDirectory& directory,
            experiments::FileHashes& files, const RunManner& how, const std::function<void()>& say_first) {
  outlive_readers();
  const bool launched = is_launched(planned.run.config);
  experiments::SayUnread say = [](const std::string&) {};
  if (!how.quiet) say = say_unread;
  if (!launched && !how.from_step &&
      experiments::is_settled(directory, planned.run, how.again, experiments::Stopped::kRunAgain, say)) {
    if (!how.quiet) {
      std::cout << outcome_text(*experiments::read_summary(directory)) << "\n"
                << "nothing to do: the records are in " << directory.path << "\n";
    }
    WatchOutputs(how.outputs, directory.path, (fs::path(directory.path).parent_path() / "tensorboard").string())
        .finish();
    return kExitSuccess;
  }
  if (!how.quiet && !launched) say_first();
  experiments::ExecuteOptions execute{planned.point, worker_command(), kExitUserError, &files};
  execute.if_busy = how.if_busy;
  execute.again = how.again;
  execute.resume = how.resume;
  execute.from_step = how.from_step;
  if (!how.quiet) {
    execute.say_waiting = [](const std::string& text) { std::cerr << "droptest: " << text << std::endl; };
    execute.say_problem = execute.say_waiting;
  }
  // Shared with the rank that logs, which may be left behind.
  const auto display = std::make_shared<RunDisplay>(how.quiet ? DisplayMode::kQuiet : display_mode_of_stderr(),
                                                    planned.run.config.training.steps);
  const auto outputs = std::make_shared<WatchOutputs>(
      how.outputs, directory.path, (fs::path(directory.path).parent_path() / "tensorboard").string());
  execute.on_line = [display, outputs](const nlohmann::json& line) {
    display->show(line);
    outputs->update();
  };
  // Only rank 0 has lines if a launcher started the ranks.
  const auto finish_outputs = [display, outputs] {
    if (!display->empty()) outputs->finish();
  };
  if (!launched) {
    catch_stop_signals();
    execute.stop_requested = [] { return stop_requested(); };
  }
  nlohmann::json summary;
  try {
    summary = experiments::execute_run(planned.run, directory, execute);
    display->close();
    finish_outputs();
  } catch (const experiments::StoppedError&) {
    display->close();
    if (!display->empty()) std::cout << "stopped at " << display->summary() << "\n";
    const bool resumes =
        experiments::may_resume(experiments::attempt_folder(directory), experiments::CheckpointPlace::Resume::kNewest);
    const std::string next = how.from_step ? "begins again after step " + std::to_string(*how.from_step)
                             : resumes     ? "continues from the last checkpoint"
                                           : "runs it again from its start";
    std::cerr << "droptest: stopped: what was recorded is kept in " << directory.path << "; the same command " << next
              << "\n";
    throw;
  } catch (const experiments::BusyError& error) {
    display->close();
    if (how.if_busy != experiments::IfBusy::kSkip || launched) throw;
    if (!how.quiet) std::cout << "skipped: " << error.what() << "\n";
    return kExitBusy;
  } catch (...) {
    display->close();
    finish_outputs();
    throw;
  }
  if (!how.quiet && !summary.is_null()) {
    std::cout << outcome_text(summary) << "\nthe records are in " << directory.path << "\n";
  }
  if (!summary.is_null() && summary.at("status") == "failed") {  // an alert ended the run
    std::cerr << "droptest: error: " << summary.at("error").get<std::string>() << "\n";
    return kExitFailedRun;
  }
  return kExitSuccess;
}

}  // namespace droptest::cli
