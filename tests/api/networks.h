// SPDX-License-Identifier: Apache-2.0
// Networks for the tests of the C interface.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "api/droptest.h"

namespace droptest::api {

struct DestroyNetwork {
  void operator()(droptest_network* network) const { droptest_network_destroy(network); }
};
using NetworkHandle = std::unique_ptr<droptest_network, DestroyNetwork>;

/// The text {"network": {"loss": bernoulli(rate), MORE}, "seed": seed}; `more` begins with a comma if it has members.
inline std::string bernoulli_text(double rate, std::uint64_t seed = 1, const std::string& more = "") {
  return R"({"network": {"loss": {"model": "bernoulli", "loss_rate": )" + std::to_string(rate) + "}" + more +
         R"(}, "seed": )" + std::to_string(seed) + "}";
}

inline NetworkHandle network_of(const std::string& text, int rank = 0, int world_size = 4) {
  droptest_network* network = nullptr;
  EXPECT_EQ(droptest_network_create(text.c_str(), "net.json", rank, world_size, &network), DROPTEST_OK)
      << droptest_last_error();
  return NetworkHandle(network);
}

/// The error message for a network that is refused.
inline std::string refusal_of(const std::string& text) {
  droptest_network* network = nullptr;
  EXPECT_EQ(droptest_network_create(text.c_str(), "net.json", 0, 4, &network), DROPTEST_CONFIG_ERROR);
  EXPECT_EQ(network, nullptr);
  return droptest_last_error();
}

/// The counted flow of rank `source` to every destination.
inline droptest_flow* contribution_flow(droptest_network* network, int source = 0, std::uint32_t group = 0) {
  const droptest_link link{DROPTEST_DP_GRADIENT, DROPTEST_REDUCE, source, DROPTEST_EVERY_DESTINATION, group};
  droptest_flow* flow = nullptr;
  EXPECT_EQ(droptest_flow_open(network, &link, 1, &flow), DROPTEST_OK) << droptest_last_error();
  return flow;
}

inline droptest_counts counts_of(const droptest_flow* flow) {
  droptest_counts counts{};
  EXPECT_EQ(droptest_flow_counts(flow, &counts), DROPTEST_OK) << droptest_last_error();
  return counts;
}

}  // namespace droptest::api
