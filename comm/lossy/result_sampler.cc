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
  }
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

void SampleSums::add(const SampleSums& other) {
  calls += other.calls;
  error_energy += other.error_energy;
  exact_energy += other.exact_energy;
  result_energy += other.result_energy;
  inner_product += other.inner_product;
  divergence_max = std::max(divergence_max, other.divergence_max);
  divergence_energy += other.divergence_energy;
  divergence_elems += other.divergence_elems;
}

double SampleSums::nmse() const { return exact_energy == 0 ? 0 : error_energy / exact_energy; }

double SampleSums::cosine() const {
  if (exact_energy == 0 && result_energy == 0) return 1;
  const double product = std::sqrt(exact_energy) * std::sqrt(result_energy);
  return product == 0 ? 0 : inner_product / product;
}

double SampleSums::divergence_rms() const {
  return divergence_elems == 0 ? 0 : std::sqrt(divergence_energy / divergence_elems);
}

void ResultSampler::add(sim::TrafficClass traffic_class, const SampleSums& sums) {
  total_[index(traffic_class)].add(sums);
  interval_[index(traffic_class)].add(sums);
}

void ResultSampler::compare(sim::TrafficClass traffic_class, ConstTensor exact, ConstTensor result, CountCall count) {
  SampleSums sums;
  sums.calls = count == CountCall::kHere ? 1 : 0;
  if (exact.type == ElementType::kFloat32) {
    add_errors(exact.as<float>(), result.as<float>(), sums);
  } else if (exact.type == ElementType::kFloat64) {
    add_errors(exact.as<double>(), result.as<double>(), sums);
  } else {
    return;
  }
  add(traffic_class, sums);
}

void ResultSampler::compare_ranks(Communicator& group, sim::TrafficClass traffic_class, ConstTensor result) {
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
  add(traffic_class, sums);
}

SampleSums ResultSampler::take_interval(sim::TrafficClass traffic_class) {
  const SampleSums sums = interval_[index(traffic_class)];
  interval_[index(traffic_class)] = SampleSums{};
  return sums;
}

}  // namespace droptest::comm
