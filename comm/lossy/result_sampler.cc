// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/result_sampler.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace droptest::comm {
namespace {

const Message kComparison{sim::TrafficClass::kControl, "divergence of results"};

template <class T>
void add_errors(std::span<const T> exact, std::span<const T> result, SampleSums& sums) {
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const auto e = static_cast<double>(exact[i]);
    const auto r = static_cast<double>(result[i]);
    sums.error_energy += (r - e) * (r - e);
    sums.exact_energy += e * e;
    sums.result_energy += r * r;
    sums.inner_product += e * r;
    sums.error_sum += r - e;
  }
  sums.elems += static_cast<double>(exact.size());
}

void to_double(ConstTensor values, std::vector<double>& out) {
  out.resize(values.count_elems());
  if (values.type == ElementType::kFloat32) {
    std::ranges::copy(values.as<float>(), out.begin());
  } else {
    std::ranges::copy(values.as<double>(), out.begin());
  }
}

}  // namespace

void ResultSampler::add(const LayerKey& key, const SampleSums& sums) {
  total_[index(key.traffic_class)].add(sums);
  interval_[index(key.traffic_class)].add(sums);
  layers_[key].add(sums);
}

void ResultSampler::compare(const LayerKey& key, ConstTensor exact, ConstTensor result, CountCall count) {
  SampleSums sums;
  sums.calls = count == CountCall::kHere ? 1 : 0;
  if (exact.type == ElementType::kFloat32) {
    add_errors(exact.as<float>(), result.as<float>(), sums);
  } else if (exact.type == ElementType::kFloat64) {
    add_errors(exact.as<double>(), result.as<double>(), sums);
  } else {
    return;
  }
  add(key, sums);
}

void ResultSampler::compare_ranks(Communicator& group, const LayerKey& key, ConstTensor result) {
  if (result.type == ElementType::kUint64 || result.count_elems() == 0) return;
  // Differences to rank 0's values are exact zeros where ranks agree; a mean of the values themselves would round.
  to_double(result, difference_);
  reference_ = difference_;
  group.broadcast(Tensor(std::span(reference_)), 0, kComparison);
  const std::size_t count = difference_.size();
  for (std::size_t i = 0; i < count; ++i) difference_[i] -= reference_[i];

  sums_ = difference_;
  group.all_reduce(Tensor(std::span(sums_)), ReduceOp::kSum, kComparison);
  extremes_.resize(2 * count);
  for (std::size_t i = 0; i < count; ++i) {
    extremes_[i] = difference_[i];
    extremes_[count + i] = -difference_[i];
  }
  group.all_reduce(Tensor(std::span(extremes_)), ReduceOp::kMax, kComparison);

  SampleSums sums;
  const auto ranks = static_cast<double>(group.world_size());
  for (std::size_t i = 0; i < count; ++i) {
    const double deviation = difference_[i] - sums_[i] / ranks;
    sums.divergence_energy += deviation * deviation;
    sums.divergence_max = std::max(sums.divergence_max, extremes_[i] + extremes_[count + i]);
  }
  sums.divergence_elems = static_cast<double>(count);
  add(key, sums);
}

SampleSums ResultSampler::take_interval(sim::TrafficClass traffic_class) {
  const SampleSums sums = interval_[index(traffic_class)];
  interval_[index(traffic_class)] = SampleSums{};
  return sums;
}

}  // namespace droptest::comm
