// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/read_resolved.h"

#include <chrono>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "comm/backend_registry.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

/// Absent: an empty list.
std::vector<ShardFile> shard_files(const json& data, const char* member) {
  std::vector<ShardFile> files;
  for (const json& file : data.value(member, json::array())) {
    ShardFile& added = files.emplace_back();
    added.file = file["file"];
    added.bytes = file["bytes"];
    added.tokens = file["tokens"];
    added.sha256 = file.value("sha256", "");
    if (file.contains("version")) {
      const json& version = file["version"];
      added.hashed = FileVersion{version["inode"], added.bytes, version["modified_nanoseconds"]};
    }
    if (!file.contains("crc32c")) continue;
    added.crc32c = static_cast<std::uint32_t>(std::stoul(file["crc32c"].get<std::string>(), nullptr, 16));
  }
  return files;
}

void read_shards(const json& data, ShardConfig& shards) {
  shards.patterns = file_patterns(data, "shards");
  shards.validation_patterns = file_patterns(data, "validation_shards");
  shards.manifest = data.value("manifest", "");
  shards.files = shard_files(data, "files");
  shards.validation_files = shard_files(data, "validation_files");
  shards.content = data["format"] == "text" ? ShardConfig::Content::kText : ShardConfig::Content::kTokens;
  shards.order = data["shuffle"] == true ? ShardConfig::Order::kShuffled : ShardConfig::Order::kAsStored;
  shards.lost_limit = data["lost_limit"].get<double>();
  shards.attempts = data["retries"]["attempts"].get<int>();
  shards.backoff_seconds = data["retries"]["backoff_seconds"].get<double>();
}

models::LearningRateSchedule::Shape shape_of(const std::string& kind) {
  using enum models::LearningRateSchedule::Shape;
  static const std::map<std::string, models::LearningRateSchedule::Shape> names = {
      {"cosine", kCosine},
      {"constant", kConstant},
      {"linear", kLinear},
      {"warmup_stable_decay", kWarmupStableDecay},
      {"table", kTable}};
  return names.at(kind);
}

models::LearningRateSchedule schedule_from(const json& training) {
  models::LearningRateSchedule rates;
  rates.peak = training["learning_rate"].get<double>();
  rates.floor = training["final_learning_rate"].get<double>();
  rates.warmup_steps = training["warmup_steps"].get<std::uint64_t>();
  rates.total_steps = training["steps"].get<std::uint64_t>();
  const json schedule = training.value("schedule", json("cosine"));
  rates.shape = shape_of(schedule.is_string() ? schedule : schedule["kind"]);
  if (schedule.is_string()) return rates;
  rates.decay_steps = schedule.value("decay_steps", std::uint64_t{0});
  for (const json& point : schedule.value("points", json::array())) {
    rates.points.push_back({point["step"].get<std::uint64_t>(), point["factor"].get<double>()});
  }
  return rates;
}

}  // namespace

std::vector<std::string> file_patterns(const json& data, const char* member) {
  if (!data.contains(member)) return {};
  if (data[member].is_string()) return {data[member].get<std::string>()};
  return data[member].get<std::vector<std::string>>();
}

ExampleConfig read_example_config(const json& data) {
  ExampleConfig config;
  config.training = data["examples"];
  config.validation = data.value("validation_examples", "");
  config.layout = data["layout"];
  config.labels = data.value("labels", std::vector<std::string>());
  config.separator = data["separator"];
  config.too_long = data["too_long"] == "refuse" ? ExampleConfig::TooLong::kRefused : ExampleConfig::TooLong::kCut;
  return config;
}

void read_data(const json& data, DataConfig& config) {
  config.text = data.value("text", "");
  config.tokens = data.value("tokens", "");
  const std::string format = data.value("format", "auto");
  config.format = format == "llmc"     ? TokenFormat::kLlmc
                  : format == "uint16" ? TokenFormat::kUint16
                                       : TokenFormat::kAuto;
  config.validation_fraction = data.value("validation_fraction", config.validation_fraction);
  if (data.value("documents", false)) config.end_of_text = data["end_of_text"].get<int>();
  if (data.contains("examples")) config.examples = read_example_config(data);
  if (data.contains("shards")) read_shards(data, config.shards.emplace());
}

