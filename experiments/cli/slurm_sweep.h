// SPDX-License-Identifier: Apache-2.0
// The options of droptest sweep --slurm, and its output. docs/cluster.md shows it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "experiments/slurm/array_submission.h"
#include "experiments/spec/sweep_plan.h"

namespace CLI {
class App;
}

namespace droptest::cli {

struct SlurmSweepOptions {
  bool chosen = false;              ///< --slurm
  bool dry_run = false;             ///< print the batch scripts, submit nothing
  std::uint64_t array_limit = 0;    ///< 0: not given
  std::uint64_t runs_per_task = 0;  ///< 0: not given
  std::vector<std::string> sbatch_options;
  std::string local_command;  ///< command that sweeps the same runs on this machine, for the user to read
};

enum class Verbosity : std::uint8_t { kQuiet, kNormal };

/// Adds --slurm and the options that go with it. `options` outlives the parsing.
void add_slurm_options(CLI::App& command, SlurmSweepOptions& options);

/// Throws: ConfigError for words after `--` of a sweep on this machine.
void require_no_sbatch_options(const SlurmSweepOptions& options);

/// Submits the runs without a result, or prints the batch scripts. `submission` has the options that are not only
/// Slurm's. Returns an exit code. Throws: ConfigError, BusyError.
int submit_sweep(const experiments::SweepPlan& plan, experiments::SubmissionOptions submission,
                 const SlurmSweepOptions& options, Verbosity verbosity);

}  // namespace droptest::cli
