// SPDX-License-Identifier: Apache-2.0
#include "experiments/records/run_records.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "experiments/files/atomic_file.h"
#include "experiments/records/loss_statistics_record.h"
#include "experiments/records/point_text.h"
#include "experiments/schema/schema_kinds.h"
#include "experiments/spec/kernels_in_use.h"
#include "experiments/spec/run_id.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using comm::finite_or_null;
using nlohmann::json;

constexpr int kSchemaVersion = 1;

json measured_or_null(const std::optional<double>& value) { return value ? finite_or_null(*value) : json(nullptr); }

json time_json(const comm::VirtualTime& time) {
  json exposed = json::object();
  for (const sim::TrafficClass of : sim::kAllTrafficClasses) {
    if (time.exposed_in(of) > 0) exposed[sim::traffic_class_name(of)] = time.exposed_in(of);
  }
  return {{"virtual_seconds", time.seconds},
          {"compute_seconds", time.compute_seconds},
          {"idle_seconds", time.idle_seconds},
          {"exposed_seconds", std::move(exposed)},
          {"network_seconds", time.network_seconds},
          {"packets", time.packets},
          {"repeated_packets", time.repeated},
          {"timeouts", time.timeouts},
          {"late_packets", time.late}};
}

json data_json(const DataRecord& data) {
  json lost = json::array();
  for (const LostShard& shard : data.lost_shards) {
    lost.push_back({{"file", shard.file}, {"samples", shard.samples}, {"step", shard.step}, {"error", shard.error}});
  }
  return {{"shards", data.shards},
          {"samples", data.samples},
          {"epochs", static_cast<double>(data.position) / static_cast<double>(data.samples)},
          {"lost_samples", data.lost_samples},
          {"lost_shards", std::move(lost)}};
}

std::string counted(std::uint64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

/// Adds the warnings of events that a run without them does not have, by which its results may differ.
void add_marked_warnings(const ResolvedRun& run, const RunSummary& summary, json& warnings) {
  const auto add = [&warnings](const char* mark, const std::string& pointer, const std::string& message) {
    warnings.push_back({{"pointer", pointer}, {"message", message}, {"mark", mark}});
  };
  if (summary.data && summary.data->lost_samples != 0) {
    add("lost_samples", "/data/shards",
        "training left out " + counted(summary.data->lost_samples, "sample") + " of " +
            counted(summary.data->lost_shards.size(), "shard") + " that could not be read");
  }
  if (summary.steps_with_fewer_replicas != 0) {
    add("fewer_replicas", run.config.elastic ? "/elastic" : "/failures/replicas",
        std::to_string(summary.steps_with_fewer_replicas) + " of " + counted(summary.steps, "step") +
            " had fewer replicas than the " + std::to_string(run.config.parallel.data) + " of /parallel/data");
  }
  if (const auto& replaced = summary.replaced_kernel) {
    add("other_kernel", "/kernels/" + replaced->operation, replaced->text());
  }
  if (!summary.resumed_at.empty()) {
    std::string steps;
    for (const std::uint64_t step : summary.resumed_at) steps += (steps.empty() ? "" : ", ") + std::to_string(step);
    add("resumed", "/checkpoint", "the run went on from the checkpoint of step " + steps);
  }
  if (!summary.missing_lines.empty()) {
    warnings.push_back({{"pointer", "/record/every_steps"}, {"message", missing_lines_text(summary.missing_lines)}});
  }
}

}  // namespace

RunDirectory run_directory(const std::string& out, std::string_view name, std::string_view run_id) {
  return {out + "/" + std::string(name) + "/" + std::string(run_id)};
}

std::string sweep_file(const std::string& out, std::string_view name) {
  return out + "/" + std::string(name) + "/sweep.json";
}

