// SPDX-License-Identifier: Apache-2.0
// Let P be the matrix of transitions, S the matrix with the stationary shares in each row, and D = P - S. Then D^j =
// P^j - S for j >= 1: the deviations from the stationary shares j packets later, without cancellation. In a chain of
// two states D^j multiplies weights, which add up to 0, by the number lambda^j with lambda = 1 - p - r.
#include "sim/loss/fate_chain.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/random/threshold.h"

namespace droptest::sim {
namespace {

using Matrix = FateChain::Matrix;
constexpr std::size_t kStates = FateChain::kMostStates;
constexpr Matrix kIdentity = {{{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}}};

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c{};
  for (std::size_t i = 0; i < kStates; ++i) {
    for (std::size_t k = 0; k < kStates; ++k) {
      for (std::size_t j = 0; j < kStates; ++j) c[i][j] += a[i][k] * b[k][j];
    }
  }
  return c;
}

StateWeights product(const StateWeights& a, const Matrix& b) {
  StateWeights c{};
  for (std::size_t k = 0; k < kStates; ++k) {
    for (std::size_t j = 0; j < kStates; ++j) c[j] += a[k] * b[k][j];
  }
  return c;
}

Matrix sum(Matrix a, const Matrix& b, double factor) {
  for (std::size_t i = 0; i < kStates; ++i) {
    for (std::size_t j = 0; j < kStates; ++j) a[i][j] += factor * b[i][j];
  }
  return a;
}

/// For a matrix M and a number n: M^n, and the sum over 0 <= j < n of M^j and of (n - j) M^j.
struct PowerSums {
  Matrix power = kIdentity;
  Matrix plain{};
  Matrix weighted{};
  double n = 0;
};

/// The sums of m and then n: sum over j < m + n of M^j = plain_m + M^m plain_n, and the weighted sum alike.
PowerSums joined(const PowerSums& m, const PowerSums& n) {
  PowerSums result;
  result.n = m.n + n.n;
  result.power = product(m.power, n.power);
  result.plain = sum(m.plain, product(m.power, n.plain), 1);
  result.weighted = sum(sum(m.weighted, m.plain, n.n), product(m.power, n.weighted), 1);
  return result;
}

PowerSums power_sums(const Matrix& matrix, std::uint64_t n) {
  PowerSums result;
  PowerSums doubled{matrix, kIdentity, kIdentity, 1};
  for (; n > 0; n /= 2) {
    if (n % 2 == 1) result = joined(result, doubled);
    if (n > 1) doubled = joined(doubled, doubled);
  }
  return result;
}

/// lambda^n and (1 - lambda^n) / s for lambda = 1 - s and 0 < s < 2.
double lambda_power(double s, std::uint64_t n) {
  const auto count = static_cast<double>(n);
  if (s < 1) return std::exp(count * std::log1p(-s));
  return n == 0 ? 1 : std::pow(1 - s, count);
}
double lambda_sum(double s, std::uint64_t n) {
  if (s < 1) return -std::expm1(static_cast<double>(n) * std::log1p(-s)) / s;
  return (1 - lambda_power(s, n)) / s;
}

/// Sum of (n - j) x^j over 0 < j < n, for x = 1 - s with 0 < s <= 1: (n s - (1 - x^n)) x / s^2.
double weighted_geometric_sum(double n, double s) {
  if (s >= 1) return 0;
  const double x = 1 - s;
  if (n * s >= 0.5) return x * (n * s + std::expm1(n * std::log1p(-s))) / (s * s);
  // Here the difference above cancels. Its binomial series: sum over k >= 2 of (-1)^k binomial(n, k) s^(k - 2).
  double term = n * (n - 1) / 2;
  double sum = 0;
  for (double k = 2; k <= n && std::fabs(term) > 1e-18 * sum; ++k) {
    sum += term;
    term *= -(n - k) * s / (k + 1);
  }
  return x * sum;
}

}  // namespace

FateChain FateChain::of_two(const State& good, const State& bad) {
  FateChain chain;
  chain.count_ = 2;
  chain.states_[0] = good;
  chain.states_[1] = bad;
  return chain;
}

FateChain FateChain::of_four(const std::array<State, kMostStates>& states) {
  FateChain chain;
  chain.count_ = kMostStates;
  chain.states_ = states;
  return chain;
}

std::size_t FateChain::next(std::size_t state, std::uint64_t draw) const {
  const State& from = states_[state];
  return from.targets[draw < from.below[0] ? 0 : draw < from.below[1] ? 1 : 2];
}

double FateChain::loss_rate() const {
  double rate = 0;
  for (const State& state : states_) rate += state.share * state.loss_rate;
  return rate;
}

Matrix FateChain::deviations() const {
  Matrix m{};
  for (std::size_t i = 0; i < count_; ++i) {
    for (std::size_t j = 0; j < count_; ++j) m[i][j] = states_[i].to[j] - states_[j].share;
  }
  return m;
}

