// SPDX-License-Identifier: Apache-2.0
// Notation: N ranks; p the loss rate of the reduce half, q of the gather half; x_i the contribution of rank i, with
// variance sigma^2 if inputs are independent; S = sum x_i the exact result; A_i in {0, 1} whether contribution i
// arrived, K = sum A_i. On `direct` the owner's own A is 1, and the M = N - 1 others have P(A_i = 1) = 1 - p. On
// `contribution` all M = N are exposed. Y is the result of the reduce half. If the reduction is a mean S / N and the
// fill has no scale of its own, error and energy are both divided by N^2, so the relative error is that of the sum.
#include "comm/lab/collective_theory.h"

#include <cmath>

#include "comm/lab/schedule_theory.h"
#include "comm/lossy/paths/path_registry.h"
#include "sim/error.h"
#include "sim/log_gamma.h"

namespace droptest::comm {
namespace {

bool is_direct(const LossyAllReduce& c) { return path_entry(c.path).route == Route::kOneHop; }
bool has_closed_form(const LossyAllReduce& c) { return path_entry(c.path).route != Route::kManyHops; }

// The expectations over the hops of a path's schedule; absent for paths without hops.
std::optional<ScheduleExpectation> over_schedule(const LossyAllReduce& c) {
  if (c.ranks < 1 || path_entry(c.path).schedule == nullptr) return std::nullopt;
  const auto schedule = path_entry(c.path).schedule({sim::Collective::kAllReduce, c.ranks, 0, c.group_ranks});
  const LinkRate rate = [&c](sim::Half half, int /*source*/, int /*destination*/) {
    return half == sim::Half::kReduce ? c.reduce_loss_rate : c.gather_loss_rate;
  };
  return expected_all_reduce(*schedule, c, rate, Links::kAlike);
}

// M: contributions that travel.
double exposed(const LossyAllReduce& c) { return is_direct(c) ? c.ranks - 1 : c.ranks; }

// P(K = k), k >= 1, for K = (N - M) + Bin(M, 1 - p), in logarithms so that no power underflows before its coefficient.
double arrived_probability(const LossyAllReduce& c, int k) {
  const double p = c.reduce_loss_rate;
  const double m = exposed(c);
  const double lost = c.ranks - k;
  const double kept = m - lost;
  if (kept < 0) return 0;
  if (p >= 1) return kept == 0 ? 1 : 0;
  const double coefficient = sim::log_gamma(m + 1) - sim::log_gamma(lost + 1) - sim::log_gamma(kept + 1);
  const double losses = lost == 0 ? 0 : lost * std::log(p);
  return std::exp(coefficient + losses + kept * std::log1p(-p));
}

// E|Y - S|^2 / E|S|^2 for independent inputs, E|S|^2 = N sigma^2.
std::optional<double> reduce_nmse_independent(const LossyAllReduce& c) {
  const double n = c.ranks;
  const double p = c.reduce_loss_rate;
  const double m = exposed(c);
  using Scale = FillRule::Scale;
  const FillRule& fill = rule_of(c.reduce_fill);
  // L of M are lost: Y - S / N = (L x_r - sum of the lost x_i) / N, so (E L^2 + E L) / N with L = Bin(M, p).
  if (fill.keeps_own() && fill.scale == Scale::kOne) return m * p * (2 - p + m * p) / n;
  if (fill.source != FillRule::Source::kZero) return std::nullopt;
  if (fill.scale == Scale::kOne) return p * m / n;  // each lost x_i is missing: M p sigma^2
  // E(A / (1 - p) - 1)^2 = p / (1 - p) per exposed contribution; at p = 1 all of them are missing.
  if (fill.scale == Scale::kByRate) return (p < 1 ? p / (1 - p) : 1) * m / n;
  // Given K: K (N/K - 1)^2 + (N - K) = N (N/K - 1) in units of sigma^2, so E[N/K] - 1; K = 0 gives Y = 0, error 1.
  double sum = is_direct(c) ? 0 : std::pow(p, n);
  if (is_direct(c)) {
    // E[1/K] = (1 - p^N) / (N (1 - p)), so E[N/K] - 1 = p + p^2 + ... + p^(N-1).
    for (int k = c.ranks - 1; k >= 1; --k) sum = (sum + 1) * p;
  } else {
    for (int k = 1; k <= c.ranks; ++k) sum += arrived_probability(c, k) * (n / k - 1);
  }
  return sum;
}

// E|Y - S|^2 / |S|^2 for identical inputs, S = N x.
std::optional<double> reduce_nmse_identical(const LossyAllReduce& c) {
  const double n = c.ranks;
  const double p = c.reduce_loss_rate;
  const double m = exposed(c);
  using Scale = FillRule::Scale;
  const FillRule& fill = rule_of(c.reduce_fill);
  if (fill.keeps_own() && fill.scale == Scale::kOne) return 0;
  if (fill.source != FillRule::Source::kZero) return std::nullopt;
  // E[(1 - K/N)^2] with M - Bin = Bin(M, p) lost
  if (fill.scale == Scale::kOne) return (m * p * (1 - p) + m * m * p * p) / (n * n);
  // Unbiased: Var(Bin(M, 1 - p)) / (1 - p)^2 / N^2; at p = 1 the M others are missing.
  if (fill.scale == Scale::kByRate) return p < 1 ? m * p / (1 - p) / (n * n) : m * m / (n * n);
  return is_direct(c) ? 0 : std::pow(p, n);  // exact but for K = 0
}

}  // namespace

LossyAllReduce all_reduce_case(const ClassNetwork& network, int ranks, Inputs inputs, ReduceOp op) {
  const auto rate = [ranks](const HalfNetwork& half) {
    // A group of one has no network.
    return half.loss == nullptr || ranks == 1 ? 0 : half.loss->loss_rate();
  };
  return {network.path,         ranks,
          rate(network.reduce), rate(network.gather),
          network.reduce.fill,  network.gather.fill,
          network.consistency,  inputs,
          network.group_ranks,  op};
}

std::optional<Survival> expected_survival(const LossyAllReduce& c) {
  DROPTEST_CHECK(c.ranks >= 1, "ranks");
  if (!has_closed_form(c)) {
    const std::optional<ScheduleExpectation> expectation = over_schedule(c);
    return expectation.has_value() ? std::optional(expectation->survival) : std::nullopt;
  }
  const double n = c.ranks;
  // An owner on `direct` keeps its result, unless it drops the packets that its receivers lost.
  const bool owner_keeps =
      is_direct(c) && (c.consistency == Consistency::kPerReceiver || rule_of(c.gather_fill).keeps_own());
  Survival survival;
  survival.reduce = 1 - c.reduce_loss_rate * exposed(c) / n;
  survival.gather = 1 - c.gather_loss_rate * (owner_keeps ? n - 1 : n) / n;
  return survival;
}

std::optional<double> expected_nmse(const LossyAllReduce& c) {
  if (!has_closed_form(c)) {
    const std::optional<ScheduleExpectation> expectation = over_schedule(c);
    return expectation.has_value() ? expectation->nmse : std::nullopt;
  }
  const std::optional<Survival> survival = expected_survival(c);
  const bool identical = c.inputs == Inputs::kIdentical;
  const double n = c.ranks;
  std::optional<double> reduce = 0;
  if (c.reduce_loss_rate > 0) reduce = identical ? reduce_nmse_identical(c) : reduce_nmse_independent(c);
  if (!reduce.has_value()) return std::nullopt;
  if (c.gather_loss_rate == 0) return reduce;
  // A fill replaces a missing result, independently of the reduce half: NMSE = (1 - F) e + F NMSE(Y).
  const FillRule& fill = rule_of(c.gather_fill);
  double replaced = 0;
  if (fill == FillRule{}) {
    replaced = 1;
  } else if (!fill.keeps_own()) {
    return std::nullopt;
  } else if (fill.scale == FillRule::Scale::kOne && c.op == ReduceOp::kMean) {
    replaced = identical ? 0 : n - 1;  // x_r in the place of S / N
  } else if (fill.scale == FillRule::Scale::kOne) {
    replaced = identical ? (n - 1) * (n - 1) / (n * n) : (n - 1) / n;  // x_r in the place of S
  } else if (fill.scale == FillRule::Scale::kSqrtRanks) {
    // sqrt(N) x_r in the place of S, N times that of a mean. The error is (sqrt(N) - 1)^2 + N - 1 over N for
    // independent inputs, and (sqrt(N) - N)^2 over N^2 for identical ones.
    replaced = identical ? (1 - std::sqrt(1 / n)) * (1 - std::sqrt(1 / n)) : 2 - 2 / std::sqrt(n);
  } else {
    return std::nullopt;
  }
  return (1 - survival->gather) * replaced + survival->gather * *reduce;
}

}  // namespace droptest::comm
