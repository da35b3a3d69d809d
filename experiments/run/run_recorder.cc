// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/run_recorder.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>

#include "experiments/files/atomic_file.h"
#include "experiments/files/weights_file.h"
#include "experiments/records/diagnostics_record.h"
#include "experiments/records/loss_statistics_record.h"
#include "experiments/records/trace.h"
#include "experiments/run/execute_command.h"
#include "experiments/training/replica_absences.h"
#include "models/gpt2/lora.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using SystemClock = std::chrono::system_clock;

/// Makes the folder ready for a new attempt: nothing in it may be taken for a result of this one.
void start_records(const ResolvedRun& run, const RunDirectory& directory) {
  make_directories(directory.path);
  for (const std::string& stale : {directory.summary(), directory.loss_statistics(), directory.diagnostics(),
                                   directory.weights(), directory.predictions()}) {
    std::error_code error;
    std::filesystem::remove(stale, error);
    if (error) throw ConfigError(stale + ": cannot remove: " + error.message());
  }
  write_spec_record(directory, run);
}

Provenance provenance_from(SystemClock::time_point started, const RunConfig& config) {
  Provenance provenance = run_provenance(config);
  provenance.started = utc_text(started);
  provenance.finished = utc_text(SystemClock::now());
  return provenance;
}

/// The time at which the run's spec was written; now, if it was not.
SystemClock::time_point start_of(const RunDirectory& directory) {
  std::error_code error;
  const auto written = std::filesystem::last_write_time(directory.spec(), error);
  if (error) return SystemClock::now();
  return std::chrono::time_point_cast<SystemClock::duration>(std::chrono::file_clock::to_sys(written));
}

/// The number of steps in earlier layouts of the run, which had other numbers of replicas.
std::uint64_t earlier_steps_with_fewer_replicas(const ResolvedRun& run, const nlohmann::json& earlier_memberships) {
  std::uint64_t steps = 0;
  for (const nlohmann::json& membership : earlier_memberships) {
    if (membership.at("run_id") != run.run_id || membership.at("layout") == run.config.parallel.text()) continue;
    steps += membership.at("to_step").get<std::uint64_t>() - membership.at("from_step").get<std::uint64_t>();
  }
  return steps;
}

}  // namespace

RunRecorder::RunRecorder(const ResolvedRun& run, const RunDirectory& directory, nlohmann::json point,
                         AlertWatch::Report report)
    : run_(run),
      directory_(directory),
      point_(std::move(point)),
      started_(SystemClock::now()),
      alerts_(run.config.alerts, directory, report),
      report_(std::move(report)) {
  start_records(run, directory);
}

void RunRecorder::start(std::optional<std::uint64_t> step) {
  std::error_code ignored;
  if (!step) std::filesystem::remove(directory_.trace(), ignored);  // the trace of an earlier attempt
  alerts_.start(step);
  if (step) {
    if (!std::exchange(told_, true)) report_("continues after step " + std::to_string(*step));
    MissingLines missing(run_.config.record.every_steps);
    metrics_ = MetricsWriter::resume(directory_.metrics(), *step, [&](const nlohmann::json& line) {
      missing.has(line["step"].get<std::uint64_t>());
      alerts_.see(line);
    });
    missing_lines_ = missing.text_up_to(*step);
    if (!missing_lines_.empty()) report_(directory_.path + ": " + missing_lines_text(missing_lines_));
  } else {
    metrics_ = MetricsWriter::create(directory_.metrics());
  }
}

void RunRecorder::append(const nlohmann::json& line) {
  metrics_->append(line);
  alerts_.take(line);
}

void RunRecorder::write_trace(const std::vector<nlohmann::json>& ranks) {
  const nlohmann::json of_run = {{"experiment", run_.config.name},
                                 {"run_id", run_.run_id},
                                 {"backend", run_.config.backend.name},
                                 {"layout", run_.config.parallel.text()}};
  write_record(SchemaKind::kTrace, directory_.trace(), trace_document(ranks, of_run));
}

