// SPDX-License-Identifier: Apache-2.0
// The differences of lossy results from exact ones, and between ranks, as sums that can be added.
#pragma once

#include <cstdint>
#include <limits>

#include "sim/state_visitor.h"

namespace droptest::comm {

/// The value of a measure without samples; null in records.
inline constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

/// The larger of two differences; NaN if either is NaN, which std::max would hide.
inline double larger_or_nan(double a, double b) { return a < b || b != b ? b : a; }

/// The errors of compressed values, decoded as by their receivers.
struct CodingErrors {
  double error_energy = 0;          ///< sum of |decoded - value|^2
  double energy = 0;                ///< sum of |value|^2
  std::uint64_t dropped_pairs = 0;  ///< pairs of top_k with an index out of range

  void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, error_energy, energy, dropped_pairs); }
  void add(const CodingErrors& other) {
    error_energy += other.error_energy;
    energy += other.energy;
    dropped_pairs += other.dropped_pairs;
  }
};

/// The differences between the two ends of EF21 after sampled calls: each receiver's copy of a sender's state.
struct EndErrors {
  double error_energy = 0;  ///< sum of |copy - state|^2
  double energy = 0;        ///< sum of |state|^2

  void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, error_energy, energy); }
  void add(const EndErrors& other) {
    error_energy += other.error_energy;
    energy += other.energy;
  }
};

/// Sums over sampled calls of one traffic class, or of one of its layers, of one rank or added up over ranks. Measures
/// of calls that were not sampled are NaN, which records have as null: they are unknown, not 0.
struct SampleSums {
  std::uint64_t calls = 0;  ///< counted on one rank of the group
  double error_energy = 0;
  double exact_energy = 0;
  double result_energy = 0;
  double inner_product = 0;
  double elems = 0;              ///< elements x ranks in the sums of errors
  double error_sum = 0;          ///< sum of result - exact
  double divergence_max = 0;     ///< largest difference between two ranks; NaN if a result was NaN
  double divergence_energy = 0;  ///< sum over elements and ranks of |value - mean over ranks|^2
  double divergence_elems = 0;   ///< elements x ranks in divergence_energy
  CodingErrors coding;           ///< errors of compressed values, before any loss
  EndErrors ends;                ///< differences between the two ends of EF21

  void visit_state(sim::StateVisitor& visitor) {
    visit_values(visitor, calls, error_energy, exact_energy, result_energy, inner_product, elems, error_sum,
                 divergence_max, divergence_energy, divergence_elems, coding, ends);
  }
  void add(const SampleSums& other);
  double nmse() const;    ///< error_energy / exact_energy; 0 without errors, infinity if only the exact energy is 0
  double cosine() const;  ///< 1 if both the results and the exact results are zeros
  /// Mean error divided by the root mean square of the exact results. With the fill zero, the error of a lost value has
  /// the opposite sign of the value: if values of both signs are equally frequent, there is no bias.
  double bias() const;
  double largest_divergence() const;  ///< divergence_max; NaN if no ranks were compared
  double divergence_rms() const;      ///< NaN if no ranks were compared
};

}  // namespace droptest::comm
