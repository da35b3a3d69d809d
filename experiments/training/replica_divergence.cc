// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/replica_divergence.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/lossy/statistics/sample_sums.h"
#include "models/gpt2/gpt2_tensors.h"

namespace droptest::experiments {
namespace {

constexpr const char* kAllGroups = "all groups";

/// Sums behind a Divergence: over elements, and over pairs of ranks for the squares.
struct Accumulator {
  double max = 0;
  double pair_squares = 0;
  double count = 0;  ///< elements x pairs

  void add(const Accumulator& other) {
    max = comm::larger_or_nan(max, other.max);
    pair_squares += other.pair_squares;
    count += other.count;
  }
  Divergence divergence() const { return {max, count == 0 ? 0 : std::sqrt(pair_squares / count)}; }
};

/// `copies` holds the ranks' copies one after the other. With d_r = x_r - x_0 over N ranks, the squares of the
/// differences of all pairs sum to N sum(d_r^2) - (sum d_r)^2, which is exactly zero for equal copies.
Accumulator accumulate(std::span<const float> copies, std::size_t elems, int world_size) {
  Accumulator result;
  result.count = world_size * (world_size - 1) / 2.0 * static_cast<double>(elems);
  for (std::size_t i = 0; i < elems; ++i) {
    double low = 0;
    double high = 0;
    double sum = 0;
    double squares = 0;
    for (int r = 1; r < world_size; ++r) {
      const double d =
          static_cast<double>(copies[static_cast<std::size_t>(r) * elems + i]) - static_cast<double>(copies[i]);
      low = std::min(low, d);
      high = std::max(high, d);
      sum += d;
      squares += d * d;
    }
    // The sum passes a NaN on; min and max do not.
    result.max = comm::larger_or_nan(result.max, std::isnan(sum) ? sum : high - low);
    const double pair_squares = world_size * squares - sum * sum;
    result.pair_squares += pair_squares < 0 ? 0 : pair_squares;
  }
  return result;
}

}  // namespace

ReplicaDivergence measure_replica_divergence(std::span<const models::Parameter<float>> parameters,
                                             const comm::ParallelGroups& groups, TiedCopies tied) {
  comm::Communicator& world = groups.world();
  comm::Communicator* const replicas = groups.gradient_group();
  // The ranks with the same layers.
  const bool has_stages = groups.layout().pipeline > 1;
  const std::unique_ptr<comm::Communicator> of_stage =
      has_stages ? world.split(groups.coordinates().pipeline, world.rank()) : nullptr;
  comm::Communicator& same_layers = has_stages ? *of_stage : world;
  // The ranks with the same part of the tied embedding, on both stages that have it.
  std::unique_ptr<comm::Communicator> of_tied;
  if (tied == TiedCopies::kCompared) {
    const bool has_it =
        std::ranges::find(parameters, models::kTiedTensor, &models::Parameter<float>::name) != parameters.end();
    of_tied = world.split(has_it ? groups.coordinates().tensor : -1, world.rank());
  }
  std::map<std::string, Accumulator> accumulators;
  if (has_stages) {  // every rank has each group, whatever its layers are
    for (const char* name : {kAllGroups, "bias", "embedding", "layer_norm", "matrix"}) accumulators[name];
  }
  std::vector<float> copies;
  for (const models::Parameter<float>& parameter : parameters) {
    const bool replicated = parameter.placement == models::Placement::kReplicated;
    comm::Communicator* group = replicated ? &same_layers : replicas;
    if (of_tied != nullptr && parameter.name == models::kTiedTensor) group = of_tied.get();
    if (group == nullptr || (has_stages && group->world_size() == 1)) continue;
    const auto ranks = static_cast<std::size_t>(group->world_size());
    const std::size_t elems = parameter.value.size();
    copies.resize(elems * ranks);
    group->all_gather(comm::ConstTensor(std::span<const float>(parameter.value)),
                      comm::Tensor(std::span<float>(copies)), std::vector<std::uint64_t>(ranks, elems),
                      {sim::TrafficClass::kControl, parameter.name, -1});
    // All ranks of the group have the same numbers: the first one counts them.
    Accumulator one = accumulate(copies, elems, group->world_size());
    if (group->rank() != 0) one = {};
    accumulators[kAllGroups].add(one);
    accumulators[parameter.group].add(one);
  }
  ReplicaDivergence result;
  for (auto& [name, accumulator] : accumulators) {
    std::vector<Accumulator> of_ranks(static_cast<std::size_t>(world.world_size()));
    static_assert(sizeof(Accumulator) == 3 * sizeof(double));
    world.all_gather(comm::ConstTensor(std::span<const double>(&accumulator.max, 3)),
                     comm::Tensor(std::span<double>(&of_ranks.front().max, 3 * of_ranks.size())),
                     std::vector<std::uint64_t>(of_ranks.size(), 3), {sim::TrafficClass::kControl, name, -1});
    Accumulator sum;
    for (const Accumulator& rank : of_ranks) sum.add(rank);
    if (has_stages && name != kAllGroups && sum.count == 0) continue;
    (name == kAllGroups ? result.all : result.groups[name]) = sum.divergence();
  }
  return result;
}

}  // namespace droptest::experiments
