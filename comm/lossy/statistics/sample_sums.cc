// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/statistics/sample_sums.h"

#include <cmath>

namespace droptest::comm {

void SampleSums::add(const SampleSums& other) {
  calls += other.calls;
  error_energy += other.error_energy;
  exact_energy += other.exact_energy;
  result_energy += other.result_energy;
  inner_product += other.inner_product;
  elems += other.elems;
  error_sum += other.error_sum;
  divergence_max = larger_or_nan(divergence_max, other.divergence_max);
  divergence_energy += other.divergence_energy;
  divergence_elems += other.divergence_elems;
  coding.add(other.coding);
  ends.add(other.ends);
}

double SampleSums::nmse() const {
  if (elems == 0) return kNotMeasured;
  return error_energy == 0 ? 0 : error_energy / exact_energy;
}

double SampleSums::cosine() const {
  if (elems == 0) return kNotMeasured;
  if (exact_energy == 0 && result_energy == 0) return 1;
  const double product = std::sqrt(exact_energy) * std::sqrt(result_energy);
  return product == 0 ? 0 : inner_product / product;
}

double SampleSums::bias() const {
  if (elems == 0) return kNotMeasured;
  return error_sum == 0 ? 0 : error_sum / elems / std::sqrt(exact_energy / elems);
}

double SampleSums::largest_divergence() const { return divergence_elems == 0 ? kNotMeasured : divergence_max; }

double SampleSums::divergence_rms() const {
  return divergence_elems == 0 ? kNotMeasured : std::sqrt(divergence_energy / divergence_elems);
}

}  // namespace droptest::comm
