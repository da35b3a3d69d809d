// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/resolve.h"

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/spec/resolve_network.h"
#include "experiments/schema/schema_kinds.h"
#include "experiments/spec/dry_run.h"
#include "experiments/spec/idle_protection.h"
#include "experiments/spec/numerics_version.h"
#include "experiments/spec/odd_schedule.h"
#include "experiments/spec/read_resolved.h"
#include "experiments/spec/resolve_command.h"
#include "experiments/spec/run_id.h"
#include "experiments/spec/section_members.h"
#include "experiments/spec/section_resolvers.h"
#include "experiments/spec/value_classes.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

/// Whether a resolver also runs for a spec with errors. Those that compute with several sections do not: their errors
/// would be consequences of the first ones.
enum class Runs : std::uint8_t { kAlways, kWithoutErrors };

struct Section {
  void (*resolve)(Resolution&);
  Runs runs;
};

/// Sections after the pipeline read its stages.
void require_stages(Resolution& resolution) {
  if (resolution.config.parallel.pipeline > 1) comm::require_none(resolution.errors);
}

/// The rest of the config is read from a spec without errors.
void read_rest(Resolution& resolution) {
  comm::require_none(resolution.errors);
  read_resolved(resolution.spec, resolution.config);
}

/// Each may read the sections that stand before it in `spec` and `config`.
constexpr std::array kSections = {
    Section{refuse_several_runs, Runs::kAlways},
    Section{resolve_seeds, Runs::kAlways},
    Section{resolve_pretrained, Runs::kAlways},
    Section{resolve_model, Runs::kAlways},
    Section{resolve_parallel, Runs::kAlways},
    Section{check_model, Runs::kAlways},
    Section{resolve_device, Runs::kAlways},
    Section{resolve_kernels, Runs::kAlways},
    Section{resolve_data, Runs::kAlways},
    Section{check_attention, Runs::kAlways},
    Section{resolve_training, Runs::kAlways},
    Section{resolve_start, Runs::kAlways},
    Section{resolve_stages, Runs::kWithoutErrors},
    Section{require_stages, Runs::kAlways},
    Section{resolve_failures, Runs::kAlways},
    Section{resolve_outer, Runs::kAlways},
    Section{resolve_elastic, Runs::kAlways},
    Section{resolve_memory, Runs::kWithoutErrors},
    Section{resolve_network, Runs::kAlways},
    Section{check_memory, Runs::kWithoutErrors},
    Section{check_alerts, Runs::kAlways},
    Section{check_profile, Runs::kAlways},
    Section{resolve_time, Runs::kWithoutErrors},
    Section{resolve_quorum, Runs::kWithoutErrors},
    Section{check_repetitions, Runs::kWithoutErrors},
    Section{read_rest, Runs::kAlways},
    Section{resolve_default_attention, Runs::kAlways},
    Section{check_indices, Runs::kAlways},
};

void resolve_numerics(Resolution& resolution, NumericsUse use) {
  const Numerics numerics = numerics_of(resolution.config);
  const int given = resolution.spec.value("numerics_version", numerics.version);
  const bool can_read = use == NumericsUse::kToRead && given <= kNewestNumerics;
  if (given != numerics.version && !can_read) {
    const std::string version = std::to_string(numerics.version);
    resolution.report(
        "/numerics_version",
        "got " + std::to_string(given) + ", but this droptest has version " + version +
            (given < numerics.version ? " for a spec with " + std::string(numerics.changed) : " for this spec") +
            ", which gives other losses or times: use the commit that summary.json names, or leave this member out");
  }
  resolution.spec["numerics_version"] = given;
}

