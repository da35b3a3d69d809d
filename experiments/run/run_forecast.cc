// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/run_forecast.h"

#include <chrono>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <vector>

#include "comm/lab/fate_simulation.h"
#include "comm/run_ranks.h"
#include "experiments/data/corpus.h"
#include "experiments/data/example_set.h"
#include "experiments/spec/dry_run.h"
#include "experiments/spec/run_traffic.h"
#include "experiments/training/trainer.h"

namespace droptest::experiments {
namespace {

using sim::TrafficClass;

constexpr std::uint64_t kStepsToWarmUp = 1;
constexpr std::uint64_t kStepsToMeasure = 3;
constexpr double kSlowOperationsPerSecond = 1e10;  ///< speed of a core, below that of any core with AVX2
constexpr double kLongestStepSeconds = 8;

double operations_per_token(const RunConfig& config) {
  const auto width = static_cast<double>(config.model.width);
  const auto layers = static_cast<double>(config.model.layers);
  const double products = 12 * layers * width * width + static_cast<double>(config.model.outputs()) * width;
  return 6 * products + 12 * layers * width * static_cast<double>(config.training.sequence_tokens);
}

/// First transmissions in the whole run.
std::uint64_t packets_of_class(const RunConfig& config, const DryRun& run, TrafficClass traffic_class) {
  std::uint64_t packets = 0;
  for (PlannedCollective planned : run.of(traffic_class)) {
    planned.call.network = *config.network.of(traffic_class);
    if (planned.call.collective == sim::Collective::kBroadcast) {
      planned.call.network.path = "direct";  // a message is one hop on every path
      planned.call.network.sized_paths.clear();
    }
    packets += times_in_run(config, planned, planned.counts) * comm::first_packets(planned.call);
  }
  return packets;
}

/// Tokens without a meaning, for batches of any size; an example of each class if the model classifies.
Corpus random_tokens(const RunConfig& config, std::vector<std::uint16_t>& storage) {
  if (config.model.classifies()) {
    ExampleSet set;
    for (int label = 0; label < config.model.classes; ++label) {
      set.labels.push_back(label);
      set.tokens.emplace_back(static_cast<std::size_t>(config.training.sequence_tokens));
    }
    Corpus corpus;
    corpus.examples = std::make_shared<const ExampleSets>(ExampleSets{set, set});
    return corpus;
  }
  const auto length = static_cast<std::size_t>(config.training.sequence_tokens);
  storage.resize(64 * (length + 1));
  std::uint32_t state = 1;
  for (std::uint16_t& token : storage) {
    state = state * 1664525U + 1013904223U;
    token = static_cast<std::uint16_t>((state >> 16U) % static_cast<std::uint32_t>(config.model.vocabulary));
  }
  const Tokens tokens(std::as_bytes(std::span(storage)), Tokens::Layout::kUint16, config.model.vocabulary,
                      "random tokens");
  return {tokens, tokens};
}

/// Replaces each loss process by the name of its model.
void keep_loss_models(nlohmann::json& part) {
  if (part.is_object() && part.contains("loss") && part["loss"].is_object() && part["loss"].contains("model")) {
    part["loss"] = nlohmann::json(part["loss"]["model"]);
  }
  if (!part.is_structured()) return;
  for (nlohmann::json& inner : part) keep_loss_models(inner);
}

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

}  // namespace

std::map<std::string, std::uint64_t> expected_packets(const RunConfig& config) {
  std::map<std::string, std::uint64_t> packets;
  if (config.network.is_empty()) return packets;
  const DryRun run(config);
  for (const TrafficClass of : sim::kAllTrafficClasses) {
    if (!config.network.of(of) || run.of(of).empty()) continue;
    packets[std::string(sim::traffic_class_name(of))] = packets_of_class(config, run, of);
  }
  return packets;
}

double step_operations(const RunConfig& config) {
  return operations_per_token(config) * static_cast<double>(tokens_of_step(config));
}

double run_operations(const RunConfig& config) {
  return step_operations(config) * static_cast<double>(config.training.steps) +
         operations_per_token(config) / 3 * static_cast<double>(tokens_evaluated(config));
}

nlohmann::json shape_of(const nlohmann::json& spec) {
  nlohmann::json shape;
  for (const char* section : {"model", "parallel", "backend", "validation"}) shape[section] = spec.at(section);
  shape["device"] = spec.value("device", "cpu");
  shape["model"].erase("weights");
  shape["model"].erase("sha256");
  for (const char* member : {"batch_sequences", "sequence_tokens", "accumulation", "precision"}) {
    shape["training"][member] = spec.at("training").value(member, nlohmann::json());
  }
  return shape;
}

nlohmann::json without_rates(const nlohmann::json& spec) {
  nlohmann::json rest = spec;
  for (const char* member : {"name", "description", "seeds", "alerts"}) rest.erase(member);
  for (const char* member : {"learning_rate", "weight_decay"}) rest["training"].erase(member);
  // Stages and sequence ranks keep their lost elements for the backward pass, more of them at higher rates.
  const nlohmann::json& parallel = spec["parallel"];
  const bool keeps_losses = parallel.value("pipeline", 1) > 1 || parallel.value("sequence", 1) > 1 ||
                            parallel.value("tensor_sequence", nlohmann::json(false)) != false;
  if (rest.contains("network") && !keeps_losses) keep_loss_models(rest["network"]);
  return rest;
}

std::optional<StepTime> measure_step(const RunConfig& config) {
  if (config.device != Device::kCpu || step_operations(config) / kSlowOperationsPerSecond > kLongestStepSeconds) {
    return std::nullopt;
  }
  RunConfig few = config;
  few.training.steps = kStepsToWarmUp + kStepsToMeasure;
  few.training.epochs = few.data.examples ? 0 : few.training.epochs;
  few.training.learning_rate.warmup_steps = 0;
  few.initial_weights.clear();
  few.failures.reset();
  few.full_data.reset();
  few.validation.every_steps = few.training.steps + 1;
  few.validation.tokens = 1;
  few.validation.selection_tokens = 0;
  few.record = {.every_steps = 1,
                .sample_every_steps = 0,
                .links = RecordConfig::Links::kOmit,
                .weights = RecordConfig::Weights::kNone,
                .profile_steps = {}};
  std::vector<std::uint16_t> storage;
  const Corpus corpus = random_tokens(few, storage);
  StepTime begin;
  StepTime end;
  comm::run_ranks(few.parallel.world_size(), few.backend.timeout, [&](comm::Communicator& group) {
    train(few, corpus, group, [&](const MetricsLine& line) {
      if (line.step == kStepsToWarmUp) begin = {line.seconds, processor_seconds()};
      if (line.step + 1 == few.training.steps) end = {line.seconds, processor_seconds()};
    });
  });
  // An evaluation follows the last step; only the steps in between count.
  constexpr auto kCounted = static_cast<double>(kStepsToMeasure - 1);
  return StepTime{(end.wall_seconds - begin.wall_seconds) / kCounted,
                  (end.processor_seconds - begin.processor_seconds) / kCounted};
}

}  // namespace droptest::experiments
