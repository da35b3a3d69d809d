// SPDX-License-Identifier: Apache-2.0
// Options of the commands that take a spec.
#pragma once

#include <string>
#include <vector>

#include "experiments/files/file_lock.h"
#include "experiments/spec/file_hashes.h"
#include "experiments/spec/sweep_plan.h"

namespace CLI {
class App;
}

namespace droptest::cli {

struct SpecOptions {
  std::string file;
  std::vector<std::string> overrides;  ///< "/pointer=value"
};

/// Adds SPEC and --set. `options` outlives the parsing.
void add_spec_options(CLI::App& command, SpecOptions& options);
/// Adds only --set, for commands that name their spec otherwise.
void add_set_option(CLI::App& command, SpecOptions& options);

/// Adds --out. `out` holds the default and outlives the parsing, as in the functions below.
void add_out_option(CLI::App& command, std::string& out);
/// Adds --jobs. 0: not given.
void add_jobs_option(CLI::App& command, int& jobs);

/// Adds --if-busy with `choices` of wait, skip and fail. `if_busy` holds the default.
void add_if_busy_option(CLI::App& command, experiments::IfBusy& if_busy, const std::vector<std::string>& choices);

/// The runs that the spec asks for. `files` hashes the files that the spec names, which run ids need; null: no file is
/// read. `use`: resolve()'s. Throws: ConfigError.
experiments::SweepPlan load_plan(const SpecOptions& options, experiments::FileHashes* files,
                                 experiments::NumericsUse use = experiments::NumericsUse::kToTrain);

/// The plan, and the reason why its runs have no ids, if a file of the spec is missing or not as the spec needs it.
struct PlanOfFiles {
  experiments::SweepPlan plan;
  std::string no_ids;  ///< empty: they have ids
};
/// load_plan() with the files of the spec, or without them if they are wrong. Throws: ConfigError for the spec itself.
PlanOfFiles plan_of_files(const SpecOptions& options);

/// One run of the spec, only to be read. With overrides it is the run of the spec without its sweep, because the
/// sweep's points would override them; else it is the first run. No file that the spec names is read. Throws:
/// ConfigError.
experiments::RunConfig load_run(SpecOptions options);

/// Throws: ConfigError, naming the file of the spec, if its runs are those of a user's own command.
void require_training(const std::string& file, const experiments::SweepPlan& plan);

/// Writes a line on standard error for each part of the spec that has no effect.
void say_warnings(const SpecOptions& options, const experiments::SweepPlan& plan);

}  // namespace droptest::cli
