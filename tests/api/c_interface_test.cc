// SPDX-License-Identifier: Apache-2.0
// The promises of droptest.h for flows, and its border: errors, fork(), threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "comm/spec/loss_from_json.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/fate_report.h"
#include "tests/api/networks.h"
#include "tests/comm/temporary_folder.h"

namespace droptest::api::c_interface_test {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kPacketElems = 352;  // float32 elements in 1408 bytes

TEST(CInterface, FatesOfAMillionPacketsAreThoseOfTheFatesCommand) {
  constexpr std::uint64_t kPackets = 1000000;
  constexpr std::uint64_t kSeed = 7;
  const NetworkHandle network = network_of(bernoulli_text(0.05, kSeed), 2);
  droptest_flow* flow = contribution_flow(network.get(), 2);
  std::vector<std::uint64_t> mask((kPackets + 63) / 64);
  for (std::uint64_t left = kPackets; left > 0;) {  // messages have odd sizes
    const std::uint64_t packets = std::min<std::uint64_t>(left, 9973);
    droptest_message message{};
    ASSERT_EQ(
        droptest_flow_next(flow, packets * kPacketElems - 1, DROPTEST_FLOAT32, mask.data(), mask.size(), &message),
        DROPTEST_OK);
    ASSERT_EQ(message.packets, packets);
    ASSERT_EQ(message.first_packet, kPackets - left);
    left -= packets;
  }
  const sim::Link link{sim::TrafficClass::kDpGradient, sim::Half::kReduce, 2, sim::Link::kEveryDestination};
  const sim::FateReport report = sim::report_fates(sim::Bernoulli(0.05), kSeed, link, 0, kPackets);
  EXPECT_EQ(counts_of(flow).digest, report.digest);
  EXPECT_EQ(counts_of(flow).lost, report.lost);

  ASSERT_EQ(droptest_flow_fates(flow, 0, kPackets, mask.data(), mask.size()), DROPTEST_OK);
  EXPECT_TRUE(std::equal(mask.begin(), mask.end(), report.fates.words().begin()));
  std::array<char, 2000> text{};
  std::size_t needed = 0;
  ASSERT_EQ(droptest_flow_report(flow, 0, kPackets, text.data(), text.size(), &needed), DROPTEST_OK);
  EXPECT_EQ(nlohmann::json::parse(text.data())["lost"], report.lost);
}

TEST(CInterface, RealisedRatesAreTheConfiguredOne) {
  double squares = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const NetworkHandle network = network_of(bernoulli_text(0.01, seed));
    droptest_flow* flow = contribution_flow(network.get());
    std::vector<float> data(20000 * kPacketElems, 1.0F);
    ASSERT_EQ(droptest_flow_lose(flow, DROPTEST_SUM, data.data(), data.size(), DROPTEST_FLOAT32, nullptr, nullptr),
              DROPTEST_OK);
    const droptest_counts counts = counts_of(flow);
    EXPECT_LE(std::abs(counts.z), 4) << "seed " << seed;
    EXPECT_EQ(counts.loss_rate, 0.01);
    squares += counts.z * counts.z;
  }
  EXPECT_GT(squares / 40, 0.3);  // z-scores of 40 different fates: their mean square is 1 +- 0.22
  EXPECT_LT(squares / 40, 2);
}

TEST(CInterface, LostRangesAndFillsAreThoseOfTheMask) {
  const NetworkHandle network = network_of(bernoulli_text(0.3, 5, R"(, "payload_bytes": 32)"));
  droptest_flow* flow = contribution_flow(network.get());
  constexpr std::uint64_t kElems = 1003;  // the last of 126 packets has 3 elements
  std::array<std::uint64_t, 2> mask{};
  droptest_message message{};
  ASSERT_EQ(droptest_flow_next(flow, kElems, DROPTEST_FLOAT32, mask.data(), mask.size(), &message), DROPTEST_OK);
  ASSERT_EQ(message.packets, 126U);
  EXPECT_EQ(message.lost, static_cast<std::uint64_t>(std::popcount(mask[0]) + std::popcount(mask[1])));
  EXPECT_EQ(mask[1] >> 62, 0U);

  std::vector<float> data(kElems, 1.0F);
  ASSERT_EQ(droptest_flow_fill(flow, mask.data(), DROPTEST_MAX, data.data(), kElems, DROPTEST_FLOAT32, nullptr),
            DROPTEST_OK);
  std::size_t count = 0;
  ASSERT_EQ(droptest_flow_lost_ranges(flow, mask.data(), kElems, DROPTEST_FLOAT32, nullptr, 0, &count), DROPTEST_OK);
  std::vector<droptest_range> ranges(count);
  ASSERT_EQ(droptest_flow_lost_ranges(flow, mask.data(), kElems, DROPTEST_FLOAT32, ranges.data(), count, &count),
            DROPTEST_OK);
  std::vector<float> expected(kElems, 1.0F);
  for (const auto& [begin, end] : ranges) {
    std::fill(expected.begin() + static_cast<long>(begin), expected.begin() + static_cast<long>(end),
              -std::numeric_limits<float>::infinity());
  }
  std::vector<float> by_packet(kElems, 1.0F);
  for (std::uint64_t element = 0; element < kElems; ++element) {
    const std::uint64_t packet = element / 8;
    if ((mask[packet / 64] >> (packet % 64) & 1U) != 0) by_packet[element] = -std::numeric_limits<float>::infinity();
  }
  EXPECT_EQ(data, by_packet);
  EXPECT_EQ(expected, by_packet);
}

