// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/replica_divergence.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "comm/lossy/statistics/sample_sums.h"

namespace droptest::experiments {
namespace {

/// Sums behind a Divergence: over elements, and over pairs of ranks for the squares.
struct Accumulator {
  double max = 0;
  double pair_squares = 0;
  std::uint64_t elems = 0;

  void add(const Accumulator& other) {
    max = comm::larger_or_nan(max, other.max);
    pair_squares += other.pair_squares;
    elems += other.elems;
  }

  Divergence divergence(int world_size) const {
    const double pairs = world_size * (world_size - 1) / 2.0;
    const double count = pairs * static_cast<double>(elems);
    return {max, count == 0 ? 0 : std::sqrt(pair_squares / count)};
  }
};

/// `copies` holds the ranks' copies one after the other. With d_r = x_r - x_0 over N ranks, the squares of the
/// differences of all pairs sum to N sum(d_r^2) - (sum d_r)^2, which is exactly zero for equal copies.
Accumulator accumulate(std::span<const float> copies, std::size_t elems, int world_size) {
  Accumulator result;
  result.elems = elems;
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
    // NaN is lost by min and max, but not by the sum.
    result.max = comm::larger_or_nan(result.max, std::isnan(sum) ? sum : high - low);
    const double pair_squares = world_size * squares - sum * sum;
    result.pair_squares += pair_squares < 0 ? 0 : pair_squares;
  }
  return result;
}

}  // namespace

ReplicaDivergence measure_replica_divergence(std::span<const models::Parameter<float>> parameters,
                                             comm::Communicator& group) {
  const int world_size = group.world_size();
  Accumulator all;
  std::map<std::string, Accumulator> groups;
  std::vector<float> copies;
  for (const models::Parameter<float>& parameter : parameters) {
    if (parameter.placement != models::Placement::kReplicated) continue;
    const std::size_t elems = parameter.value.size();
    copies.resize(elems * static_cast<std::size_t>(world_size));
    const std::vector<std::uint64_t> counts(static_cast<std::size_t>(world_size), elems);
    group.all_gather(comm::ConstTensor(std::span<const float>(parameter.value)), comm::Tensor(std::span<float>(copies)),
                     counts, {sim::TrafficClass::kControl, parameter.name, -1});
    const Accumulator one = accumulate(copies, elems, world_size);
    all.add(one);
    groups[parameter.group].add(one);
  }
  ReplicaDivergence result;
  result.all = all.divergence(world_size);
  for (const auto& [name, accumulator] : groups) result.groups[name] = accumulator.divergence(world_size);
  return result;
}

}  // namespace droptest::experiments
