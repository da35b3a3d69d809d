// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/trainer_parts.h"

#include <boost/random/uniform_01.hpp>

#include "comm/backend_registry.h"
#include "comm/json/read_file.h"
#include "comm/rank_agreement.h"
#include "experiments/data/example_set.h"
#include "experiments/spec/run_traffic.h"
#include "models/kernels/update_decision.h"
#include "sim/error.h"
#include "sim/random/philox.h"

namespace droptest::experiments {
namespace {

/// Of the compute time of a step. A GEMM of the forward pass is followed by two of the backward pass.
constexpr double kBackwardShare = 2.0 / 3;
/// Between the network seeds of memberships. 2^64 by the golden ratio, odd: seeds that users choose are closer
/// together.
constexpr std::uint64_t kMembershipStride = 0x9e3779b97f4a7c15;

}  // namespace

comm::LossyOptions lossy_options(const RunConfig& config, int membership) {
  comm::LossyOptions options;
  options.network = config.network;
  options.network.seed = config.seeds.network;
  // The links of another layout get fates of their own, also where they connect the same ranks.
  options.network.seed += static_cast<std::uint64_t>(membership) * kMembershipStride;
  options.sample_every_steps = config.record.sample_every_steps;
  options.time = config.time;
  // Gradient buckets overlap with the rest of the backward pass; a pipeline's stages compute when they can.
  if (options.time && config.parallel.gradient_ranks() > 1 && !config.outer.is_on()) {
    options.time->later_share = kBackwardShare;
  }
  if (options.time && config.parallel.pipeline > 1) options.time->later_share = 1;
  return options;
}

std::unique_ptr<const EvaluationData> validation_data(const RunConfig& config, const Corpus& corpus) {
  const int sequences = config.training.batch_sequences;
  const int length = config.training.sequence_tokens;
  if (corpus.examples != nullptr) {
    return std::make_unique<const EvaluationExamples>(corpus.examples->validation, sequences, length);
  }
  return std::make_unique<const EvaluationBatches>(corpus.validation, validation_targets(config), sequences, length);
}

std::optional<EvaluationBatches> selection_batches(const RunConfig& config, const Corpus& corpus) {
  const std::uint64_t wanted = selection_targets(config);
  if (wanted == 0) return std::nullopt;
  const std::uint64_t first = validation_targets(config);
  return EvaluationBatches(corpus.validation.part(first, corpus.validation.size() - first), wanted,
                           config.training.batch_sequences, config.training.sequence_tokens);
}

RankUsageMeter::Scope usage_scope(const RunConfig& config) {
  const bool threads = comm::backend_entry(config.backend.name).rank_kind == comm::RankKind::kThreads;
  return threads ? RankUsageMeter::Scope::kThread : RankUsageMeter::Scope::kProcess;
}

std::optional<int> device_of(const RunConfig& config) {
  return config.device == Device::kCuda ? std::optional(config.device_index) : std::nullopt;
}

models::UpdateRule::Flags overflow_flags(const RunConfig& config, int rank, std::uint64_t step) {
  using Flags = models::UpdateRule::Flags;
  if (config.training.flag_loss_rate == 0) return Flags::kReliable;
  sim::PhiloxEngine engine(config.seeds.network, sim::Purpose::kOverflowFlag, static_cast<std::uint64_t>(rank));
  engine.seek(step);
  return boost::random::uniform_01<double>()(engine) < config.training.flag_loss_rate ? Flags::kMissed : Flags::kHeard;
}

double backward_share(const RunConfig& config, int layer) {
  if (layer < 0) return 0;
  const models::Gpt2Config& model = config.model;
  const double block = 12.0 * model.width;
  const double head = layer == model.layers - 1 ? model.outputs() : 0;
  return kBackwardShare / config.training.accumulation * (block + head) / (block * model.layers + model.outputs());
}

void add_to(comm::VirtualTime& total, const comm::VirtualTime& more) {
  total.seconds += more.seconds;
  total.compute_seconds += more.compute_seconds;
  total.idle_seconds += more.idle_seconds;
  for (std::size_t of = 0; of < total.exposed.size(); ++of) total.exposed[of] += more.exposed[of];
  total.network_seconds += more.network_seconds;
  total.packets += more.packets;
  total.repeated += more.repeated;
  total.timeouts += more.timeouts;
  total.late += more.late;
}

double agree_on_mean(double value, comm::Communicator& group, std::string_view name) {
  const auto ranks = static_cast<std::size_t>(group.world_size());
  std::vector<double> values(ranks);
  const std::vector<std::uint64_t> counts(ranks, 1);
  group.all_gather(comm::ConstTensor(std::span<const double>(&value, 1)), comm::Tensor(std::span<double>(values)),
                   counts, {sim::TrafficClass::kControl, name, -1});
  return models::mean_of_ranks(values);
}

Manifest manifest_of_root(const std::string& path, comm::Communicator& group) {
  std::string text;
  std::string error;
  if (group.rank() == 0) {
    try {
      text = manifest_text(parse_manifest(comm::read_file(path), path));
    } catch (const ConfigError& problem) {
      error = problem.what();
    }
  }
  error = text_of_root(error, group, "error of a checkpoint");
  if (!error.empty()) throw ConfigError(error);
  return parse_manifest(text_of_root(text, group, "manifest of a checkpoint"), path);
}

}  // namespace droptest::experiments
