// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/run_traffic.h"

#include <cmath>

namespace droptest::experiments {
namespace {

std::uint64_t in_whole_sequences(std::uint64_t tokens, const RunConfig& config) {
  const auto length = static_cast<std::uint64_t>(config.training.sequence_tokens);
  return (tokens + length - 1) / length * length;
}

std::uint64_t tokens_of_batch(const RunConfig& config) {
  return static_cast<std::uint64_t>(config.training.batch_sequences) *
         static_cast<std::uint64_t>(config.training.sequence_tokens);
}

/// The number of evaluations: before the first step, every `every_steps` steps, and after the last step.
std::uint64_t evaluations(const RunConfig& config) {
  const std::uint64_t steps = config.training.steps;
  const std::uint64_t every = config.validation.every_steps;
  return 1 + steps / every + (steps % every != 0 ? 1 : 0);
}

/// Tokens that a validation predicts; with examples, tokens that it goes through, since all replicas pad alike.
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

std::uint64_t times_in_run(const RunConfig& config, const PlannedCollective& planned, const CallCounts& counts) {
  const std::uint64_t times = counts.times * config.training.steps + counts.once;
  if (counts.evaluated == 0 || config.validation.network != ValidationConfig::Network::kLossy) return times;
  if (planned.is_of_gradient_ranks()) {  // replicas without a batch take part in the last turn, too
    std::uint64_t turns = evaluations(config) * evaluation_turns(config, validated_tokens(config));
    if (const std::uint64_t targets = selection_targets(config)) turns += evaluation_turns(config, targets);
    return times + counts.evaluated * turns;
  }
  const double batches = static_cast<double>(tokens_evaluated(config)) / static_cast<double>(tokens_of_batch(config));
  const double of_replica = static_cast<double>(counts.evaluated) / static_cast<double>(config.parallel.data);
  return times + static_cast<std::uint64_t>(std::llround(batches * of_replica));
}

}  // namespace droptest::experiments