namespace {

std::optional<comm::Rendezvous> rendezvous_of(const json& rendezvous) {
  const std::string kind = rendezvous["kind"].get<std::string>();
  if (kind == "auto") return std::nullopt;
  comm::Rendezvous result;
  if (kind == "file") {
    result.kind = comm::Rendezvous::Kind::kFile;
    result.directory = rendezvous.value("directory", "");
  } else {
    result.kind = kind == "redis" ? comm::Rendezvous::Kind::kRedis : comm::Rendezvous::Kind::kTcp;
    result.host = rendezvous.value("host", "");
    result.port = rendezvous.contains("port") ? rendezvous["port"].get<int>() : 0;
  }
  return result;
}

void read_backend(const json& backend, BackendConfig& config) {
  config.name = backend["name"].get<std::string>();
  (void)comm::backend_entry(config.name);
  const double milliseconds = std::ceil(backend["timeout_seconds"].get<double>() * 1000);
  config.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(milliseconds));
  config.threads_per_rank = backend["threads_per_rank"].get<int>();
  config.rendezvous = rendezvous_of(backend["rendezvous"]);
}

models::Precision precision_of(const json& name) {
  using enum models::Precision;
  static const std::map<std::string, models::Precision> names = {
      {"float32", kFloat32}, {"bfloat16", kBfloat16}, {"float16", kFloat16}, {"tf32", kTf32}};
  return names.at(name.get<std::string>());
}

models::LossScaleConfig loss_scale_of(const json& section) {
  using Kind = models::LossScaleConfig::Kind;
  models::LossScaleConfig scale;
  scale.kind = section["kind"] == "dynamic" ? Kind::kDynamic : Kind::kStatic;
  scale.initial = section["initial"].get<double>();
  scale.give_up_after = section["give_up_after"].get<std::uint64_t>();
  if (scale.kind == Kind::kStatic) return scale;
  scale.growth = section["growth"].get<double>();
  scale.backoff = section["backoff"].get<double>();
  scale.interval = section["interval"].get<std::uint64_t>();
  scale.hysteresis = section["hysteresis"].get<std::uint64_t>();
  scale.minimum = section["minimum"].get<double>();
  return scale;
}

}  // namespace

void read_training(const json& training, TrainingConfig& config) {
  config.steps = training["steps"].get<std::uint64_t>();
  config.batch_sequences = training["batch_sequences"].get<int>();
  config.sequence_tokens = training["sequence_tokens"].get<int>();
  config.accumulation = training["accumulation"].get<int>();
  if (training.contains("precision")) {
    config.precision.compute = precision_of(training["precision"]["compute"]);
    config.precision.message = precision_of(training["precision"]["message"]);
  }
  if (training.contains("loss_scale")) {
    config.loss_scale = loss_scale_of(training["loss_scale"]);
    config.flag_loss_rate = training["loss_scale"].value("flag_loss_rate", 0.0);
  }
  config.epochs = training.value("epochs", std::uint64_t{0});
  config.last_batch = training.value("drop_last", false) ? LastBatch::kDropped : LastBatch::kTrained;
  config.learning_rate = schedule_from(training);
  config.optimizer.weight_decay = training["weight_decay"].get<double>();
  config.optimizer.beta1 = training["beta1"].get<double>();
  config.optimizer.beta2 = training["beta2"].get<double>();
  config.optimizer.epsilon = training["epsilon"].get<double>();
  if (training.value("optimizer", "adamw") == "sgd") {
    config.optimizer.rule = models::OptimizerConfig::Rule::kSgd;
    config.optimizer.momentum = training["momentum"].get<double>();
  }
  config.gradient_clip = training["gradient_clip"].get<double>();
  if (training.value("gradient_norm", "agreed") == "own") config.gradient_norm = models::UpdateRule::Norm::kOwn;
}

void read_checkpoint(const json& section, CheckpointConfig& checkpoint) {
  using Config = CheckpointConfig;
  checkpoint.every_steps = section["every_steps"];
  checkpoint.keep = section["keep"];
  checkpoint.writing = section["async"] ? Config::Writing::kInBackground : Config::Writing::kAtOnce;
  checkpoint.on_signal = section["on_signal"] ? Config::OnSignal::kTake : Config::OnSignal::kIgnore;
  checkpoint.on_error = section["on_error"] == "stop" ? Config::OnError::kStop : Config::OnError::kContinue;
  checkpoint.before = section["before"].get<std::vector<std::string>>();
  checkpoint.after = section["after"].get<std::vector<std::string>>();
}