// Two states: Var = n P(1 - P) + 2 A sum over 0 < j < n of (n - j) lambda^j, with A = pi_G pi_B (b - g)^2. P (1 - P) is
// split into A and the part within the states. Each formula is a sum of terms of one sign, so that nothing cancels for
// small rates. Four states: Var = n L (1 - L) + 2 sum over 0 < j < n of (n - j) C(j).
double FateChain::lost_count_variance(std::uint64_t n) const {
  if (n == 0) return 0;
  const auto count = static_cast<double>(n);
  if (count_ == 2) {
    const double p = states_[0].to[1];
    const double r = states_[1].to[0];
    const double g = states_[0].loss_rate;
    const double b = states_[1].loss_rate;
    const double s = p + r;
    const double within = (r * g * (1 - g) + p * b * (1 - b)) / s;
    const double between = p * r * (b - g) * (b - g) / (s * s);
    if (s <= 1) return count * (within + between) + 2 * between * weighted_geometric_sum(count, s);
    // lambda < 0: the sum in closed form, n lambda / s joined with the n of the variance.
    const double lambda = 1 - s;
    const double n_part = count * ((1 - p) + (1 - r)) / s;
    return count * within + between * (n_part - 2 * lambda * (1 - std::pow(lambda, count)) / (s * s));
  }
  const double lost = loss_rate();
  // The term j = 0 of the weighted sum is n times the identity.
  const Matrix later = sum(power_sums(deviations(), n).weighted, kIdentity, -count);
  double covariances = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    for (std::size_t j = 0; j < count_; ++j) {
      covariances += states_[i].share * states_[i].loss_rate * later[i][j] * states_[j].loss_rate;
    }
  }
  return std::max(0.0, count * lost * (1 - lost) + 2 * covariances);
}

double FateChain::fate_covariance(std::uint64_t lag) const { return covariance(later(loss(), lag - 1), 1); }

// The sum over 0 <= x < n of of_one D^x.
StateWeights FateChain::spread(const StateWeights& of_one, std::uint64_t n) const {
  if (count_ == 2) {
    const double sum = lambda_sum(forgetting(), n);
    return {of_one[0] * sum, of_one[1] * sum, 0, 0};
  }
  return product(of_one, power_sums(deviations(), n).plain);
}

StateWeights FateChain::loss() const {
  StateWeights of_one{};
  if (count_ == 2) {
    of_one[1] = states_[0].share * states_[1].share * (states_[1].loss_rate - states_[0].loss_rate);
    of_one[0] = -of_one[1];
    return of_one;
  }
  const double lost = loss_rate();
  for (std::size_t i = 0; i < count_; ++i) of_one[i] = states_[i].share * (states_[i].loss_rate - lost);
  return of_one;
}

// Both chains move by the same draw, which is in one of the intervals between all thresholds. A few draws decide both
// states whatever they were before, so the rows of a high power of the pair's transitions agree.
Matrix FateChain::joint_shares(const FateChain& other) const {
  std::vector<std::uint64_t> cuts = {0, kCertain};
  for (const FateChain* chain : {this, &other}) {
    for (std::size_t i = 0; i < chain->count_; ++i) {
      for (const std::uint64_t cut : chain->states_[i].below) cuts.push_back(std::min(cut, kCertain));
    }
  }
  std::sort(cuts.begin(), cuts.end());
  const std::size_t pairs = other.count_ * count_;
  using Square = std::vector<std::vector<double>>;
  Square moves(pairs, std::vector<double>(pairs));
  for (std::size_t i = 0; i < other.count_; ++i) {
    for (std::size_t j = 0; j < count_; ++j) {
      for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {
        if (cuts[c] == cuts[c + 1]) continue;
        const std::size_t to = other.next(i, cuts[c]) * count_ + next(j, cuts[c]);
        moves[i * count_ + j][to] += static_cast<double>(cuts[c + 1] - cuts[c]) / static_cast<double>(kCertain);
      }
    }
  }
  const auto rows_differ = [&] {
    double most = 0;
    for (std::size_t to = 0; to < pairs; ++to) {
      for (std::size_t from = 1; from < pairs; ++from) {
        most = std::max(most, std::fabs(moves[from][to] - moves[0][to]));
      }
    }
    return most > 1e-13;
  };
  constexpr int kMostDoublings = 40;
  for (int doubling = 0; doubling < kMostDoublings && rows_differ(); ++doubling) {
    Square twice(pairs, std::vector<double>(pairs));
    for (std::size_t from = 0; from < pairs; ++from) {
      double all = 0;
      for (std::size_t between = 0; between < pairs; ++between) {
        for (std::size_t to = 0; to < pairs; ++to) twice[from][to] += moves[from][between] * moves[between][to];
      }
      for (const double chance : twice[from]) all += chance;
      for (double& chance : twice[from]) chance /= all;
    }
    moves = std::move(twice);
  }
  Matrix shares{};
  for (std::size_t i = 0; i < other.count_; ++i) {
    for (std::size_t j = 0; j < count_; ++j) shares[i][j] = moves[0][i * count_ + j];
  }
  return shares;
}

StateWeights FateChain::loss_under(const FateChain& other) const {
  if (other == *this) return loss();
  const Matrix joint = joint_shares(other);
  const double lost = other.loss_rate();
  StateWeights of_one{};
  for (std::size_t i = 0; i < other.count_; ++i) {
    for (std::size_t j = 0; j < count_; ++j) of_one[j] += joint[i][j] * (other.states_[i].loss_rate - lost);
  }
  // The weights add up to 0 but for the rounding errors of the joint shares, which are removed here.
  double rest = 0;
  for (const double weight : of_one) rest += weight;
  of_one[0] -= rest;
  return of_one;
}

StateWeights FateChain::later(const StateWeights& weights, std::uint64_t packets) const {
  if (packets == 0) return weights;
  if (count_ == 2) {
    const double power = lambda_power(forgetting(), packets);
    return {weights[0] * power, weights[1] * power, 0, 0};
  }
  StateWeights result = weights;
  for (Matrix power = deviations(); packets > 0; packets /= 2) {
    if (packets % 2 == 1) result = product(result, power);
    if (packets > 1) power = product(power, power);
  }
  return result;
}

double FateChain::covariance(const StateWeights& weights, std::uint64_t n) const {
  const StateWeights next = spread(later(weights, 1), n);
  double covariance = 0;
  for (std::size_t i = 0; i < count_; ++i) covariance += next[i] * states_[i].loss_rate;
  return covariance;
}

}  // namespace droptest::sim
