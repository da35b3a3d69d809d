// SPDX-License-Identifier: Apache-2.0
// Compares expectations over schedules with the shared vectors, closed forms and sums over all patterns of loss.
#include "comm/lab/schedule_theory.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "comm/lab/collective_theory.h"
#include "comm/lossy/paths/path_registry.h"

namespace droptest::comm::schedule_theory_test {
namespace {

nlohmann::json rows() {
  std::ifstream file(DROPTEST_VECTORS "/collectives_under_loss.json");
  nlohmann::json result = nlohmann::json::parse(file).at("rows");
  EXPECT_EQ(result.size(), 48U);
  return result;
}

// The vectors have one tree; both of the double tree have its depths.
std::string_view path_of(const nlohmann::json& row) {
  const std::string algorithm = row.at("algorithm");
  return path_entry(algorithm == "binary_tree" ? "tree" : algorithm).name;
}

// "to 1e-12": absolute, for values of order one.
void expect_equal(double got, const nlohmann::json& row, const char* key) {
  EXPECT_NEAR(got, row.at(key).get<double>(), 1e-12) << key << " of " << row.dump();
}

LinkRate rates(double reduce, double gather) {
  return [=](sim::Half half, int, int) { return half == sim::Half::kReduce ? reduce : gather; };
}

std::unique_ptr<sim::HopSchedule> all_reduce_of(std::string_view path, int ranks, int group_ranks = 0) {
  return path_entry(path).schedule({sim::Collective::kAllReduce, ranks, 0, group_ranks});
}

TEST(ScheduleTheory, EveryRowOfTheVectors) {
  for (const auto& row : rows()) {
    const double p = row.at("p");
    for (const Links links : {Links::kAlike, Links::kDiffer}) {
      const auto schedule = all_reduce_of(path_of(row), row.at("ranks"));
      LossyAllReduce fills;
      ScheduleExpectation expected = expected_all_reduce(*schedule, fills, rates(p, p), links);
      expect_equal(expected.survival.reduce, row, "survival_reduce_scatter");
      expect_equal(expected.survival.gather, row, "survival_all_gather");
      expect_equal(*expected.nmse, row, "nmse_independent_zero_fill");
      fills.inputs = Inputs::kIdentical;
      expect_equal(*expected_all_reduce(*schedule, fills, rates(p, p), links).nmse, row, "nmse_identical_zero_fill");
      fills.inputs = Inputs::kIndependent;
      fills.reduce_fill = Fill::kCountRescale;
      expect_equal(*expected_all_reduce(*schedule, fills, rates(p, 0), links).nmse, row,
                   "nmse_independent_count_rescale_reduce_scatter_only");
    }
  }
}

// The fill `own` replaces a lost result by the partial sum of an in-place ring, which is then forwarded.
// Source: the sum (1/N) sum_m sum_{j<=m} p s^(m-j) (1 - j/N), here for N = 8 and p = 0.05.
TEST(ScheduleTheory, AnInPlaceRingKeepsItsPartialSums) {
  LossyAllReduce c;
  c.path = "ring";
  c.ranks = 8;
  c.gather_loss_rate = 0.05;
  c.gather_fill = Fill::kOwn;
  double sum = 0;
  for (int m = 1; m < 8; ++m) {
    for (int j = 1; j <= m; ++j) sum += 0.05 * std::pow(0.95, m - j) * (1 - j / 8.0) / 8;
  }
  EXPECT_NEAR(*expected_nmse(c), sum, 1e-14);
  EXPECT_NEAR(*expected_nmse(c), 0.09761, 5e-6);
  c.gather_fill = Fill::kZero;
  EXPECT_NEAR(*expected_nmse(c), 0.15855, 5e-6);
}

// A lossless group with a ring of M groups around it: the formulas of a ring of M, with groups for ranks.
TEST(ScheduleTheory, HierarchyWithLosslessGroupsIsARingOfGroups) {
  const auto hierarchy = all_reduce_of("hierarchical", 32, 4);
  const auto ring = all_reduce_of("ring", 8);
  const LinkRate between = [](sim::Half, int source, int destination) {
    return source / 4 == destination / 4 ? 0.0 : 0.05;
  };
  for (const Inputs inputs : {Inputs::kIndependent, Inputs::kIdentical}) {
    LossyAllReduce fills;
    fills.inputs = inputs;
    const ScheduleExpectation two_levels = expected_all_reduce(*hierarchy, fills, between, Links::kDiffer);
    const ScheduleExpectation one_level = expected_all_reduce(*ring, fills, rates(0.05, 0.05), Links::kAlike);
    EXPECT_NEAR(two_levels.survival.reduce, one_level.survival.reduce, 1e-14);
    EXPECT_NEAR(two_levels.survival.gather, one_level.survival.gather, 1e-14);
    EXPECT_NEAR(*two_levels.nmse, *one_level.nmse, 1e-13);
  }
}

// Every pattern of lost hops of one part, weighed by its probability, followed by hand.
double enumerated_nmse(const sim::HopSchedule& schedule, const LossyAllReduce& c) {
  const int n = schedule.ranks();
  double expectation = 0;
  for (int part = 0; part < schedule.parts(); ++part) {
    std::vector<sim::Hop> hops;
    for (int round = 0; round < schedule.rounds(); ++round) {
      for (int rank = 0; rank < n; ++rank) {
        std::vector<sim::Hop> of_rank;
        schedule.receives(round, rank, of_rank);
        for (const sim::Hop& hop : of_rank) {
          if (hop.first_part <= part && part < hop.end_part) hops.push_back(hop);
        }
      }
    }
    for (unsigned pattern = 0; pattern < (1U << hops.size()); ++pattern) {
      double probability = 1;
      std::vector<std::vector<double>> weights(n, std::vector<double>(n, 0));  // weights of contributions, by rank
      for (int rank = 0; rank < n; ++rank) weights[rank][rank] = 1;
      bool reducing = true;
      for (std::size_t h = 0; h <= hops.size(); ++h) {
        if (reducing && (h == hops.size() || hops[h].half == sim::Half::kGather)) {
          reducing = false;
          double count = 0;
          std::vector<double>& owned = weights[schedule.owner(part)];
          for (const double w : owned) count += w;
          if (c.reduce_fill == Fill::kCountRescale) {
            for (double& w : owned) w *= n / count;
          }
        }
        if (h == hops.size()) break;
        const bool lost = (pattern >> h & 1U) != 0;
        const double p = reducing ? c.reduce_loss_rate : c.gather_loss_rate;
        probability *= lost ? p : 1 - p;
        std::vector<double>& to = weights[hops[h].destination];
        const std::vector<double>& from = weights[hops[h].source];
        for (int i = 0; i < n; ++i) {
          const double factor = c.reduce_fill == Fill::kInverseProbability ? 1 / (1 - p) : 1;
          if (reducing && !lost) to[i] += factor * from[i];
          if (!reducing && !lost) to[i] = from[i];
          if (!reducing && lost && c.gather_fill == Fill::kZero) to[i] = 0;
        }
      }
      for (const std::vector<double>& of_rank : weights) {
        double error = 0;
        double sum = 0;
        for (const double w : of_rank) {
          error += (w - 1) * (w - 1) / n;
          sum += w;
        }
        if (c.inputs == Inputs::kIdentical) error = (sum - n) * (sum - n) / (n * n);
        expectation += probability * error / n / schedule.parts();
      }
    }
  }
  return expectation;
}

TEST(ScheduleTheory, EqualsTheSumOverAllPatternsOfLostHops) {
  for (const std::string_view path : {"direct", "ring", "halving_doubling", "tree", "hierarchical"}) {
    for (const Fill reduce : {Fill::kZero, Fill::kCountRescale, Fill::kInverseProbability}) {
      for (const Fill gather : {Fill::kZero, Fill::kOwn}) {
        for (const Inputs inputs : {Inputs::kIndependent, Inputs::kIdentical}) {
          for (const int ranks : {2, 3, 5}) {
            LossyAllReduce c{path, ranks, 0.3, 0.2, reduce, gather, Consistency::kPerReceiver, inputs, 2};
            const auto schedule = all_reduce_of(path, ranks, 2);
            const double want = enumerated_nmse(*schedule, c);
            const auto got = expected_all_reduce(*schedule, c, rates(0.3, 0.2), Links::kAlike);
            EXPECT_NEAR(*got.nmse, want, 1e-12)
                << path << " " << fill_entry(reduce).name << " " << fill_entry(gather).name << " " << ranks;
            // The fill `own` on `direct` keeps the rank's input in another rank's part; that is also its partial sum
            // there.
            EXPECT_NEAR(*expected_nmse(c), want, 1e-12) << path << " " << ranks;
          }
        }
      }
    }
  }
}

TEST(ScheduleTheory, StaleHasNoClosedForm) {
  LossyAllReduce c{"ring", 4, 0.1, 0, Fill::kStale};
  EXPECT_FALSE(expected_nmse(c).has_value());
  EXPECT_TRUE(expected_survival(c).has_value());
  EXPECT_FALSE(expected_nmse({"tree", 4, 0, 0.1, Fill::kZero, Fill::kStale}).has_value());
  EXPECT_EQ(expected_nmse({"ring", 4, 0, 0, Fill::kStale, Fill::kStale}), 0.0);
}

}  // namespace
}  // namespace droptest::comm::schedule_theory_test
