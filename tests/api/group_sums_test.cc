// SPDX-License-Identifier: Apache-2.0
// Collectives of another library with groups of the C interface, compared with the loss layer's own communicator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/json/json_text.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/run_ranks.h"
#include "comm/spec/program_network.h"
#include "experiments/records/loss_statistics_record.h"
#include "experiments/schema/schema_kinds.h"
#include "tests/api/networks.h"
#include "tests/comm/temporary_folder.h"

namespace droptest::api::group_sums_test {
namespace {

using nlohmann::json;

constexpr int kRanks = 4;
constexpr std::chrono::milliseconds kTimeout{20000};
constexpr auto kClass = sim::TrafficClass::kDpGradient;
const comm::Message kMessage{kClass, "gradient"};

std::string text_of(const std::string& fill, const std::string& more = "") {
  return bernoulli_text(0.2, 3, R"(, "payload_bytes": 32, "fill": ")" + fill + "\"" + more);
}

std::vector<float> input_of(int rank, std::size_t count, int call) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = std::sin(static_cast<float>((i + 1) * (rank + 1) + call));
  return values;
}

comm::LossyOptions options_of(const std::string& text) {
  comm::LossyOptions options;
  options.network = comm::program_network_from_json(text, "net.json", kRanks).network;
  return options;
}

std::vector<std::int32_t> members_of(const comm::Communicator& group) {
  std::vector<std::int32_t> members;
  for (int rank = 0; rank < group.world_size(); ++rank) members.push_back(group.world_rank(rank));
  return members;
}

// The calls of one rank on its network.
class Program {
 public:
  Program(droptest_network* network, const comm::Communicator& group, std::uint32_t number, droptest_class of) {
    const std::vector<std::int32_t> members = members_of(group);
    EXPECT_EQ(droptest_group_open(network, of, number, members.data(), group.world_size(), &group_), DROPTEST_OK)
        << droptest_last_error();
  }
  std::uint64_t reduce(std::vector<float>& data, droptest_reduction reduction = DROPTEST_SUM) {
    std::uint64_t sum = 0;
    EXPECT_EQ(
        droptest_group_reduce(group_, reduction, data.data(), data.size(), DROPTEST_FLOAT32, nullptr, nullptr, &sum),
        DROPTEST_OK)
        << droptest_last_error();
    return sum;
  }
  void finish(std::uint64_t sum, std::vector<float>& results, std::uint64_t first = 0) {
    EXPECT_EQ(droptest_group_finish_reduce(group_, sum, results.data(), first, results.size(), nullptr), DROPTEST_OK)
        << droptest_last_error();
  }
  void gather(std::vector<float>& data) {
    EXPECT_EQ(droptest_group_gather(group_, data.data(), data.size(), DROPTEST_FLOAT32, nullptr, nullptr), DROPTEST_OK);
  }

 private:
  droptest_group* group_ = nullptr;
};

class GroupSums : public testing::TestWithParam<const char*> {};

