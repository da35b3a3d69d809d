// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/trainer_parts.h"

#include <boost/random/uniform_01.hpp>

#include "comm/backend_registry.h"
#include "comm/json/read_file.h"
#include "comm/rank_agreement.h"
#include "experiments/training/compute_time.h"
#include "sim/error.h"
#include "sim/random/philox.h"

namespace droptest::experiments {
namespace {

/// Between the network seeds of memberships. 2^64 by the golden ratio, odd: seeds that users choose are closer
/// together.
constexpr std::uint64_t kMembershipStride = 0x9e3779b97f4a7c15;

}  // namespace

comm::LossyOptions lossy_options(const RunConfig& config, int membership) {
  comm::LossyOptions options;
  options.network = config.network;
  options.network.seed = config.seeds.network;
  // The links of another layout get fates of their own, even if they connect the same ranks.
  options.network.seed += static_cast<std::uint64_t>(membership) * kMembershipStride;
  options.sample_every_steps = config.record.sample_every_steps;
  options.time = time_model(config);
  return options;
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
