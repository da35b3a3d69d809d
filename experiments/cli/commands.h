// SPDX-License-Identifier: Apache-2.0
// The subcommands of `droptest`, one file each: <name>_command.cc. docs/cli.md shows them.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace droptest::cli {

/// Exit codes that scripts may rely on.
inline constexpr int kExitSuccess = 0;
inline constexpr int kExitFailedRun = 1;  ///< a run failed; its records say why
inline constexpr int kExitUserError = 2;  ///< a spec, flag or file is wrong: nothing was run
inline constexpr int kExitBusy = 3;  ///< another process is at work on a requested run: its result is not there yet
inline constexpr int kExitInterrupted = 130;  ///< Ctrl-C, as shells report it

/// The work of the parsed command line; returns an exit code. Errors are thrown.
using Action = std::function<int()>;

/// Each function adds its subcommand to `app`; parsing the subcommand stores its action in `chosen`.
void add_run_command(CLI::App& app, Action& chosen);
void add_resume_command(CLI::App& app, Action& chosen);
void add_checkpoint_command(CLI::App& app, Action& chosen);
void add_worker_command(CLI::App& app, Action& chosen);
void add_sweep_command(CLI::App& app, Action& chosen);
void add_sweep_task_command(CLI::App& app, Action& chosen);
void add_search_command(CLI::App& app, Action& chosen);
void add_validate_command(CLI::App& app, Action& chosen);
void add_plan_command(CLI::App& app, Action& chosen);
void add_watch_command(CLI::App& app, Action& chosen);
void add_report_command(CLI::App& app, Action& chosen);
void add_export_command(CLI::App& app, Action& chosen);
void add_eval_command(CLI::App& app, Action& chosen);
void add_generate_command(CLI::App& app, Action& chosen);
void add_list_command(CLI::App& app, Action& chosen);
void add_info_command(CLI::App& app, Action& chosen);
void add_shards_command(CLI::App& app, Action& chosen);
void add_schema_command(CLI::App& app, Action& chosen);
void add_fates_command(CLI::App& app, Action& chosen);
void add_collective_command(CLI::App& app, Action& chosen);
void add_drift_command(CLI::App& app, Action& chosen);
void add_doctor_command(CLI::App& app, Action& chosen);
void add_doctor_rank_command(CLI::App& app, Action& chosen);

/// Adds all subcommands; a command line has one of them.
void add_commands(CLI::App& app, Action& chosen);

}  // namespace droptest::cli
