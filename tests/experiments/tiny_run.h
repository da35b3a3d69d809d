// SPDX-License-Identifier: Apache-2.0
// A run that trains in a fraction of a second, for tests of the trainer.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "comm/run_ranks.h"
#include "experiments/training/trainer.h"
#include "sim/loss/bernoulli.h"

namespace droptest::experiments {

/// A run of a model with one layer, width 32 and 4 heads: 12 steps of 4 sequences of 16 tokens.
inline RunConfig tiny_config() {
  RunConfig config;
  config.name = "tiny";
  config.seeds = {3, 3, 3};
  config.model = {.layers = 1, .width = 32, .heads = 4, .context = 16, .vocabulary = 64};
  config.parallel.tensor = 2;
  config.training.steps = 12;
  config.training.batch_sequences = 4;
  config.training.sequence_tokens = 16;
  config.training.learning_rate = {.peak = 0.01, .floor = 0.001, .warmup_steps = 2, .total_steps = 12};
  config.validation.every_steps = 4;
  config.validation.tokens = 64;
  config.record.every_steps = 3;
  config.record.sample_every_steps = 0;
  config.record.weights = RecordConfig::Weights::kNone;
  return config;
}

/// A text with structure to learn: a short cycle of tokens with a slower second cycle.
inline Corpus tiny_corpus() {
  static const std::vector<std::uint16_t> words = [] {
    std::vector<std::uint16_t> cycle(4000);
    for (std::size_t i = 0; i < cycle.size(); ++i) {
      cycle[i] = static_cast<std::uint16_t>(i % 5 == 0 ? 20 + i / 5 % 7 : i % 5);
    }
    return cycle;
  }();
  const Tokens tokens(std::as_bytes(std::span(words)), Tokens::Layout::kUint16, 64, "tiny corpus");
  return split_corpus(tokens, 0.25, 17, 65, "tiny corpus");
}

/// A loss rate in both halves of the given class.
inline void lose(RunConfig& config, sim::TrafficClass traffic_class, double loss_rate) {
  comm::ClassNetwork network;
  network.payload_bytes = 64;
  const auto process = std::make_shared<const sim::Bernoulli>(loss_rate);  // shared by the two halves
  network.reduce.loss = process;
  network.gather.loss = process;
  config.network.of(traffic_class) = network;
}

struct TinyResult {
  TrainingOutcome outcome;  ///< outcome of rank 0
  std::vector<MetricsLine> lines;
  std::vector<TrainingOutcome> by_rank;
};

/// Trains on ranks of the backend `local`.
inline TinyResult train_locally(const RunConfig& config, const Corpus& corpus) {
  TinyResult result;
  result.by_rank.resize(static_cast<std::size_t>(config.parallel.world_size()));
  comm::run_ranks(config.parallel.world_size(), std::chrono::seconds(30), [&](comm::Communicator& group) {
    result.by_rank[static_cast<std::size_t>(group.rank())] =
        train(config, corpus, group, [&](const MetricsLine& line) { result.lines.push_back(line); });
  });
  result.outcome = result.by_rank[0];
  return result;
}

/// All losses and norms of a run, for comparisons bit for bit.
inline std::vector<double> trace_of(const TinyResult& result) {
  std::vector<double> trace;
  for (const MetricsLine& line : result.lines) {
    trace.push_back(line.train_loss.value_or(-1));
    trace.push_back(line.gradient_norm.value_or(-1));
    trace.push_back(line.validation_loss.value_or(-1));
  }
  return trace;
}

}  // namespace droptest::experiments
