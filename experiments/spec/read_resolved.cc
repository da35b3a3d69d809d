// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/read_resolved.h"

#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <string>

#include "comm/backend_registry.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

void read_data(const json& data, DataConfig& config) {
  config.text = data.value("text", "");
  config.tokens = data.value("tokens", "");
  const std::string format = data.value("format", "auto");
  config.format = format == "llmc"     ? TokenFormat::kLlmc
                  : format == "uint16" ? TokenFormat::kUint16
                                       : TokenFormat::kAuto;
  config.validation_fraction = data["validation_fraction"].get<double>();
}

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
  return name == "bfloat16" ? models::Precision::kBfloat16 : models::Precision::kFloat32;
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
  config.learning_rate.peak = training["learning_rate"].get<double>();
  config.learning_rate.floor = training["final_learning_rate"].get<double>();
  config.learning_rate.warmup_steps = training["warmup_steps"].get<std::uint64_t>();
  config.learning_rate.total_steps = config.steps;
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

void read_failures(const json& stages, FailureConfig& failures) {
  using enum FailureConfig::Replacement;
  static const std::map<std::string, FailureConfig::Replacement> names = {
      {"mean", kMean}, {"weighted", kWeighted}, {"copy", kCopy}, {"zero", kZero}, {"random", kRandom}};
  failures.stage_rate = stages["rate"].get<double>();
  failures.replacement = names.at(stages["replacement"].get<std::string>());
}

void read_resolved(const json& spec, RunConfig& config) {
  config.name = spec["name"].get<std::string>();
  read_data(spec["data"], config.data);
  read_backend(spec["backend"], config.backend);
  read_training(spec["training"], config.training);
  if (spec.contains("failures")) read_failures(spec["failures"]["stages"], config.failures.emplace());
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
}

}  // namespace droptest::experiments