TEST(CInterface, VerifyFindsADigestOfOtherFates) {
  const NetworkHandle network = network_of(bernoulli_text(0.1), 1);
  droptest_flow* own = contribution_flow(network.get(), 1);
  std::vector<double> data(100000, 1.0);
  ASSERT_EQ(droptest_flow_lose(own, DROPTEST_SUM, data.data(), data.size(), DROPTEST_FLOAT64, nullptr, nullptr),
            DROPTEST_OK);
  const droptest_counts counts = counts_of(own);
  const NetworkHandle other = network_of(bernoulli_text(0.1), 3);
  const droptest_link link{DROPTEST_DP_GRADIENT, DROPTEST_REDUCE, 1, DROPTEST_EVERY_DESTINATION, 0};
  droptest_flow* seen = nullptr;
  ASSERT_EQ(droptest_flow_open(other.get(), &link, 0, &seen), DROPTEST_OK);
  EXPECT_EQ(droptest_flow_verify(seen, counts.packets, counts.digest), DROPTEST_OK) << droptest_last_error();
  EXPECT_EQ(droptest_flow_verify(seen, counts.packets + 1, counts.digest), DROPTEST_MISMATCH);
  EXPECT_THAT(droptest_last_error(), HasSubstr("link 1 -> all of class dp_gradient: got the digest"));
}

TEST(CInterface, LinksAndGroupsHaveFatesOfTheirOwn) {
  const NetworkHandle network = network_of(bernoulli_text(0.5));
  std::vector<std::array<std::uint64_t, 1>> masks;
  for (const auto& [source, group] : {std::pair{0, 0U}, {1, 0U}, {0, 1U}}) {
    droptest_flow* flow = contribution_flow(network.get(), source, group);
    masks.emplace_back();
    ASSERT_EQ(droptest_flow_next(flow, 64 * kPacketElems, DROPTEST_FLOAT32, masks.back().data(), 1, nullptr),
              DROPTEST_OK);
  }
  EXPECT_NE(masks[0], masks[1]);
  EXPECT_NE(masks[0], masks[2]);
  EXPECT_EQ(contribution_flow(network.get(), 0), contribution_flow(network.get(), 0));
}

TEST(CInterface, ArgumentsThatAreWrongAreNamed) {
  const NetworkHandle network = network_of(bernoulli_text(0.1));
  droptest_flow* flow = contribution_flow(network.get());
  std::uint64_t word = 0;
  EXPECT_EQ(droptest_flow_next(flow, 65 * kPacketElems, DROPTEST_FLOAT32, &word, 1, nullptr), DROPTEST_ARGUMENT_ERROR);
  EXPECT_STREQ(droptest_last_error(), "mask: got 1 words of 64 bits, want 2 for 65 packets");
  EXPECT_EQ(counts_of(flow).messages, 0U);
  droptest_link link{DROPTEST_DP_GRADIENT, DROPTEST_REDUCE, 4, DROPTEST_EVERY_DESTINATION, 0};
  EXPECT_EQ(droptest_flow_open(network.get(), &link, 1, &flow), DROPTEST_ARGUMENT_ERROR);
  EXPECT_STREQ(droptest_last_error(), "source: got rank 4, want 0 to 3");
  link = {DROPTEST_CONTROL, DROPTEST_REDUCE, 0, DROPTEST_EVERY_DESTINATION, 0};
  EXPECT_EQ(droptest_flow_open(network.get(), &link, 1, &flow), DROPTEST_ARGUMENT_ERROR);
  link = {DROPTEST_DP_GRADIENT, DROPTEST_REDUCE, 0, DROPTEST_EVERY_DESTINATION, 0};
  EXPECT_EQ(droptest_flow_open(network.get(), &link, 0, &flow), DROPTEST_ARGUMENT_ERROR);
  EXPECT_THAT(droptest_last_error(), HasSubstr("want one that is counted"));
  EXPECT_EQ(droptest_flow_counts(nullptr, nullptr), DROPTEST_ARGUMENT_ERROR);
  const droptest_call call{"all_red", nullptr, 4, DROPTEST_FLOAT32, 1};
  droptest_class found{};
  EXPECT_EQ(droptest_classify(network.get(), &call, &found), DROPTEST_ARGUMENT_ERROR);
  EXPECT_THAT(droptest_last_error(), HasSubstr("got \"all_red\", want one of all_reduce"));
}