nlohmann::json RunRecorder::finish(const TrainingOutcome& outcome) {
  if (!outcome.weights.empty()) {
    const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"run_id", run_.run_id}};
    const models::Gpt2Config& model = run_.config.model;
    if (model.lora.is_on()) {
      make_directories(directory_.adapter());
      write_weights(directory_.adapter() + "/adapter_model.safetensors", models::peft_adapters(model, outcome.weights),
                    metadata);
      write_file_atomically(directory_.adapter() + "/adapter_config.json", models::peft_config_text(model));
    }
    write_weights(directory_.weights(),
                  model.lora.is_on() ? models::with_merged_adapters(model, outcome.weights) : outcome.weights,
                  metadata);
  }
  nlohmann::json losses = loss_statistics_json(outcome.statistics, run_.config.network);
  const nlohmann::json earlier_memberships = outcome.earlier_memberships.empty()
                                                 ? nlohmann::json::array()
                                                 : nlohmann::json::parse(outcome.earlier_memberships);
  if (!earlier_memberships.empty()) losses["earlier_epochs"] = earlier_memberships;
  write_loss_statistics_record(directory_, losses);
  write_diagnostics_record(directory_, diagnostics_json(outcome.statistics, run_.config.network));

  RunSummary summary;
  summary.status = outcome.diverged_step ? RunStatus::kDiverged : RunStatus::kCompleted;
  if (!outcome.alert.empty()) {
    summary.status = RunStatus::kFailed;
    summary.error = outcome.alert;
    summary.stopped_by_alert = true;
  }
  summary.diverged_step = outcome.diverged_step;
  summary.point = point_;
  summary.steps = outcome.steps;
  summary.tokens = outcome.tokens;
  summary.train_final_loss = outcome.train_final_loss;
  summary.validation_final_loss = outcome.validation_final_loss;
  summary.validation_best_loss = outcome.validation_best_loss;
  summary.validation_tokens = outcome.validation_tokens;
  summary.selection_loss = outcome.selection_loss;
  if (outcome.predictions) {
    const std::vector<std::string>& classes = run_.config.data.examples->labels;
    const Predictions& predictions = *outcome.predictions;
    summary.classification =
        to_json(quality_of(predictions, run_.config.model.classes, run_.config.seeds.data), classes);
    summary.classification["cut_examples"] = {{"training", outcome.cut_examples.training},
                                              {"validation", outcome.cut_examples.validation}};
    write_predictions_record(directory_, {{"schema_version", 1},
                                          {"classes", classes},
                                          {"labels", predictions.labels},
                                          {"predictions", predictions.predictions},
                                          {"confidences", predictions.confidences}});
  }
  summary.selection_tokens = outcome.selection_tokens;
  summary.skipped_steps = outcome.skipped_steps;
  summary.loss_scale = outcome.loss_scale;
  summary.stage_failures = outcome.stage_failures;
  summary.replica_absences = absences_until(run_.config, outcome.diverged_step.value_or(outcome.steps));
  summary.resumed_at = outcome.resumed_at;
  summary.missing_lines = missing_lines_;
  summary.steps_with_fewer_replicas =
      outcome.steps_with_fewer_replicas + earlier_steps_with_fewer_replicas(run_, earlier_memberships);
  summary.checkpoints = outcome.checkpoints;
  summary.started_from = outcome.started_from;
  summary.data = outcome.data;
  summary.memory = outcome.memory;
  summary.replaced_kernel = outcome.replaced_kernel;
  summary.knows_kernels = true;
  summary.tokens_per_second = outcome.tokens_per_second;
  summary.seconds = outcome.seconds;
  summary.time = outcome.time;
  summary.provenance = provenance_from(started_, run_.config);
  nlohmann::json record = summary_json(run_, summary);
  write_summary_record(directory_, record);
  return record;
}

void record_failure(const ResolvedRun& run, const RunDirectory& directory, const nlohmann::json& point,
                    const std::string& error) {
  RunSummary summary;
  summary.status = RunStatus::kFailed;
  summary.error = error;
  summary.point = point;
  // Reads the metrics as far as possible: a damaged line may be why the run failed.
  try {
    if (run.config.command) take_outcome(outcome_of(lines_that_count(directory.metrics(), ~std::uint64_t{0})), summary);
    if (!run.config.command)
      for_each_line(directory.metrics(), [&summary](const nlohmann::json& line) {
        summary.steps = line.at("step").get<std::uint64_t>();
        summary.tokens = line.at("tokens").get<std::uint64_t>();
        summary.seconds = line.at("seconds").get<double>();
        summary.skipped_steps = line.value("skipped_steps", std::uint64_t{0});
        summary.loss_scale = line.value("loss_scale", summary.loss_scale);
        if (!line.contains("validation_loss") || !line.at("validation_loss").is_number()) return;
        const double loss = line.at("validation_loss").get<double>();
        summary.validation_final_loss = loss;
        summary.validation_best_loss = std::min(loss, summary.validation_best_loss.value_or(loss));
      });
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
  }
  summary.provenance = provenance_from(start_of(directory), run.config);
  make_directories(directory.path);
  write_summary_record(directory, summary_json(run, summary));
}

}  // namespace droptest::experiments
