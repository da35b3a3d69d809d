// SPDX-License-Identifier: Apache-2.0
// A saved state in a new network: the fates and counts go on as if nothing had been between.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/api/networks.h"

namespace droptest::api::rank_state_test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::uint64_t kElements = 400 * 352 + 5;
constexpr char kText[] = R"({"network": {
  "loss": {"model": "gilbert_elliott", "loss_rate": 0.2, "mean_burst_packets": 6},
  "recovery": {"retransmit": {"protocol": "selective_repeat", "rounds": 1}}, "fill": "count_rescale"}, "seed": 5})";

std::vector<std::byte> saved(const NetworkHandle& network) {
  std::size_t needed = 0;
  EXPECT_EQ(droptest_network_save_state(network.get(), nullptr, 0, &needed), DROPTEST_OK) << droptest_last_error();
  std::vector<std::byte> bytes(needed);
  EXPECT_EQ(droptest_network_save_state(network.get(), bytes.data(), bytes.size(), &needed), DROPTEST_OK);
  return bytes;
}

droptest_status load(const NetworkHandle& network, const std::vector<std::byte>& bytes) {
  return droptest_network_load_state(network.get(), bytes.data(), bytes.size());
}

std::string statistics_of(const NetworkHandle& network) {
  std::string text(1 << 16, '\0');
  std::size_t needed = 0;
  EXPECT_EQ(droptest_network_statistics(network.get(), text.data(), text.size(), &needed), DROPTEST_OK);
  text.resize(needed);
  return text;
}

/// The beginning of a sum of ones by two ranks: what this rank sends, and the number of the sum.
struct BegunSum {
  droptest_group* group = nullptr;
  std::vector<float> data = std::vector<float>(kElements, 1.0F);
  std::uint64_t number = 0;
};
BegunSum begin_sum(const NetworkHandle& network) {
  const std::vector<int> members = {0, 1};
  BegunSum sum;
  EXPECT_EQ(droptest_group_open(network.get(), DROPTEST_DP_GRADIENT, 0, members.data(), 2, &sum.group), DROPTEST_OK);
  EXPECT_EQ(droptest_group_reduce(sum.group, DROPTEST_SUM, sum.data.data(), kElements, DROPTEST_FLOAT32, nullptr,
                                  nullptr, &sum.number),
            DROPTEST_OK)
      << droptest_last_error();
  return sum;
}

/// A whole one, as the rank sees it: its lost elements, and the factors of the results.
std::vector<float> sum(const NetworkHandle& network) {
  BegunSum begun = begin_sum(network);
  EXPECT_EQ(droptest_group_finish_reduce(begun.group, begun.number, begun.data.data(), 0, kElements, nullptr),
            DROPTEST_OK);
  return std::move(begun.data);
}

void count_an_exempt_call(const NetworkHandle& network) {
  const droptest_call call{"barrier", nullptr, 2, DROPTEST_FLOAT32, 0};
  EXPECT_EQ(droptest_count_exempt(network.get(), &call), DROPTEST_OK);
}

TEST(RankState, GoesOnInANewNetwork) {
  const NetworkHandle whole = network_of(kText, 0, 2);
  for (int i = 0; i < 3; ++i) sum(whole);
  count_an_exempt_call(whole);
  ASSERT_EQ(droptest_network_set_step(whole.get(), 3), DROPTEST_OK);
  const NetworkHandle resumed = network_of(kText, 0, 2);
  sum(resumed);  // the loaded state replaces the effect of this call
  ASSERT_EQ(load(resumed, saved(whole)), DROPTEST_OK) << droptest_last_error();
  EXPECT_EQ(saved(resumed), saved(whole));
  EXPECT_EQ(statistics_of(resumed), statistics_of(whole));
  const std::vector<float> next = sum(whole);
  EXPECT_EQ(sum(resumed), next);
  EXPECT_THAT(sum(network_of(kText, 0, 2)), Not(next));
  EXPECT_EQ(statistics_of(resumed), statistics_of(whole));
}

TEST(RankState, BytesOfAnotherNetworkOrDamagedOnesAreRefusedAndChangeNothing) {
  const NetworkHandle network = network_of(kText, 0, 2);
  sum(network);
  const std::vector<std::byte> own = saved(network);
  const auto refusal = [&](const std::vector<std::byte>& bytes) {
    EXPECT_EQ(load(network, bytes), DROPTEST_CONFIG_ERROR);
    EXPECT_EQ(saved(network), own);
    return std::string(droptest_last_error());
  };
  for (const std::size_t place : {std::size_t{0}, own.size() / 2, own.size() - 1}) {
    std::vector<std::byte> damaged = own;
    damaged[place] ^= std::byte{1};
    EXPECT_THAT(refusal(damaged), HasSubstr("state: got damaged bytes"));
  }
  EXPECT_THAT(refusal({own.begin(), own.end() - 1}), HasSubstr("state: got damaged bytes"));
  EXPECT_THAT(refusal({own.begin(), own.begin() + 3}), HasSubstr("state: got 3 bytes"));
  EXPECT_THAT(refusal(saved(network_of(kText, 1, 2))),
              HasSubstr("state: got that of rank 1 of 2 with seed 5, want that of rank 0 of 2 with seed 5"));
  EXPECT_THAT(refusal(saved(network_of(kText, 0, 3))), HasSubstr("rank 0 of 3"));
  EXPECT_THAT(refusal(saved(network_of(bernoulli_text(0.1, 6), 0, 2))), HasSubstr("seed 6, want"));
  EXPECT_THAT(refusal(saved(network_of(bernoulli_text(0.1, 5), 0, 2))), HasSubstr("state: got that of the network {"));
}

TEST(RankState, IsRefusedWhileASumIsUnfinished) {
  const NetworkHandle network = network_of(kText, 0, 2);
  begin_sum(network);
  std::size_t needed = 0;
  EXPECT_EQ(droptest_network_save_state(network.get(), nullptr, 0, &needed), DROPTEST_ARGUMENT_ERROR);
  EXPECT_THAT(droptest_last_error(), HasSubstr("state: got 1 sums whose results are not scaled yet"));
}

}  // namespace
}  // namespace droptest::api::rank_state_test
