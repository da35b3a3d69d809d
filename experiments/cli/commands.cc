// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/commands.h"

#include <CLI/CLI.hpp>

namespace droptest::cli {

void add_commands(CLI::App& app, Action& chosen) {
  app.require_subcommand(1);
  add_run_command(app, chosen);
  add_resume_command(app, chosen);
  add_sweep_command(app, chosen);
  add_search_command(app, chosen);
  add_validate_command(app, chosen);
  add_plan_command(app, chosen);
  add_doctor_command(app, chosen);
  add_watch_command(app, chosen);
  add_report_command(app, chosen);
  add_export_command(app, chosen);
  add_checkpoint_command(app, chosen);
  add_eval_command(app, chosen);
  add_generate_command(app, chosen);
  add_list_command(app, chosen);
  add_info_command(app, chosen);
  add_shards_command(app, chosen);
  add_schema_command(app, chosen);
  add_fates_command(app, chosen);
  add_collective_command(app, chosen);
  add_drift_command(app, chosen);
  add_worker_command(app, chosen);
  add_sweep_task_command(app, chosen);
  add_doctor_rank_command(app, chosen);
}

}  // namespace droptest::cli
