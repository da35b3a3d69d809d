// SPDX-License-Identifier: Apache-2.0
// Runs that differ in their layout alone: comparisons, packets, and times.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "sim/time/link_cost.h"
#include "sim/traffic_class.h"
#include "tests/experiments/tiny_run.h"

namespace droptest::experiments {

/// Both runs read the same text, and their losses differ as rounding makes them differ over the steps.
inline void expect_same_training(const TinyResult& many, const TinyResult& one) {
  EXPECT_EQ(many.outcome.tokens, one.outcome.tokens);
  ASSERT_EQ(many.lines.size(), one.lines.size());
  for (std::size_t i = 0; i < one.lines.size(); ++i) {
    if (one.lines[i].train_loss) {
      EXPECT_NEAR(*many.lines[i].train_loss, *one.lines[i].train_loss, 1e-3) << i;
    }
    if (one.lines[i].validation_loss) {
      EXPECT_NEAR(*many.lines[i].validation_loss, *one.lines[i].validation_loss, 1e-3) << i;
    }
    // In the first step nothing but rounding differs.
    if (i == 1) {
      EXPECT_NEAR(*many.lines[i].gradient_norm / *one.lines[i].gradient_norm, 1, 1e-5);
    }
  }
}

/// As run_forecast.h's expected_packets().
inline std::map<std::string, std::uint64_t> sent_packets(const TinyResult& result) {
  std::map<std::string, std::uint64_t> sent;
  for (const comm::ClassStatistics& statistics : result.outcome.statistics) {
    sent[std::string(sim::traffic_class_name(statistics.traffic_class))] = statistics.total().packets;
  }
  return sent;
}

/// Virtual time with the same link between any two ranks.
inline void set_time(RunConfig& config, const sim::LinkCost& link, double compute_seconds) {
  comm::TimeModel& time = config.time.emplace();
  time.links.within = link;
  time.links.between = link;
  time.compute_seconds = compute_seconds;
}

}  // namespace droptest::experiments