std::string_view run_status_name(RunStatus status) {
  switch (status) {
    case RunStatus::kCompleted:
      return "completed";
    case RunStatus::kDiverged:
      return "diverged";
    case RunStatus::kFailed:
      return "failed";
  }
  DROPTEST_CHECK(false, "unknown run status");
}

json summary_json(const ResolvedRun& run, const RunSummary& summary) {
  json loss = json::object();
  for (const auto& [name, section] : run.spec["network"]["classes"].items()) {
    const comm::ClassNetwork& network = *run.config.network.of(sim::traffic_class_from_name(name));
    for (std::size_t half = 0; half < kHalfNames.size(); ++half) {
      const comm::HalfNetwork& configured = half_of(network, half);
      loss[name][kHalfNames[half]] = {
          {"model", section[kHalfNames[half]]["loss"]["model"]},
          {"loss_rate", configured.loss ? finite_or_null(configured.loss->loss_rate()) : json(0.0)},
          {"mean_burst_packets", finite_or_null(mean_burst_packets(configured))}};
    }
  }
  json warnings = warnings_json(run.warnings);
  add_marked_warnings(run, summary, warnings);
  json out = {{"schema_version", kSchemaVersion},
              {"run_id", run.run_id},
              {"name", run.config.name},
              {"status", run_status_name(summary.status)},
              {"error", summary.status == RunStatus::kFailed ? json(summary.error) : json(nullptr)},
              {"diverged_step", summary.diverged_step ? json(*summary.diverged_step) : json(nullptr)},
              {"seeds", seeds_json(run.config.seeds)},
              {"point", summary.point},
              {"steps", summary.steps},
              {"tokens", summary.tokens},
              {"train", {{"final_loss", measured_or_null(summary.train_final_loss)}}},
              {"validation",
               {{"final_loss", measured_or_null(summary.validation_final_loss)},
                {"best_loss", measured_or_null(summary.validation_best_loss)},
                {"tokens", summary.validation_tokens}}},
              {"tokens_per_second", finite_or_null(summary.tokens_per_second)},
              {"seconds", finite_or_null(summary.seconds)},
              {"loss", std::move(loss)},
              {"warnings", std::move(warnings)},
              {"twin_omits", twin_omits(run.spec)},
              {"provenance", to_json(summary.provenance)}};
  if (summary.stopped_by_alert) out["stopped_by_alert"] = true;
  if (run.config.validation.selection_tokens != 0) {
    out["validation"]["selection_loss"] = measured_or_null(summary.selection_loss);
    out["validation"]["selection_tokens"] = summary.selection_tokens;
  }
  if (!run.labels.empty()) out["labels"] = run.labels;
  if (run.config.seeds.agree()) out["seed"] = run.config.seeds.network;
  if (summary.time) out["time"] = time_json(*summary.time);
  if (run.config.failures && !run.config.failures->replicas.empty()) {
    out["replica_absences"] = json::array();
    for (const ReplicaAbsenceRecord& absence : summary.replica_absences) {
      json record = {{"data_rank", absence.data_rank}, {"from", absence.from}, {"steps", absence.steps}};
      if (absence.reload_step) record["reload_step"] = *absence.reload_step;
      out["replica_absences"].push_back(std::move(record));
    }
  }
  if (run.config.training.loss_scale.kind != models::LossScaleConfig::Kind::kNone) {
    out["loss_scale"] = {{"final", finite_or_null(summary.loss_scale)}, {"skipped_steps", summary.skipped_steps}};
  }
  if (run.config.failures && run.config.failures->stage_rate > 0) {
    out["stage_failures"] = json::array();
    for (const StageFailure& failure : summary.stage_failures) {
      out["stage_failures"].push_back({{"step", failure.step}, {"stage", failure.stage}});
    }
  }
  if (summary.started_from) {
    const StartRecord& start = *summary.started_from;
    out["started_from"] = {{"run_id", start.run_id},
                           {"step", start.step},
                           {"epoch", start.membership},
                           {"copies", {{"max", start.copies_max}, {"tensors", start.copies_tensors}}}};
  }
  if (summary.data) out["data"] = data_json(*summary.data);
  if (!summary.classification.is_null()) out["classification"] = summary.classification;
  if (!run.config.command) out["kernels"] = kernels_json(run.spec, run.config);
  if (!summary.knows_kernels && uses_cudnn(run.config)) out["kernels"].erase("attention");
  if (const auto& replaced = summary.replaced_kernel) out["kernels"][replaced->operation] = replaced->used;
  if (summary.memory) out["memory"] = to_json(*summary.memory);
  if (!summary.resumed_at.empty()) out["resumed_at"] = summary.resumed_at;
  if (run.config.checkpoint && summary.status != RunStatus::kFailed) {
    const CheckpointTotals& totals = summary.checkpoints;
    out["checkpoints"] = {{"completed", totals.completed},
                          {"failed", totals.failed},
                          {"bytes", totals.bytes},
                          {"snapshot_seconds", totals.snapshot_seconds}};
  }
  return out;
}

