// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/run_traffic.h"

#include <cmath>

namespace droptest::experiments {
namespace {

using sim::TrafficClass;

std::uint64_t in_whole_sequences(std::uint64_t tokens, const RunConfig& config) {
  const auto length = static_cast<std::uint64_t>(config.training.sequence_tokens);
  return (tokens + length - 1) / length * length;
}

std::uint64_t tokens_of_batch(const RunConfig& config) {
  return static_cast<std::uint64_t>(config.training.batch_sequences) *
         static_cast<std::uint64_t>(config.training.sequence_tokens);
}

/// Before the first step, every so many steps, and after the last one.
std::uint64_t evaluations(const RunConfig& config) {
  const std::uint64_t steps = config.training.steps;
  const std::uint64_t every = config.validation.every_steps;
  return 1 + steps / every + (steps % every != 0 ? 1 : 0);
}

/// Tokens that a validation predicts, or goes through where it has examples, which all replicas pad alike.
std::uint64_t validated_tokens(const RunConfig& config) {
  if (!config.data.examples) return validation_targets(config);
  return tokens_of_batch(config);  // at least: the examples are not read here
}

/// Tokens that all ranks of one tensor-parallel coordinate go through in one evaluation of so many tokens: replicas
/// take batches in turn, and those that have none in the last turn go through the last batch again.
std::uint64_t tokens_gone_through(const RunConfig& config, std::uint64_t targets) {
  if (targets == 0) return 0;
  const std::uint64_t batch = tokens_of_batch(config);
  const auto replicas = static_cast<std::uint64_t>(config.parallel.data);
  const std::uint64_t batches = (targets + batch - 1) / batch;
  const std::uint64_t again = (batches + replicas - 1) / replicas * replicas - batches;
  return targets + again * (targets - (batches - 1) * batch);
}

/// Batches of a data-parallel rank in one evaluation of so many tokens.
std::uint64_t evaluation_turns(const RunConfig& config, std::uint64_t targets) {
  const std::uint64_t batches = (targets + tokens_of_batch(config) - 1) / tokens_of_batch(config);
  const auto replicas = static_cast<std::uint64_t>(config.parallel.data);
  return (batches + replicas - 1) / replicas;
}

/// How often each bucket of parameters is gathered in a run.
std::uint64_t gathers_of_run(const RunConfig& config) {
  std::uint64_t gathers = config.training.steps;
  if (config.sharding.shards_values()) {
    gathers *= 2 * static_cast<std::uint64_t>(config.training.accumulation);  // both passes
    if (config.validation.network == ValidationConfig::Network::kLossy) {
      gathers += evaluations(config) * evaluation_turns(config, validated_tokens(config));
      if (const std::uint64_t targets = selection_targets(config)) gathers += evaluation_turns(config, targets);
    }
  }
  return gathers + 1;  // of the starting weights
}

/// Whether planned_collectives() lists those of the whole run.
bool is_planned_by_run(TrafficClass traffic_class) {
  return traffic_class == TrafficClass::kOuter || traffic_class == TrafficClass::kEmbeddingGradient;
}

/// Whether planned_collectives() lists those of a step, not of a micro-batch.
bool is_planned_by_step(const RunConfig& config, TrafficClass traffic_class) {
  return traffic_class == TrafficClass::kTpRecomputation ||
         (traffic_class == TrafficClass::kSequenceBackward && config.tensor_sequence);
}

}  // namespace

std::uint64_t validation_targets(const RunConfig& config) {
  return in_whole_sequences(config.validation.tokens, config);
}

std::uint64_t selection_targets(const RunConfig& config) {
  return in_whole_sequences(config.validation.selection_tokens, config);
}

std::uint64_t tokens_of_step(const RunConfig& config) {
  return tokens_of_batch(config) * static_cast<std::uint64_t>(config.training.accumulation) *
         static_cast<std::uint64_t>(config.parallel.data);
}

std::uint64_t tokens_evaluated(const RunConfig& config) {
  return evaluations(config) * tokens_gone_through(config, validated_tokens(config)) +
         tokens_gone_through(config, selection_targets(config));
}

std::uint64_t in_whole_run(const RunConfig& config, TrafficClass of, std::uint64_t planned) {
  const std::uint64_t steps = config.training.steps;
  const std::uint64_t batches = steps * static_cast<std::uint64_t>(config.training.accumulation);
  if (is_planned_by_run(of)) return planned;
  if (is_planned_by_step(config, of)) return planned * steps;
  if (of == TrafficClass::kDpGradient) return planned * (config.sharding.reduces_each() ? batches : steps);
  if (of == TrafficClass::kParameterGather) return planned * gathers_of_run(config);
  std::uint64_t number = planned * batches;
  const bool is_forward =
      of == TrafficClass::kTpForward || of == TrafficClass::kPpActivation || of == TrafficClass::kSequenceForward;
  if (is_forward && config.validation.network == ValidationConfig::Network::kLossy) {
    const double evaluated =
        static_cast<double>(tokens_evaluated(config)) / static_cast<double>(tokens_of_batch(config));
    const double of_replica = static_cast<double>(planned) / static_cast<double>(config.parallel.data);
    number += static_cast<std::uint64_t>(std::llround(evaluated * of_replica));
  }
  return number;
}

}  // namespace droptest::experiments