TEST_P(GroupSums, AreThoseOfTheLossyCommunicator) {
  const std::string text = text_of(GetParam());
  const TemporaryFolder folder;
  json own;
  json merged;
  comm::run_ranks(kRanks, kTimeout, [&](comm::Communicator& inner) {
    const int rank = inner.rank();
    comm::LossyCommunicator lossy(inner, options_of(text));
    const auto pair = lossy.split(rank % 2, rank);
    const auto inner_pair = inner.split(rank % 2, rank);
    const NetworkHandle network = network_of(text, rank, kRanks);
    Program world(network.get(), inner, 0, DROPTEST_DP_GRADIENT);
    Program half(network.get(), *inner_pair, 1, DROPTEST_DP_GRADIENT);
    for (int call = 0; call < 20; ++call) {
      const bool in_pair = call % 3 == 2;
      const std::vector<float> input = input_of(rank, 1003, call);
      std::vector<float> expected(input.size());
      (in_pair ? *pair : static_cast<comm::Communicator&>(lossy))
          .all_reduce(std::span(input), std::span(expected), comm::ReduceOp::kSum, kMessage);
      std::vector<float> data = input;
      Program& program = in_pair ? half : world;
      const std::uint64_t sum = program.reduce(data);
      EXPECT_EQ(sum != 0, std::string(GetParam()) != "zero");
      std::vector<float> results(data.size());
      (in_pair ? *inner_pair : inner)
          .all_reduce(std::span<const float>(data), std::span(results), comm::ReduceOp::kSum, kMessage);
      if (sum != 0) program.finish(sum, results);
      EXPECT_EQ(results, expected) << "call " << call;

      const std::vector<std::uint64_t> counts(kRanks, 250);
      const std::vector<float> whole = input_of(rank, 1000, call);
      std::vector<float> part(250);
      lossy.reduce_scatter(std::span(whole), std::span(part), counts, comm::ReduceOp::kSum, kMessage);
      data = whole;
      const std::uint64_t part_sum = world.reduce(data);
      std::vector<float> own_part(250);
      inner.reduce_scatter(std::span<const float>(data), std::span(own_part), counts, comm::ReduceOp::kSum, kMessage);
      if (part_sum != 0) world.finish(part_sum, own_part, static_cast<std::uint64_t>(250 * rank));
      EXPECT_EQ(own_part, part);
    }
    const auto statistics = lossy.collect_statistics(comm::LinkDetail::kInclude);
    ASSERT_EQ(droptest_network_write_statistics(network.get(), folder.path().c_str()), DROPTEST_OK)
        << droptest_last_error();
    inner.barrier(comm::Message{});
    if (rank == 0) {
      own = experiments::loss_statistics_json(statistics, options_of(text).network);
      merged = comm::load_json(folder.path() + "/loss_statistics.json");
    }
  });
  EXPECT_EQ(merged["ranks"], json({{"world_size", kRanks}, {"missing", json::array()}}));
  EXPECT_EQ(merged["links"], own["links"]);
  EXPECT_EQ(merged["classes"], own["classes"]);
  EXPECT_THAT(experiments::schema_of(experiments::SchemaKind::kLossStatistics).check(merged), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Fills, GroupSums, testing::Values("zero", "count_rescale", "inverse_probability"),
                         [](const auto& fill) { return std::string(fill.param); });

TEST(Groups, GathersAreThoseOfTheLossyCommunicator) {
  const std::string text = bernoulli_text(0.2, 3, R"(, "payload_bytes": 32)");
  comm::run_ranks(kRanks, kTimeout, [&](comm::Communicator& inner) {
    comm::LossyCommunicator lossy(inner, options_of(text));
    const NetworkHandle network = network_of(text, inner.rank(), kRanks);
    Program program(network.get(), inner, 0, DROPTEST_PARAMETER_GATHER);
    const comm::Message message{sim::TrafficClass::kParameterGather, "parameters"};
    const std::vector<std::uint64_t> counts(kRanks, 301);
    for (int call = 0; call < 5; ++call) {
      std::vector<float> data = input_of(inner.rank(), 301, call);
      std::vector<float> expected(301 * kRanks);
      std::vector<float> gathered(expected.size());
      lossy.all_gather(std::span<const float>(data), std::span(expected), counts, message);
      program.gather(data);
      inner.all_gather(std::span<const float>(data), std::span(gathered), counts, message);
      EXPECT_EQ(gathered, expected);
      EXPECT_NE(std::count(gathered.begin(), gathered.end(), 0.0F), 0);
    }
  });
}

TEST(Groups, MaximaLeaveLostPacketsOut) {
  const NetworkHandle network = network_of(bernoulli_text(1));
  std::int32_t members[] = {0, 1};
  droptest_group* group = nullptr;
  ASSERT_EQ(droptest_group_open(network.get(), DROPTEST_DP_GRADIENT, 0, members, 2, &group), DROPTEST_OK);
  std::vector<float> data(400, 1.0F);
  ASSERT_EQ(
      droptest_group_reduce(group, DROPTEST_MAX, data.data(), data.size(), DROPTEST_FLOAT32, nullptr, nullptr, nullptr),
      DROPTEST_OK);
  EXPECT_EQ(data, std::vector<float>(400, -std::numeric_limits<float>::infinity()));
}

TEST(Groups, MaximaUnderAFillThatRescalesAreExempt) {
  const NetworkHandle network = network_of(text_of("count_rescale"));
  std::int32_t members[] = {0, 1};
  droptest_group* group = nullptr;
  ASSERT_EQ(droptest_group_open(network.get(), DROPTEST_DP_GRADIENT, 0, members, 2, &group), DROPTEST_OK);
  std::vector<float> data(4000, 1.0F);
  std::uint64_t sum = 7;
  ASSERT_EQ(
      droptest_group_reduce(group, DROPTEST_MAX, data.data(), data.size(), DROPTEST_FLOAT32, nullptr, nullptr, &sum),
      DROPTEST_OK)
      << droptest_last_error();
  EXPECT_EQ(sum, 0U);
  EXPECT_EQ(data, std::vector<float>(4000, 1.0F));
  EXPECT_EQ(counts_of(contribution_flow(network.get())).messages, 0U);
  std::string text(10000, ' ');
  ASSERT_EQ(droptest_network_statistics(network.get(), text.data(), text.size(), nullptr), DROPTEST_OK);
  EXPECT_EQ(json::parse(text.c_str())["exempt"], json::parse(R"({"no_loss_layer": {"calls": 1, "bytes": 16000}})"));
}

TEST(Groups, SumsAreFinishedInAnyOrder) {
  const NetworkHandle in_order = network_of(text_of("count_rescale"), 1, 3);
  const NetworkHandle reversed = network_of(text_of("count_rescale"), 1, 3);
  const std::vector<std::int32_t> members{0, 1, 2};
  const auto results_of = [&](droptest_network* network, std::vector<int> order) {
    droptest_group* group = nullptr;
    EXPECT_EQ(droptest_group_open(network, DROPTEST_DP_GRADIENT, 0, members.data(), 3, &group), DROPTEST_OK);
    std::vector<std::vector<float>> messages(2, std::vector<float>(1000, 1.0F));
    std::vector<std::uint64_t> sums(2);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(droptest_group_reduce(group, DROPTEST_SUM, messages[i].data(), 1000, DROPTEST_FLOAT32, nullptr, nullptr,
                                      &sums[i]),
                DROPTEST_OK);
      messages[i].assign(1000, 1.0F);
    }
    for (const int i : order) {
      EXPECT_EQ(droptest_group_finish_reduce(group, sums[i], messages[i].data(), 0, 1000, nullptr), DROPTEST_OK);
    }
    return messages;
  };
  const auto expected = results_of(in_order.get(), {0, 1});
  EXPECT_EQ(results_of(reversed.get(), {1, 0}), expected);
  EXPECT_NE(expected[0], expected[1]);
}

