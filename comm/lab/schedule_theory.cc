// SPDX-License-Identifier: Apache-2.0
// Notation: at a rank v, a part's sum is W_v = sum_i c_i x_i, with c_v = 1 before the first hop. A reduce hop from u
// adds a f W_u: a = 1 with probability s = 1 - loss rate of the link, else 0; f the factor of inverse_probability, else
// 1. Different hops carry contributions of different ranks and are lost independently, so moments follow the hops:
//   A_v = sum_i E c_i           A_v += s f A_u
//   B_v = sum_i E c_i^2         B_v += s f^2 B_u
//   C_v = E (sum_i c_i)^2       C_v += 2 A_v s f A_u + s f^2 C_u
// For independent inputs E|W - S|^2 / E|S|^2 = (N - 2 A + B) / N, for identical ones (N^2 - 2 N A + C) / N^2.
// count_rescale: with K = sum_i c_i contributions at the owner, independent inputs give E[N/K] - 1 and identical ones
// 0; the distribution of K is built up by convolution, K_v += a K_u. A gather hop from u to v: v has the sum with H_v =
// s H_u, and the error of its value is
//   D_v = s D_u + (1 - s) (1 for zero, the error of W_v for own; for own of a mean that of x_v, N - 1 or 0)
// since the fates of the two halves are independent.
#include "comm/lab/schedule_theory.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace droptest::comm {
namespace {

// Distributions of counts take at least (ranks^2 x parts) steps: seconds up to this number.
constexpr double kMostCountSteps = 2e8;

class Recursion {
 public:
  Recursion(const sim::HopSchedule& schedule, const LossyAllReduce& fills, const LinkRate& rate, Links links)
      : schedule_(schedule),
        fills_(fills),
        rate_(rate),
        ranks_(schedule.ranks()),
        parts_(links == Links::kAlike ? schedule.distinct_parts() : schedule.parts()) {}

  ScheduleExpectation compute() {
    reduce();
    ScheduleExpectation expectation;
    const double owned = static_cast<double>(parts_) * ranks_;
    double sums = 0;
    for (int part = 0; part < parts_; ++part) sums += moments_[at(schedule_.owner(part), part)].unscaled / owned;
    expectation.survival.reduce = sums;
    const std::optional<std::vector<double>> errors = errors_of_sums();
    gather(errors);
    double values = 0;
    double error = 0;
    for (const Value& value : values_) {
      values += value.has_sum / owned;
      error += value.error / owned;
    }
    expectation.survival.gather = values;
    const bool gather_known = !gather_loses_ || !rule_of(fills_.gather_fill).remembers();
    if (errors.has_value() && gather_known) expectation.nmse = error;
    return expectation;
  }

 private:
  struct Moments {
    double unscaled = 1;  // A with f = 1: contributions that arrive
    double a = 1;
    double b = 1;
    double c = 1;
  };
  struct Value {
    double has_sum = 0;
    double error = 0;
  };

  std::size_t at(int rank, int part) const {
    return static_cast<std::size_t>(rank) * static_cast<std::size_t>(parts_) + static_cast<std::size_t>(part);
  }

  // Visits each (source, destination, part) of the rounds [begin, end), in order.
  template <class Visit>
  void walk(int begin, int end, const Visit& visit) const {
    std::vector<sim::Hop> hops;
    for (int round = begin; round < end; ++round) {
      for (int rank = 0; rank < ranks_; ++rank) {
        hops.clear();
        schedule_.receives(round, rank, hops);
        for (const sim::Hop& hop : hops) {
          const int last = std::min(hop.end_part, parts_);
          if (hop.first_part >= last) continue;
          const double arrives = 1 - rate_(hop.half, hop.source, hop.destination);
          for (int part = hop.first_part; part < last; ++part) visit(hop, part, arrives);
        }
      }
    }
  }

  void reduce() {
    moments_.assign(at(ranks_, 0), Moments());
    walk(0, schedule_.reduce_rounds(), [this](const sim::Hop& hop, int part, double s) {
      if (s < 1) reduce_loses_ = true;
      const double f = rule_of(fills_.reduce_fill).scale == FillRule::Scale::kByRate && s > 0 ? 1 / s : 1;
      const Moments& from = moments_[at(hop.source, part)];
      Moments& to = moments_[at(hop.destination, part)];
      to.c += 2 * to.a * s * f * from.a + s * f * f * from.c;
      to.a += s * f * from.a;
      to.b += s * f * f * from.b;
      to.unscaled += s * from.unscaled;
    });
  }

