// SPDX-License-Identifier: Apache-2.0
// Runs that differ only in their layout: comparisons, packets, and times.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "comm/backend_registry.h"
#include "experiments/training/trainer.h"
#include "sim/time/link_cost.h"
#include "sim/traffic_class.h"
#include "tests/comm/temporary_folder.h"
#include "tests/experiments/tiny_run.h"

namespace droptest::experiments {

/// Expects that both runs read the same text, and that their losses differ only by rounding, which grows over the
/// steps.
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
    // In the first step, only rounding differs.
    if (i == 1) {
      EXPECT_NEAR(*many.lines[i].gradient_norm / *one.lines[i].gradient_norm, 1, 1e-5);
    }
  }
}

/// The packets of a run, in the form of expected_packets() in run_forecast.h.
inline std::map<std::string, std::uint64_t> sent_packets(const TinyResult& result) {
  std::map<std::string, std::uint64_t> sent;
  for (const comm::ClassStatistics& statistics : result.outcome.statistics) {
    sent[std::string(sim::traffic_class_name(statistics.traffic_class))] = statistics.total().packets;
  }
  return sent;
}

/// A time model with the same link between any two ranks.
inline void set_time(RunConfig& config, const sim::LinkCost& link, double compute_seconds) {
  comm::TimeModel& time = config.time.emplace();
  time.links.within = link;
  time.links.between = link;
  time.compute_seconds = compute_seconds;
}

/// Trains on ranks that meet over Gloo, in threads of this process.
inline TinyResult train_over_gloo(const RunConfig& config, const Corpus& corpus) {
  const TemporaryFolder folder;
  const auto ranks = static_cast<std::size_t>(config.parallel.world_size());
  TinyResult result;
  result.by_rank.resize(ranks);
  std::vector<std::string> errors(ranks);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        comm::ProcessGroupOptions options;
        options.rank = static_cast<int>(rank);
        options.world_size = static_cast<int>(ranks);
        options.timeout = std::chrono::seconds(30);
        options.rendezvous.directory = folder.path();
        options.rendezvous.launch_id = "trainer";
        const auto group = comm::backend_entry("gloo").connect(options);
        result.by_rank[rank] =
            train(config, corpus, *group, [&](const MetricsLine& line) { result.lines.push_back(line); });
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  result.outcome = result.by_rank[0];
  return result;
}

}  // namespace droptest::experiments