TEST(Groups, WrongUsesAreRefusedByName) {
  std::int32_t members[] = {0, 2};
  droptest_group* group = nullptr;
  std::vector<float> data(400, 1.0F);
  const auto reduce = [&](droptest_network* network, std::uint64_t* sum) {
    EXPECT_EQ(droptest_group_open(network, DROPTEST_DP_GRADIENT, 0, members, 2, &group), DROPTEST_OK);
    return droptest_group_reduce(group, DROPTEST_SUM, data.data(), data.size(), DROPTEST_FLOAT32, nullptr, nullptr,
                                 sum);
  };
  const NetworkHandle rescaling = network_of(text_of("count_rescale"));
  EXPECT_EQ(reduce(rescaling.get(), nullptr), DROPTEST_ARGUMENT_ERROR);
  EXPECT_THAT(droptest_last_error(), testing::HasSubstr("want the fill zero"));
  EXPECT_EQ(droptest_group_finish_reduce(group, 1, data.data(), 0, 400, nullptr), DROPTEST_ARGUMENT_ERROR);
  EXPECT_THAT(droptest_last_error(), testing::HasSubstr("sum: got 1, want"));
  std::uint64_t sum = 0;
  ASSERT_EQ(reduce(rescaling.get(), &sum), DROPTEST_OK);
  EXPECT_EQ(sum, 1U);
  EXPECT_EQ(droptest_group_finish_reduce(group, 1, data.data(), 1, 400, nullptr), DROPTEST_ARGUMENT_ERROR);
  EXPECT_STREQ(droptest_last_error(), "elements: got 1 to 401, want a part of the message's 400");
  EXPECT_EQ(droptest_group_finish_reduce(group, 1, data.data(), 0, 400, nullptr), DROPTEST_OK);

  const NetworkHandle gathering =
      network_of(bernoulli_text(0, 1, R"(, "gather": {"loss": {"model": "bernoulli", "loss_rate": 0.5}})"));
  EXPECT_EQ(reduce(gathering.get(), nullptr), DROPTEST_ARGUMENT_ERROR);
  EXPECT_THAT(droptest_last_error(), testing::HasSubstr("/network/gather/loss"));

  members[0] = 1;
  EXPECT_EQ(droptest_group_open(rescaling.get(), DROPTEST_DP_GRADIENT, 0, members, 2, &group), DROPTEST_ARGUMENT_ERROR);
  EXPECT_STREQ(droptest_last_error(), "members: got a group without rank 0, want this rank among them");
}

}  // namespace
}  // namespace droptest::api::group_sums_test