TEST(CInterface, AGroupWithARankTwiceIsRefused) {
  const NetworkHandle network = network_of(bernoulli_text(0.1));
  droptest_group* group = nullptr;
  const std::int32_t members[] = {0, 2, 2};
  EXPECT_EQ(droptest_group_open(network.get(), DROPTEST_DP_GRADIENT, 1, members, 3, &group), DROPTEST_ARGUMENT_ERROR);
  EXPECT_STREQ(droptest_last_error(), "members: got rank 2 twice, want each rank of the group once");
  EXPECT_EQ(group, nullptr);
}

TEST(CInterface, TheFatesOfAGroupsFlowAreThoseOfItsMessages) {
  for (const char* scope : {"link", "message"}) {
    const std::string more = std::string(R"(, "burst_scope": ")") + scope + "\"";
    const NetworkHandle network = network_of(bernoulli_text(0.3, 1, more));
    droptest_flow* of_all = contribution_flow(network.get());
    droptest_flow* of_group = contribution_flow(network.get(), 0, 3);
    std::uint64_t fates = 0;
    std::uint64_t next = 0;
    droptest_message message{};
    ASSERT_EQ(droptest_flow_fates(of_group, 0, 64, &fates, 1), DROPTEST_OK) << droptest_last_error();
    ASSERT_EQ(droptest_flow_next(of_group, 64 * 352, DROPTEST_FLOAT32, &next, 1, &message), DROPTEST_OK);
    EXPECT_EQ(fates, next);
    ASSERT_EQ(droptest_flow_fates(of_group, message.first_packet, 64, &fates, 1), DROPTEST_OK);
    EXPECT_EQ(fates, next);
    ASSERT_EQ(droptest_flow_fates(of_all, 0, 64, &fates, 1), DROPTEST_OK);
    EXPECT_NE(fates, next);
    EXPECT_EQ(droptest_flow_fates(of_all, message.first_packet, 64, &fates, 1), DROPTEST_ARGUMENT_ERROR);
    EXPECT_THAT(droptest_last_error(), HasSubstr("an index of group 3, want one of group 0"));
  }
}

TEST(CInterface, NumbersThatOverflowAreRefused) {
  const NetworkHandle network = network_of(bernoulli_text(0.1));
  droptest_flow* flow = contribution_flow(network.get());
  constexpr std::uint64_t kMost = ~std::uint64_t{0};
  std::uint64_t word = 0;
  EXPECT_EQ(droptest_flow_fates(flow, kMost - 1, 3, &word, 1), DROPTEST_ARGUMENT_ERROR);
  EXPECT_THAT(droptest_last_error(), HasSubstr("want indices below 2^64"));
  std::uint64_t packets = 0;
  EXPECT_EQ(droptest_flow_packets(flow, kMost / 2, DROPTEST_FLOAT32, &packets), DROPTEST_ARGUMENT_ERROR);
  EXPECT_THAT(droptest_last_error(), HasSubstr("elements: got 9223372036854775807, want at most 4611686018427387903"));
  const droptest_call call{"all_reduce", nullptr, 4, DROPTEST_FLOAT32, kMost / 2};
  droptest_class found{};
  EXPECT_EQ(droptest_classify(network.get(), &call, &found), DROPTEST_ARGUMENT_ERROR);
  EXPECT_EQ(droptest_flow_count(flow, 1, kMost, kMost, nullptr), DROPTEST_ARGUMENT_ERROR);
}

