// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/stage_failures.h"

#include <algorithm>
#include <array>
#include <boost/random/uniform_01.hpp>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>

#include "models/gpt2/initial_weights.h"
#include "sim/random/philox.h"

namespace droptest::experiments {
namespace {

using Replacement = FailureConfig::Replacement;

/// The first stream of the seeds of random replacements, which count by step; lower streams are those of stages.
constexpr std::uint64_t kReplacements = std::uint64_t{1} << 32U;

bool is_among(const std::vector<int>& stages, int stage) {
  return std::find(stages.begin(), stages.end(), stage) != stages.end();
}

/// The neighbours that a failed stage hears from, the one before it first.
std::vector<int> neighbours_of(int stage, const std::vector<int>& failed, Replacement replacement) {
  if (replacement == Replacement::kZero || replacement == Replacement::kRandom) return {};
  std::vector<int> all;
  for (const int neighbour : {stage - 1, stage + 1}) {
    if (!is_among(failed, neighbour)) all.push_back(neighbour);
  }
  if (replacement == Replacement::kCopy && all.size() > 1) all.pop_back();
  return all;
}

}  // namespace

std::vector<int> failing_stages(const RunConfig& config, std::uint64_t step) {
  std::vector<int> failing;
  if (step <= 1 || !config.failures) return failing;
  for (int stage = 1; stage + 1 < config.parallel.pipeline; ++stage) {
    sim::PhiloxEngine engine(config.seeds.network, sim::Purpose::kStageFailure, static_cast<std::uint64_t>(stage));
    engine.seek(step);
    if (boost::random::uniform_01<double>()(engine) < config.failures->stage_rate) failing.push_back(stage);
  }
  return failing;
}

StageFailures::Blocks StageFailures::own_blocks() {
  Blocks blocks;
  const std::span<models::Parameter<float>> parameters = model_.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (model_.tensors()[i].layer == models::kOutsideOfBlocks) continue;
    const models::Parameter<float>& parameter = parameters[i];
    blocks.values.insert(blocks.values.end(), parameter.value.begin(), parameter.value.end());
    if (parameter.placement == models::Placement::kReplicated && tensor_group_.rank() != 0) continue;
    for (const float g : parameter.gradient) blocks.weight += static_cast<double>(g) * g;
  }
  if (!std::isfinite(blocks.weight)) blocks.weight = 0;  // gradients of a step that overflowed
  return blocks;
}

void StageFailures::begin_step(std::uint64_t step, MetricsLine& /*line*/) {
  const auto stop = network_.stop_clock();
  const std::vector<int> failed = failing_stages(config_, step);
  const std::optional<double> restored_weight = std::exchange(restored_weight_, std::nullopt);
  for (const int stage : failed) record_.push_back({step, stage});
  if (failed.empty()) return;
  const Replacement replacement = config_.failures->replacement;
  const int own = pipeline_.rank();  // each rank has one stage, of its number
  Blocks mine = own_blocks();
  mine.weight = restored_weight.value_or(mine.weight);
  tensor_group_.all_reduce(comm::Tensor(std::span(&mine.weight, 1)), comm::ReduceOp::kSum,
                           {sim::TrafficClass::kControl, "gradients of a stage"});
  std::vector<comm::Send> sends;
  std::vector<comm::Receive> receives;
  std::vector<Blocks> heard;
  heard.reserve(2);
  for (const int stage : failed) {
    for (const int neighbour : neighbours_of(stage, failed, replacement)) {
      if (neighbour == own) {
        sends.push_back({std::span<const float>(mine.values), stage, {sim::TrafficClass::kControl, "weights"}});
        sends.push_back({std::span<const double>(&mine.weight, 1), stage, {sim::TrafficClass::kControl, "share"}});
      } else if (stage == own) {
        // Tensor-parallel ranks of one number have blocks of one size.
        const auto block = mine.values.size() / static_cast<std::size_t>(layers_of(own));
        Blocks& from = heard.emplace_back();
        from.values.resize(block * static_cast<std::size_t>(layers_of(neighbour)));
        receives.push_back({std::span(from.values), neighbour, {sim::TrafficClass::kControl, "weights"}});
        receives.push_back({std::span(&from.weight, 1), neighbour, {sim::TrafficClass::kControl, "share"}});
      }
    }
  }
  pipeline_.exchange(sends, receives);
  if (is_among(failed, own)) replace(heard, step);
}

void StageFailures::visit_state(sim::StateVisitor& visitor) {
  double weight = restored_weight_ ? *restored_weight_ : own_blocks().weight;
  visit_value(visitor, weight);
  if (visitor.turn() == sim::StateVisitor::Turn::kRestore) restored_weight_ = weight;
}

int StageFailures::layers_of(int stage) const {
  return model_.pipeline()->stages.at(static_cast<std::size_t>(stage)).count();
}

// Block j of n takes the blocks at the same place of its neighbours' stages.
void StageFailures::replace(const std::vector<Blocks>& neighbours, std::uint64_t step) {
  const std::span<models::Parameter<float>> parameters = model_.parameters();
  const Replacement replacement = config_.failures->replacement;
  if (replacement == Replacement::kRandom || (replacement != Replacement::kZero && neighbours.empty())) {
    sim::PhiloxEngine engine(config_.seeds.weights, sim::Purpose::kStageFailure, kReplacements + step);
    const std::uint64_t seed = std::uint64_t{engine()} << 32U | engine();
    models::set_initial_weights<float>(model_.tensors(), seed, parameters);
  } else {
    double total = 0;
    for (const Blocks& from : neighbours) total += from.weight;
    const auto share_of = [&](const Blocks& from) {
      const bool weighs = replacement == Replacement::kWeighted && total > 0;
      return weighs ? from.weight / total : 1.0 / static_cast<double>(neighbours.size());
    };
    const auto layers = static_cast<std::size_t>(layers_of(pipeline_.rank()));
    std::size_t elems = 0;
    for (const models::Parameter<float>& parameter : parameters) elems += parameter.value.size();
    const std::size_t block = elems / layers;
    std::size_t at = 0;
    for (const models::Parameter<float>& parameter : parameters) {
      for (float& value : parameter.value) {
        double sum = 0;
        for (const Blocks& from : neighbours) {
          const std::size_t theirs = at / block * (from.values.size() / block) / layers;
          sum += share_of(from) * from.values[theirs * block + at % block];
        }
        value = static_cast<float>(sum);
        ++at;
      }
    }
  }
  model_.set_values();
  model_.reset_optimizer();
}

}  // namespace droptest::experiments
