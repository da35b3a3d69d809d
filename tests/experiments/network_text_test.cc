// SPDX-License-Identifier: Apache-2.0
// A network from only its text equals the network of a spec with the same sections.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/spec/lossy_options_from_json.h"
#include "tests/comm/error_text.h"
#include "tests/experiments/resolved_spec.h"
#include "tests/experiments/tiny_run.h"

namespace droptest::experiments::network_text_test {
namespace {

/// The sections, in a separate text and in a spec with the ranks and sizes of tiny_config().
std::string text_of(const std::string& sections) { return R"({"seed": 3, )" + sections + "}"; }
std::string spec_of(const std::string& sections) {
  return R"({"name": "t", "data": {"text": "a.txt"}, "seed": 3, "parallel": {"tensor": 2},
      "model": {"layers": 1, "width": 32, "heads": 4, "context": 16},
      "training": {"batch_sequences": 4, "warmup_steps": 1}, )" +
         sections + "}";
}

/// The traffic of a run of that spec.
comm::Traffic traffic_of_run() {
  return {.world_size = 2,
          .classes = {sim::TrafficClass::kTpForward, sim::TrafficClass::kTpBackward},
          .largest_elements = 4 * 16 * 32};
}

const char* const kClock = R"("time": {"link": {"latency_microseconds": 5, "bandwidth_gbit_per_second": 1},
                                       "compute_milliseconds": 12, "deadline_microseconds": 2000,
                                       "stragglers": {"transfer_p99_over_p50": 2}})";

TEST(NetworkText, TrainsAsTheSpecDoes) {
  const std::string lost = R"("loss": {"model": "gilbert_elliott", "loss_rate": "10%", "mean_burst_packets": 3})";
  const std::vector<std::string> sections = {
      R"("network": {"payload_bytes": 64, )" + lost + "}",
      R"("network": {"path": "ring", "payload_bytes": 64, "fill": "stale", )" + lost + "}",
      R"("network": {"path": "contribution", "payload_bytes": 128, "fill": "inverse_probability", )" + lost + "}",
      R"("network": {"payload_bytes": 64, "burst_scope": "message", "consistency": "shared",
                     "gather": {"loss": {"model": "none"}}, "classes": {"tp_backward": {"fill": "count_rescale"}},
                     "links": [{"sources": [1], "loss": {"model": "bernoulli", "loss_rate": 0.5}}], )" +
          lost + "}",
      R"("network": {"payload_bytes": 64, "recovery": {"parity": {"data": 4, "parity": 1}, "interleave": 4,
                     "error_feedback": true, "protect": {"names": ["*mlp*"]}}, )" +
          lost + "}",
      R"("network": {"payload_bytes": 64, "fill": "stale", )" + lost + "}, " + kClock};
  const Corpus corpus = tiny_corpus();
  for (const std::string& both : sections) {
    const RunConfig of_spec = resolved(spec_of(both)).config;
    const comm::LossyOptions of_text = comm::lossy_options_from_json(text_of(both), "net.json", traffic_of_run());
    EXPECT_EQ(of_text.network.seed, of_spec.network.seed);
    EXPECT_EQ(of_text.time.has_value(), of_spec.time.has_value());
    RunConfig by_spec = tiny_config();
    by_spec.network = of_spec.network;
    by_spec.time = of_spec.time;
    RunConfig by_text = tiny_config();
    by_text.network = of_text.network;
    by_text.time = of_text.time;
    const TinyResult one = train_locally(by_spec, corpus);
    const TinyResult other = train_locally(by_text, corpus);
    EXPECT_EQ(trace_of(one), trace_of(other)) << both;
    ASSERT_EQ(one.outcome.statistics.size(), 2U);
    ASSERT_EQ(other.outcome.statistics.size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_GT(one.outcome.statistics[i].total().lost_packets, 0U) << both;
      EXPECT_EQ(one.outcome.statistics[i].digest, other.outcome.statistics[i].digest) << both;
    }
  }
}

TEST(NetworkText, ErrorsAreThoseOfTheSpec) {
  const std::vector<std::string> sections = {
      R"("network": {"los": 1, "payload_bytes": 12, "loss": {"model": "bernouli"}}, "time": {"link": 5})",
      R"("network": {"loss": {"model": "bernoulli", "loss_rate": "200%"}})",
      R"("network": {"loss": {"model": "four_state", "p13": 0.1, "p31": 0.6, "p32": 0.6}})",
      R"("network": {"loss": {"model": "trace", "file": "/nowhere/t"}})",
      R"("network": {"links": [{"sources": [2, "1-0"], "loss": {"model": "bernoulli", "loss_rate": 0.1}}]})",
      R"("network": {"path": "hierarchical", "consistency": "shared", "loss": {"model": "bernoulli", "loss_rate": 0.1}})",
      R"("network": {"reduce": {"fill": "own"}, "recovery": {"hadamard": {"block": 1000}},
                     "loss": {"model": "bernoulli", "loss_rate": 0.1}})",
      R"("network": {"path": "contribution", "links": [{"destinations": [1],
                     "loss": {"model": "bernoulli", "loss_rate": 0.1}}]})",
      R"("network": {"loss": {"model": "timed_gilbert_elliott", "mean_good_microseconds": 90,
                              "mean_bad_microseconds": 10}})",
      R"("network": {"fill": "inverse_probability", "loss": {"model": "bernoulli", "loss_rate": 0.1}}, )" +
          std::string(kClock),
      R"("network": {"recovery": {"retransmit": {"protocol": "selective_repeat"}},
                     "loss": {"model": "bernoulli", "loss_rate": 0.9999}})"};
  for (const std::string& both : sections) {
    const std::string of_spec = config_error_of([&both] {
      const nlohmann::json document = comm::parse_json(spec_of(both), "s.json");
      (void)resolve(document, "s.json");
    });
    const std::string of_text =
        config_error_of([&both] { (void)comm::lossy_options_from_json(text_of(both), "s.json", traffic_of_run()); });
    EXPECT_NE(of_spec, "(no error)") << both;
    EXPECT_EQ(of_text, of_spec);
  }
}

}  // namespace
}  // namespace droptest::experiments::network_text_test