/// The numbers of replicas that a run can have at times, other than the number in its spec.
std::vector<int> other_replicas(const RunConfig& config) {
  std::vector<int> numbers;
  if (config.elastic) {
    for (int data = config.elastic->min_data; data <= config.elastic->max_data; ++data) numbers.push_back(data);
  } else if (config.full_data) {
    for (const ReplicaAbsence& absence : config.failures->replicas) {
      for (const std::uint64_t step : {absence.first_without(), absence.until.value_or(absence.first_without())}) {
        const std::vector<int> absent = absent_replicas(config.failures->replicas, step);
        numbers.push_back(config.parallel.data - static_cast<int>(absent.size()));
      }
    }
  }
  return numbers;
}

/// Members of the spec that have no effect, or another one than their names say.
std::vector<Warning> warnings_of(const json& given, const ResolvedRun& run) {
  const json network = given.value("network", json::object());
  std::vector<Warning> warnings =
      idle_network(network, classes_with_network(*shared_dry_run(run.spec, run.config), run.config),
                   comm::network_use(run.spec.value("time", json())));
  for (const std::vector<Warning>& more :
       {idle_protection(network, run.config), zeroed_values(network, run.config), odd_schedule(run.config)}) {
    warnings.insert(warnings.end(), more.begin(), more.end());
  }
  return warnings;
}

ResolvedRun resolve_training_run(const json& given, const std::string& where, FileHashes* files, NumericsUse use) {
  ResolvedRun run;
  run.spec = schema_of(SchemaKind::kSpec).with_defaults(given);
  std::vector<std::string> errors;
  Resolution resolution{run.spec, given, where, files, run.config, errors, run.warnings};
  for (const Section& section : kSections) {
    if (section.runs == Runs::kAlways || errors.empty()) section.resolve(resolution);
  }
  resolve_numerics(resolution, use);
  comm::require_none(errors);
  run.run_id = run_id_of(run.spec);
  for (const int replicas : other_replicas(run.config)) (void)with_replicas(run, replicas);
  const std::vector<Warning> more = warnings_of(given, run);
  run.warnings.insert(run.warnings.begin(), more.begin(), more.end());
  return run;
}

}  // namespace

ResolvedRun resolve(const json& given, const std::string& where, FileHashes* files, NumericsUse use) {
  const json document = schema_of_spec(given).with_one_word(given);
  comm::require_none(violations_of_spec(document), where);
  if (document.contains("command")) return resolve_command(document, where, files);
  ResolvedRun run = resolve_training_run(document, where, files, use);
  const std::vector<comm::Violation> violations = schema_of(SchemaKind::kResolvedSpec).check(run.spec);
  DROPTEST_CHECK(violations.empty(), "resolved spec: " + violations.at(0).pointer + ": " + violations.at(0).message);
  return run;
}

json seeds_json(const Seeds& seeds) { return members_json(seeds); }

void reseed(ResolvedRun& run, const Seeds& seeds) {
  run.spec["seeds"] = seeds_json(seeds);
  run.config.seeds = seeds;
  run.config.network.seed = seeds.network;
  run.run_id = run_id_of(run.spec);
}

RunConfig with_replicas(const ResolvedRun& run, int replicas) {
  if (replicas == run.config.parallel.data) return run.config;
  json spec = run.spec;
  const std::string section = run.config.elastic ? "/elastic" : "/failures/replicas";
  spec.erase("elastic");
  spec.erase("failures");  // `replicas` is the number without the absent ones
  spec.erase("numerics_version");
  spec["parallel"]["data"] = replicas;
  if (replicas == 1 && run.config.parallel.sequence == 1) spec["parallel"].erase("zero");
  if (spec["training"].contains("epochs")) spec["training"].erase("steps");
  RunConfig config = resolve(spec, section + ": with /parallel/data " + std::to_string(replicas), nullptr).config;
  config.elastic = run.config.elastic;
  config.full_data = run.config.full_data;
  // Epochs of fewer replicas have other numbers of steps; the schedule stays that of the run.
  config.training.steps = run.config.training.steps;
  config.training.learning_rate = run.config.training.learning_rate;
  return config;
}

}  // namespace droptest::experiments