AlertConfig read_alert(const json& section) {
  using enum AlertConfig::Action;
  static const std::map<std::string, AlertConfig::Action> names = {
      {"log", kLog}, {"stop", kStop}, {"checkpoint", kCheckpoint}};
  AlertConfig alert;
  alert.when = section["when"];
  if (section.contains("threshold")) alert.threshold = section["threshold"].get<double>();
  const json& action = section["do"];
  alert.action = action.is_object() ? kCommand : names.at(action.get<std::string>());
  if (action.is_object()) {
    alert.command = action["command"].get<std::vector<std::string>>();
    alert.interval_seconds = action.value("interval_seconds", alert.interval_seconds);
  }
  return alert;
}

void read_stage_failures(const json& stages, FailureConfig& failures) {
  using enum FailureConfig::Replacement;
  static const std::map<std::string, FailureConfig::Replacement> names = {
      {"mean", kMean}, {"weighted", kWeighted}, {"copy", kCopy}, {"zero", kZero}, {"random", kRandom}};
  failures.stage_rate = stages["rate"].get<double>();
  failures.replacement = names.at(stages["replacement"].get<std::string>());
}

void read_failures(const json& section, FailureConfig& failures) {
  if (section.contains("stages")) read_stage_failures(section["stages"], failures);
  for (const json& absence : section.value("replicas", json::array())) {
    ReplicaAbsence& replica = failures.replicas.emplace_back();
    replica.data_rank = absence["data_rank"].get<int>();
    replica.from = absence["from"].get<std::uint64_t>();
    if (absence.contains("until")) replica.until = absence["until"].get<std::uint64_t>();
    if (absence.contains("reload_step")) replica.reload_step = absence["reload_step"].get<std::uint64_t>();
  }
}

void read_resolved(const json& spec, RunConfig& config) {
  config.name = spec["name"].get<std::string>();
  read_data(spec["data"], config.data);
  read_backend(spec["backend"], config.backend);
  read_training(spec["training"], config.training);
  if (spec["training"].contains("dropout")) {
    const json& dropout = spec["training"]["dropout"];
    config.model.dropout.attention = dropout["attention"].get<double>();
    config.model.dropout.residual = dropout["residual"].get<double>();
    config.model.dropout.embedding = dropout["embedding"].get<double>();
  }
  if (spec.contains("checkpoint")) read_checkpoint(spec["checkpoint"], config.checkpoint.emplace());
  if (spec.contains("start")) {
    const json& start = spec["start"];
    config.start = {start["manifest"], start.value("step", std::uint64_t{0}), start.value("epoch", 1)};
  }
  if (spec.contains("restart")) {
    config.restart = {spec["restart"]["attempts"].get<int>(), spec["restart"]["backoff_seconds"].get<double>()};
  }
  for (const json& alert : spec.value("alerts", json::array())) config.alerts.push_back(read_alert(alert));
  if (spec.contains("elastic")) {
    config.elastic = {spec["elastic"]["min_data"].get<int>(), spec["elastic"]["max_data"].get<int>()};
    config.full_data = spec["parallel"]["data"].get<int>();
  }
  if (spec.contains("failures")) {
    read_failures(spec["failures"], config.failures.emplace());
    const auto& replicas = config.failures->replicas;
    if (!replicas.empty() && replicas.front().reload_step) config.full_data = spec["parallel"]["data"].get<int>();
  }
  const json& validation = spec["validation"];
  config.validation.every_steps = validation["every_steps"].get<std::uint64_t>();
  config.validation.tokens = validation["tokens"].get<std::uint64_t>();
  config.validation.selection_tokens = validation.value("selection_tokens", std::uint64_t{0});
  config.validation.network =
      validation["network"] == "lossy" ? ValidationConfig::Network::kLossy : ValidationConfig::Network::kLossless;
  const json& record = spec["record"];
  config.record.every_steps = record["every_steps"].get<std::uint64_t>();
  config.record.sample_every_steps = record["sample_every_steps"].get<std::uint64_t>();
  config.record.links = record["links"] == "include" ? RecordConfig::Links::kInclude : RecordConfig::Links::kOmit;
  config.record.weights = record["weights"] == "none" ? RecordConfig::Weights::kNone : RecordConfig::Weights::kFinal;
  if (record.contains("profile_steps")) {
    const json& steps = record["profile_steps"];
    config.record.profile_steps = {steps[0].get<std::uint64_t>(), steps[1].get<std::uint64_t>()};
  }
}

}  // namespace droptest::experiments