TEST(CInterface, CallsInAForkedChildAreRefused) {
  const NetworkHandle network = network_of(bernoulli_text(0.1));
  droptest_flow* flow = contribution_flow(network.get());
  const pid_t child = ::fork();
  if (child == 0) {
    droptest_counts counts{};
    std::array<float, kPacketElems> data{};
    const bool refused = droptest_flow_lose(flow, DROPTEST_SUM, data.data(), data.size(), DROPTEST_FLOAT32, nullptr,
                                            nullptr) == DROPTEST_FORKED &&
                         droptest_flow_counts(flow, &counts) == DROPTEST_FORKED &&
                         droptest_network_write_statistics(network.get(), ".") == DROPTEST_FORKED &&
                         std::string(droptest_last_error()).find("made before fork()") != std::string::npos;
    droptest_network_destroy(network.get());
    const NetworkHandle own = network_of(bernoulli_text(0.1));  // the child's
    ::_exit(refused && own != nullptr ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(counts_of(flow).messages, 0U);
}

TEST(CInterface, ThreadsWithFlowsOfTheirOwnGetTheFatesOfOneThread) {
  constexpr int kThreads = 4;
  constexpr int kMessages = 200;
  const auto digests = [](bool at_once) {
    const NetworkHandle network = network_of(bernoulli_text(0.05));
    std::vector<std::thread> threads;
    for (int source = 0; source < kThreads; ++source) {
      threads.emplace_back([&network, source] {
        droptest_flow* flow = contribution_flow(network.get(), source);
        std::vector<float> data(50 * kPacketElems, 1.0F);
        for (int message = 0; message < kMessages; ++message) {
          EXPECT_EQ(
              droptest_flow_lose(flow, DROPTEST_SUM, data.data(), data.size(), DROPTEST_FLOAT32, nullptr, nullptr),
              DROPTEST_OK);
        }
        droptest_link wrong{DROPTEST_DP_GRADIENT, DROPTEST_REDUCE, 100 + source, 0, 0};
        EXPECT_EQ(droptest_flow_open(network.get(), &wrong, 1, &flow), DROPTEST_ARGUMENT_ERROR);
        EXPECT_EQ(droptest_last_error(), "source: got rank " + std::to_string(100 + source) + ", want 0 to 3");
      });
      if (!at_once) threads.back().join();
    }
    for (std::thread& thread : threads) {
      if (thread.joinable()) thread.join();
    }
    std::vector<std::uint64_t> result;
    for (int source = 0; source < kThreads; ++source) {
      result.push_back(counts_of(contribution_flow(network.get(), source)).digest);
    }
    return result;
  };
  EXPECT_EQ(digests(true), digests(false));
}

TEST(CInterface, EachThreadHasTheMessageOfItsOwnLastError) {
  EXPECT_EQ(droptest_flow_counts(nullptr, nullptr), DROPTEST_ARGUMENT_ERROR);
  const std::string own = droptest_last_error();
  std::thread([] {
    EXPECT_STREQ(droptest_last_error(), "");
    EXPECT_EQ(droptest_network_set_step(nullptr, 1), DROPTEST_ARGUMENT_ERROR);
    EXPECT_STREQ(droptest_last_error(), "network: got NULL, want a network");
  }).join();
  EXPECT_EQ(droptest_last_error(), own);
}

TEST(CInterface, ReadsTheFileOfTheEnvironment) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/net.json";
  std::ofstream(file) << R"({"network": {"loss": {"model": "bernoulli", "loss_rate": 2}}})";
  ::setenv("DROPTEST_NETWORK", file.c_str(), 1);
  droptest_network* network = nullptr;
  EXPECT_EQ(droptest_network_read(nullptr, 0, 1, &network), DROPTEST_CONFIG_ERROR);
  EXPECT_THAT(droptest_last_error(), HasSubstr(file + ": /network/loss/loss_rate: got 2, want"));
  ::unsetenv("DROPTEST_NETWORK");
  EXPECT_EQ(droptest_network_read(nullptr, 0, 1, &network), DROPTEST_CONFIG_ERROR);
  EXPECT_THAT(droptest_last_error(), HasSubstr("DROPTEST_NETWORK: is not set"));
}

TEST(CInterface, ClassesHaveTheNamesOfSpecs) {
  for (int number = 0; number < 12; ++number) {
    droptest_class found{};
    ASSERT_EQ(droptest_class_from_name(droptest_class_name(static_cast<droptest_class>(number)), &found), DROPTEST_OK);
    EXPECT_EQ(found, number);
  }
  EXPECT_EQ(droptest_class_name(static_cast<droptest_class>(12)), nullptr);
}

}  // namespace
}  // namespace droptest::api::c_interface_test
