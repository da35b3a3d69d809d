// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/statistics/result_sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>
#include <type_traits>

#include "comm/lossy/statistics/device_samples.h"
#include "comm/part_reduction.h"
#include "comm/visit_elements.h"

namespace droptest::comm {
namespace {

const Message kComparison{sim::TrafficClass::kControl, "divergence of results"};

// Sums in fixed lanes, as many as compilers vectorise; lanes are added in order, so the bits depend on nothing else.
constexpr std::size_t kLanes = 8;
using Lanes = std::array<double, kLanes>;

double sum(const Lanes& lanes) { return std::accumulate(lanes.begin(), lanes.end(), 0.0); }

// Calls visit(begin, count) for ranges that cover `count` elements in order, of kLanes each but for the last.
template <class Visit>
void for_each_lane_range(std::size_t count, const Visit& visit) {
  std::size_t begin = 0;
  for (; begin + kLanes <= count; begin += kLanes) visit(begin, std::integral_constant<std::size_t, kLanes>());
  if (begin < count) visit(begin, count - begin);
}

template <class T>
void add_errors(std::span<const T> exact, std::span<const T> result, SampleSums& sums) {
  Lanes error_energy{}, exact_energy{}, result_energy{}, inner_product{}, error_sum{};
  for_each_lane_range(exact.size(), [&](std::size_t begin, auto count) {
    for (std::size_t lane = 0; lane < count; ++lane) {
      const double e = number_of(exact[begin + lane]);
      const double r = number_of(result[begin + lane]);
      error_energy[lane] += (r - e) * (r - e);
      exact_energy[lane] += e * e;
      result_energy[lane] += r * r;
      inner_product[lane] += e * r;
      error_sum[lane] += r - e;
    }
  });
  sums.error_energy += sum(error_energy);
  sums.exact_energy += sum(exact_energy);
  sums.result_energy += sum(result_energy);
  sums.inner_product += sum(inner_product);
  sums.error_sum += sum(error_sum);
  sums.elems += static_cast<double>(exact.size());
}

// The difference between the ranks' values of one part: reads every rank's values once, and writes no result.
class DivergenceOfPart final : public PartReduction {
 public:
  DivergenceOfPart(ConstTensor like, std::size_t count, SampleSums& sums) : like_(like), count_(count), sums_(sums) {}

  void reduce(std::span<const std::byte* const> contributions, std::span<std::byte* const> /*results*/,
              std::span<const PartReduction* const> /*reductions*/) override {
    if (like_.stream != nullptr) {
      const DivergenceSums divergence = divergence_sums_on_device(like_.type, count_, contributions, *like_.stream);
      sums_.divergence_energy += divergence.energy;
      sums_.divergence_max = larger_or_nan(sums_.divergence_max, divergence.max);
      sums_.divergence_elems += static_cast<double>(contributions.size() * count_);
      return;
    }
    visit_elements(like_.type, [&]<class T>(std::type_identity<T>) { add<T>(contributions); });
  }

 private:
  // Differences to rank 0's values are exact zeros if ranks agree; a mean of the values themselves would round.
  template <class T>
  void add(std::span<const std::byte* const> contributions) {
    const auto ranks = static_cast<double>(contributions.size());
    Lanes energy{}, widest{};
    for_each_lane_range(count_, [&](std::size_t begin, auto count) {
      Lanes differences{}, squares{}, lowest{}, highest{};
      const T* reference = reinterpret_cast<const T*>(contributions[0]) + begin;
      for (const std::byte* contribution : contributions.subspan(1)) {
        const T* values = reinterpret_cast<const T*>(contribution) + begin;
        for (std::size_t lane = 0; lane < count; ++lane) {
          const double difference = number_of(values[lane]) - number_of(reference[lane]);
          differences[lane] += difference;
          squares[lane] += difference * difference;
          lowest[lane] = std::min(lowest[lane], difference);
          highest[lane] = std::max(highest[lane], difference);
        }
      }
      for (std::size_t lane = 0; lane < count; ++lane) {
        energy[lane] += squares[lane] - differences[lane] * differences[lane] / ranks;
        // min and max drop a NaN; the sum keeps it.
        const double spread = std::isnan(differences[lane]) ? differences[lane] : highest[lane] - lowest[lane];
        widest[lane] = larger_or_nan(widest[lane], spread);
      }
    });
    sums_.divergence_energy += sum(energy);
    for (const double spread : widest) sums_.divergence_max = larger_or_nan(sums_.divergence_max, spread);
    sums_.divergence_elems += ranks * static_cast<double>(count_);
  }

  ConstTensor like_;  // the type and the memory of contributions
  std::size_t count_;
  SampleSums& sums_;
};

}  // namespace

void ResultSampler::add(const LayerKey& key, const SampleSums& sums) {
  total_[index(key.traffic_class)].add(sums);
  interval_[index(key.traffic_class)].add(sums);
  layers_[key].add(sums);
}

SampleSums errors_of(ConstTensor exact, ConstTensor result) {
  SampleSums sums;
  if (is_integer(exact.type)) return sums;
  if (exact.stream != nullptr) {
    const ErrorSums errors = error_sums_on_device(exact, result);
    sums.error_energy = errors.error_energy;
    sums.exact_energy = errors.exact_energy;
    sums.result_energy = errors.result_energy;
    sums.inner_product = errors.inner_product;
    sums.error_sum = errors.error_sum;
    sums.elems = static_cast<double>(exact.count_elems());
    return sums;
  }
  visit_elements(exact.type, [&]<class T>(std::type_identity<T>) { add_errors(exact.as<T>(), result.as<T>(), sums); });
  return sums;
}

SampleSums divergence_of(Communicator& group, ConstTensor result, Scratch& unused) {
  SampleSums sums;
  if (is_integer(result.type) || result.count_elems() == 0) return sums;
  const std::vector<std::uint64_t> counts = even_counts(result.count_elems(), group.world_size());
  const std::uint64_t part_elems = counts[static_cast<std::size_t>(group.rank())];
  DivergenceOfPart divergence(result, part_elems, sums);
  const Tensor output = unused.take(Scratch::Slot::kUnused, result, part_elems);
  group.reduce_scatter_with(result, output, counts, divergence, kComparison);
  return sums;
}

SampleSums ResultSampler::take_interval(sim::TrafficClass traffic_class) {
  const SampleSums sums = interval_[index(traffic_class)];
  interval_[index(traffic_class)] = SampleSums{};
  return sums;
}

}  // namespace droptest::comm
