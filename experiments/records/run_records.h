// SPDX-License-Identifier: Apache-2.0
// The record files of a run and of a sweep. docs/records.md is their format.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/lossy/clock/time_model.h"
#include "comm/lossy/statistics/loss_statistics.h"
#include "experiments/records/data_record.h"
#include "experiments/records/memory_record.h"
#include "experiments/records/metrics.h"
#include "experiments/records/provenance.h"
#include "experiments/records/replaced_kernel.h"
#include "experiments/schema/schema_kinds.h"
#include "experiments/spec/resolve.h"
#include "experiments/spec/sweep_plan.h"

namespace droptest::experiments {

/// The places of one run's files: <out>/<name>/<run_id>/.
struct RunDirectory {
  std::string path;
  std::string spec() const { return path + "/spec.json"; }
  std::string metrics() const { return path + "/metrics.jsonl"; }
  std::string events() const { return path + "/events.jsonl"; }
  std::string loss_statistics() const { return path + "/loss_statistics.json"; }
  std::string diagnostics() const { return path + "/diagnostics.json"; }
  std::string summary() const { return path + "/summary.json"; }
  std::string weights() const { return path + "/weights.safetensors"; }
  std::string adapter() const { return path + "/adapter"; }  ///< folder of PEFT's files
  std::string predictions() const { return path + "/predictions.json"; }
  std::string checkpoints() const { return path + "/checkpoints"; }
  std::string trace() const { return path + "/trace.json"; }
  std::string lock() const { return path + "/lock"; }    ///< FileLock of the process that writes the others
  std::string again() const { return path + "/again"; }  ///< folder with the records of a repetition (repetition.h)
  /// Records of a complete repetition that come from there.
  std::string moved() const { return again() + "/moved.json"; }
};
RunDirectory run_directory(const std::string& out, std::string_view name, std::string_view run_id);
/// The path <out>/<name>/sweep.json.
std::string sweep_file(const std::string& out, std::string_view name);

enum class RunStatus : std::uint8_t { kCompleted, kDiverged, kFailed };
std::string_view run_status_name(RunStatus status);

/// The outcome of a run; values that were not measured are absent.
struct RunSummary {
  RunStatus status = RunStatus::kCompleted;
  std::string error;              ///< kFailed: the reason
  bool stopped_by_alert = false;  ///< kFailed: an alert of the spec ended it
  /// kDiverged: the first step with a loss that was not finite, or the last step if all were skipped.
  std::optional<std::uint64_t> diverged_step;
  nlohmann::json point = nlohmann::json::object();
  std::uint64_t steps = 0;   ///< finished steps
  std::uint64_t tokens = 0;  ///< tokens trained on
  std::optional<double> train_final_loss;
  std::optional<double> validation_final_loss;
  std::optional<double> validation_best_loss;
  std::uint64_t validation_tokens = 0;
  nlohmann::json classification{};  ///< ClassificationQuality at the last validation; null: there is no such head
  std::optional<double> selection_loss;
  std::uint64_t selection_tokens = 0;
  std::uint64_t skipped_steps = 0;  ///< skipped steps with an overflow
  double loss_scale = 1;            ///< loss scale after the last step
  std::vector<StageFailure> stage_failures;
  std::vector<ReplicaAbsenceRecord> replica_absences;
  std::vector<std::uint64_t> resumed_at;  ///< steps at which it was resumed
  std::string missing_lines;              ///< MissingLines of metrics.jsonl, when the run was last resumed
  std::uint64_t steps_with_fewer_replicas = 0;
  CheckpointTotals checkpoints;
  std::optional<StartRecord> started_from;
  std::optional<DataRecord> data;
  std::optional<MemoryRecord> memory;
  std::optional<ReplacedKernel> replaced_kernel;
  bool knows_kernels = false;  ///< whether ranks have agreed on kernels, if a machine may lack one
  double tokens_per_second = 0;
  double seconds = 0;
  std::optional<comm::VirtualTime> time;
  Provenance provenance;
};

/// `warnings` has those of the spec, then one for each mark of the run (samples lost, steps with fewer replicas,
/// continued from a checkpoint), and one without a mark if metrics.jsonl lacks lines.
nlohmann::json summary_json(const ResolvedRun& run, const RunSummary& summary);
/// The warning about lines that metrics.jsonl lacks; `steps`: MissingLines' text.
std::string missing_lines_text(const std::string& steps);
/// A mark of a warning for people: "fewer_replicas" is "fewer replicas".
std::string mark_text(std::string mark);

nlohmann::json sweep_json(const SweepPlan& plan);

/// Warnings as records have them, [{"pointer": .., "message": ..}], and back. They have no marks.
nlohmann::json warnings_json(const std::vector<Warning>& warnings);
std::vector<Warning> warnings_from_json(const nlohmann::json& list);

/// Checks a record against its schema (CheckError: a bug of ours) and writes it whole or not at all.
void write_record(SchemaKind kind, const std::string& path, const nlohmann::json& record);
void write_spec_record(const RunDirectory& directory, const ResolvedRun& run);
void write_loss_statistics_record(const RunDirectory& directory, const nlohmann::json& record);
void write_predictions_record(const RunDirectory& directory, const nlohmann::json& record);
void write_summary_record(const RunDirectory& directory, const nlohmann::json& record);
void write_sweep_record(const std::string& out, const SweepPlan& plan);

/// Hears of a record that is there, but does not count, with its file and the reason.
using SayUnread = std::function<void(const std::string& text)>;

/// The summary of an earlier run; it may have members that this program does not know. Absent if there is none, and if
/// the file cannot be read, is no summary or has another schema_version: `say` then hears of it.
std::optional<nlohmann::json> read_summary(
    const RunDirectory& directory, const SayUnread& say = [](const std::string&) {});

/// The records that `run` asks for and a finished run in that folder does not have, each with the pointer of its
/// setting: "the final weights (/record/weights)". Records that every run has are named by their files.
std::vector<std::string> missing_records(const RunDirectory& directory, const ResolvedRun& run);

/// Whether the run need not be run again: a summary that says `completed` or `diverged`. `say`: read_summary()'s.
bool has_result(
    const RunDirectory& directory, const SayUnread& say = [](const std::string&) {});

/// Whether a further attempt must leave the folder's records as they are: a summary is there, and not that of a failed
/// run. One that cannot be read may be the result of another version.
bool keeps_records(const RunDirectory& directory);

/// Whether a finished run that lacks a requested record stays, or is run again.
enum class Again : std::uint8_t { kNo, kYes };

/// Whether a run that an alert stopped is run again, or taken as it is.
enum class Stopped : std::uint8_t { kRunAgain, kAccept };

/// Whether an alert ended the run that has this summary.
bool is_stopped_by_alert(const nlohmann::json& summary);

/// Whether nothing is left to do: the run has a result, with Again::kYes all records that it asks for, and no complete
/// repetition with records that are still to be moved. Stopped::kAccept also accepts a run that an alert stopped.
bool is_settled(
    const RunDirectory& directory, const ResolvedRun& run, Again again, Stopped stopped = Stopped::kRunAgain,
    const SayUnread& say = [](const std::string&) {});

}  // namespace droptest::experiments