  // The errors after the reduce half, by (rank, part).
  std::optional<std::vector<double>> errors_of_sums() {
    if (reduce_loses_ && rule_of(fills_.reduce_fill).remembers()) return std::nullopt;
    const double n = ranks_;
    const bool identical = fills_.inputs == Inputs::kIdentical;
    std::vector<double> errors;
    for (const Moments& m : moments_) {
      errors.push_back(identical ? (n * n - 2 * n * m.a + m.c) / (n * n) : (n - 2 * m.a + m.b) / n);
    }
    if (!reduce_loses_ || rule_of(fills_.reduce_fill).scale != FillRule::Scale::kByCount) return errors;
    if (!identical && n * n * parts_ > kMostCountSteps) return std::nullopt;
    for (int part = 0; part < parts_; ++part) {
      errors[at(schedule_.owner(part), part)] = identical ? 0 : error_of_rescaled(part);
    }
    return errors;
  }

  // E[N/K] - 1 at the owner of a part.
  double error_of_rescaled(int part) const {
    std::vector<std::vector<double>> counts(static_cast<std::size_t>(ranks_), {0, 1});  // P(K = k) by rank and k
    walk(0, schedule_.reduce_rounds(), [&](const sim::Hop& hop, int hop_part, double s) {
      if (hop_part != part) return;
      std::vector<double>& from = counts[static_cast<std::size_t>(hop.source)];
      std::vector<double>& to = counts[static_cast<std::size_t>(hop.destination)];
      std::vector<double> sum(to.size() + from.size() - 1, 0);
      for (std::size_t k = 1; k < to.size(); ++k) {
        sum[k] += to[k] * (1 - s);
        for (std::size_t j = 1; j < from.size(); ++j) sum[k + j] += to[k] * s * from[j];
      }
      to = std::move(sum);
      from = {};  // each sum is sent once
    });
    const std::vector<double>& owned = counts[static_cast<std::size_t>(schedule_.owner(part))];
    double error = 0;
    for (std::size_t k = 1; k < owned.size(); ++k) error += owned[k] * (ranks_ / static_cast<double>(k) - 1);
    return error;
  }

  void gather(const std::optional<std::vector<double>>& errors) {
    values_.assign(moments_.size(), Value());
    const auto error_of = [&](std::size_t place) { return errors.has_value() ? (*errors)[place] : 0; };
    const auto error_of_own = [&](std::size_t place) {
      if (fills_.op != ReduceOp::kMean) return error_of(place);
      return fills_.inputs == Inputs::kIdentical ? 0.0 : ranks_ - 1.0;
    };
    for (int part = 0; part < parts_; ++part) {
      const std::size_t place = at(schedule_.owner(part), part);
      values_[place] = {1, error_of(place)};
    }
    walk(schedule_.reduce_rounds(), schedule_.rounds(), [&](const sim::Hop& hop, int part, double s) {
      if (s < 1) gather_loses_ = true;
      const Value& from = values_[at(hop.source, part)];
      const std::size_t place = at(hop.destination, part);
      const double filled = rule_of(fills_.gather_fill).keeps_own() ? error_of_own(place) : 1;
      values_[place] = {s * from.has_sum, s * from.error + (1 - s) * filled};
    });
  }

  const sim::HopSchedule& schedule_;
  const LossyAllReduce& fills_;
  const LinkRate& rate_;
  int ranks_;
  int parts_;  // the parts with a computed expectation
  bool reduce_loses_ = false;
  bool gather_loses_ = false;
  std::vector<Moments> moments_;  // moments by (rank, part)
  std::vector<Value> values_;
};

}  // namespace

ScheduleExpectation expected_all_reduce(const sim::HopSchedule& schedule, const LossyAllReduce& fills,
                                        const LinkRate& rate, Links links) {
  return Recursion(schedule, fills, rate, links).compute();
}

}  // namespace droptest::comm