std::string missing_lines_text(const std::string& steps) {
  return "metrics.jsonl lacks the lines of steps " + steps +
         ": before the run was resumed they were lost, or "
         "/record/every_steps was larger";
}

std::string mark_text(std::string mark) {
  std::replace(mark.begin(), mark.end(), '_', ' ');
  return mark;
}

json warnings_json(const std::vector<Warning>& warnings) {
  json list = json::array();
  for (const Warning& warning : warnings) list.push_back({{"pointer", warning.pointer}, {"message", warning.message}});
  return list;
}

std::vector<Warning> warnings_from_json(const json& list) {
  std::vector<Warning> warnings;
  for (const json& one : list) warnings.push_back({one.at("pointer"), one.at("message"), Warning::About::kRun});
  return warnings;
}

json sweep_json(const SweepPlan& plan) {
  json runs = json::array();
  for (const PlannedRun& planned : plan.runs) {
    runs.push_back({{"run_id", planned.run.run_id}, {"point", planned.point}, {"seeds", seeds_json(planned.seeds)}});
    if (planned.seeds.agree()) runs.back()["seed"] = planned.seeds.network;
    if (!planned.run.labels.empty()) runs.back()["labels"] = planned.run.labels;
    if (!planned.run.warnings.empty()) runs.back()["warnings"] = warnings_json(planned.run.warnings);
  }
  json out = {{"schema_version", kSchemaVersion},
              {"name", plan.name},
              {"description", plan.description},
              {"spec", plan.spec},
              {"runs", std::move(runs)}};
  if (!plan.best_over.empty()) out["best_over"] = plan.best_over;
  if (!plan.swept.empty()) out["names"] = PointNames(plan.swept).to_json();
  return out;
}

