// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/gap_theory.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace droptest::sim {
namespace {

/// Sum over begin <= m < end of P(gap >= m). It is exact up to kPieces terms. A longer sum is cut into kPieces pieces,
/// each taken as a geometric series, as tails of gaps are.
double sum_of_tails(const LossProcess& process, std::uint64_t begin, std::uint64_t end) {
  constexpr std::uint64_t kPieces = 64;
  double sum = 0;
  if (end - begin <= 2 * kPieces) {
    for (std::uint64_t m = begin; m < end; ++m) sum += process.gap_at_least(m);
    return sum;
  }
  std::uint64_t from = begin;
  double first = process.gap_at_least(from);
  for (std::uint64_t piece = 1; piece <= kPieces && first > 0; ++piece) {
    const std::uint64_t to = begin + (end - begin) / kPieces * piece + (piece == kPieces ? (end - begin) % kPieces : 0);
    const double next = process.gap_at_least(to);
    const auto terms = static_cast<double>(to - from);
    // Sum of first q^j over j < terms, with q^terms = next / first.
    const double log_ratio = next > 0 ? std::log(next / first) : -std::numeric_limits<double>::infinity();
    const double one_less_q = -std::expm1(log_ratio / terms);
    sum += one_less_q > 0 ? (first - next) / one_less_q : first * terms;
    from = to;
    first = next;
  }
  return sum;
}

/// Sum over begin <= m < end of (n - 1 - m) P(gap = m), by parts; end < n.
double weighted_gaps(const LossProcess& process, std::uint64_t begin, std::uint64_t end, std::uint64_t n) {
  const auto room = [n](std::uint64_t m) { return static_cast<double>(n - 1) - static_cast<double>(m); };
  return room(begin) * process.gap_at_least(begin) - room(end) * process.gap_at_least(end) -
         sum_of_tails(process, begin + 1, end + 1);
}

}  // namespace

std::vector<double> expected_gaps(const LossProcess& process, const std::map<std::uint64_t, std::uint64_t>& stretches,
                                  std::size_t bins) {
  if (std::isnan(process.gap_at_least(1))) {
    return std::vector<double>(bins, std::numeric_limits<double>::quiet_NaN());
  }
  std::vector<double> expected(bins, 0.0);
  const double burst = process.mean_burst_packets();
  if (!(burst > 0) || std::isinf(burst)) return expected;
  const double ends = process.loss_rate() / burst;
  for (const auto& [length, number] : stretches) {
    for (std::size_t bin = 0; bin < bins; ++bin) {
      const std::uint64_t begin = std::uint64_t{1} << bin;
      if (length < 3 || begin > length - 2) break;
      const std::uint64_t end = std::min(2 * begin, length - 1);
      expected[bin] += ends * static_cast<double>(number) * std::max(0.0, weighted_gaps(process, begin, end, length));
    }
  }
  return expected;
}

}  // namespace droptest::sim