void write_record(SchemaKind kind, const std::string& path, const json& record) {
  const std::vector<comm::Violation> violations = schema_of(kind).check(record);
  DROPTEST_CHECK(violations.empty(), path + ": " + violations.at(0).pointer + ": " + violations.at(0).message);
  write_file_atomically(path, record.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

void write_spec_record(const RunDirectory& directory, const ResolvedRun& run) {
  write_record(run.config.command ? SchemaKind::kCommandSpec : SchemaKind::kResolvedSpec, directory.spec(), run.spec);
}

void write_loss_statistics_record(const RunDirectory& directory, const json& record) {
  write_record(SchemaKind::kLossStatistics, directory.loss_statistics(), record);
}

void write_predictions_record(const RunDirectory& directory, const json& record) {
  write_record(SchemaKind::kPredictions, directory.predictions(), record);
}

void write_summary_record(const RunDirectory& directory, const json& record) {
  write_record(SchemaKind::kSummary, directory.summary(), record);
}

void write_sweep_record(const std::string& out, const SweepPlan& plan) {
  write_record(SchemaKind::kSweep, sweep_file(out, plan.name), sweep_json(plan));
}

std::optional<json> read_summary(const RunDirectory& directory, const SayUnread& say) {
  const std::string path = directory.summary();
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  std::string why;
  try {
    json summary = comm::load_json(path);
    const auto violations = schema_of(SchemaKind::kSummary).check(summary, comm::UnknownMembers::kAllowed);
    if (violations.empty()) return summary;
    const auto of_version = std::find_if(violations.begin(), violations.end(), [](const comm::Violation& violation) {
      return violation.pointer == "/schema_version";
    });
    const comm::Violation& told = of_version == violations.end() ? violations.front() : *of_version;
    why = path + ": " + (told.pointer.empty() ? "/" : told.pointer) + ": " + told.message;
  } catch (const ConfigError& error) {
    why = error.what();
  }
  say(why + "; this droptest takes the run as not finished");
  return std::nullopt;
}

std::vector<std::string> missing_records(const RunDirectory& directory, const ResolvedRun& run) {
  std::vector<std::string> missing;
  if (run.config.command) return missing;
  const json asked = run.spec["record"];
  json written;
  try {
    written = comm::load_json(directory.spec()).at("record");
  } catch (const std::exception&) {
    return {"spec.json, which cannot be read"};
  }
  struct stat status {};
  for (const std::string& always : {directory.metrics(), directory.loss_statistics()}) {
    if (::stat(always.c_str(), &status) != 0) missing.push_back(always.substr(always.rfind('/') + 1));
  }
  if (asked["weights"] == "final" && ::stat(directory.weights().c_str(), &status) != 0) {
    missing.emplace_back("the final weights (/record/weights)");
  }
  if (asked["links"] == "include" && written["links"] != "include") {
    missing.emplace_back("the statistics of each link (/record/links)");
  }
  if (asked.contains("profile_steps") && asked["profile_steps"] != written.value("profile_steps", json())) {
    missing.emplace_back("the trace of these steps (/record/profile_steps)");
  }
  // A record of every third step also has every sixth step.
  const auto compare = [&](const char* name, std::uint64_t steps_with_any, const std::string& what) {
    const std::uint64_t every = asked[name].get<std::uint64_t>();
    const std::uint64_t has = written[name].get<std::uint64_t>();
    if (every == 0 || every > steps_with_any || (has != 0 && every % has == 0)) return;
    missing.push_back(what + " every " + std::to_string(every) + " steps (/record/" + name + ")");
  };
  compare("every_steps", run.config.training.steps - 1, "lines of metrics.jsonl");  // the last step has one always
  compare("sample_every_steps", run.config.training.steps, "samples of error and divergence");
  return missing;
}

bool has_result(const RunDirectory& directory, const SayUnread& say) {
  const std::optional<json> summary = read_summary(directory, say);
  return summary && (*summary)["status"] != run_status_name(RunStatus::kFailed);
}

bool keeps_records(const RunDirectory& directory) {
  struct stat status {};
  if (::stat(directory.summary().c_str(), &status) != 0) return false;
  const std::optional<json> summary = read_summary(directory);
  return !summary || (*summary)["status"] != run_status_name(RunStatus::kFailed);
}

bool is_stopped_by_alert(const json& summary) { return summary.value("stopped_by_alert", false); }

bool is_settled(const RunDirectory& directory, const ResolvedRun& run, Again again, Stopped stopped,
                const SayUnread& say) {
  struct stat status {};
  if (::stat(directory.moved().c_str(), &status) == 0 || has_result(RunDirectory{directory.again()})) return false;
  if (run.config.command && again == Again::kYes) return false;  // nothing more is known of its program
  if (stopped == Stopped::kAccept) {
    const std::optional<json> summary = read_summary(directory);
    if (summary && is_stopped_by_alert(*summary)) return true;
  }
  return has_result(directory, say) && (again == Again::kNo || missing_records(directory, run).empty());
}

}  // namespace droptest::experiments
