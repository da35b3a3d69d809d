// SPDX-License-Identifier: Apache-2.0
// Records of a program with ranks that end at different times, or not at all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/json/json_text.h"
#include "tests/api/networks.h"
#include "tests/comm/temporary_folder.h"

namespace droptest::api::rank_statistics_test {
namespace {

using nlohmann::json;

class RankStatistics : public testing::Test {
 protected:
  NetworkHandle rank(int number, int world_size, std::uint64_t seed = 1, const std::string& loss_rate = "0.1") const {
    return network_of(R"({"network": {"loss": {"model": "bernoulli", "loss_rate": )" + loss_rate + R"(}}, "seed": )" +
                          std::to_string(seed) + R"(, "statistics": ")" + folder() + "\"}",
                      number, world_size);
  }
  static void send(droptest_network* network, int source) {
    std::vector<float> data(3520, 1.0F);
    EXPECT_EQ(droptest_flow_lose(contribution_flow(network, source), DROPTEST_SUM, data.data(), data.size(),
                                 DROPTEST_FLOAT32, nullptr, nullptr),
              DROPTEST_OK);
  }
  json write(droptest_network* network) const {
    EXPECT_EQ(droptest_network_write_statistics(network, nullptr), DROPTEST_OK) << droptest_last_error();
    return comm::load_json(folder() + "/loss_statistics.json");
  }
  /// The file of rank 0 with other words, as rank 1's.
  static std::string with_words(json record, const json& words) {
    record["rank"] = 1;
    record["words"] = words;
    return record.dump();
  }
  std::string folder() const { return folder_.path() + "/new"; }

 private:
  TemporaryFolder folder_;
};

TEST_F(RankStatistics, TheLastRankCompletesTheRecord) {
  const NetworkHandle first = rank(0, 2);
  const NetworkHandle second = rank(1, 2);
  send(first.get(), 0);
  send(second.get(), 1);
  send(second.get(), 1);
  EXPECT_EQ(write(second.get())["ranks"]["missing"], json::array({0}));
  const json whole = write(first.get());
  EXPECT_EQ(whole["ranks"]["missing"], json::array());
  EXPECT_EQ(whole["classes"]["dp_gradient"]["packets"], 30);
  EXPECT_EQ(whole["links"].size(), 2U);
  EXPECT_EQ(write(first.get()), whole);  // a rank that writes again counts once
}

TEST_F(RankStatistics, ErrorsOfResultsThatNobodySampledAreNull) {
  const NetworkHandle network = rank(0, 2);
  for (int message = 0; message < 20; ++message) send(network.get(), 0);
  const json of_class = write(network.get())["classes"]["dp_gradient"];
  EXPECT_GT(of_class["lost"], 0);
  EXPECT_EQ(of_class["sampled_calls"], 0);
  for (const char* name : {"nmse", "cosine", "divergence_max", "divergence_rms"}) {
    EXPECT_EQ(of_class[name], nullptr) << name;
  }
}

TEST_F(RankStatistics, CountsOfAnEarlierProgramAreLeftOut) {
  {
    const NetworkHandle before = rank(1, 2);
    send(before.get(), 1);
    write(before.get());
  }
  NetworkHandle first = rank(0, 2);
  const NetworkHandle killed = rank(1, 2);
  send(first.get(), 0);
  EXPECT_EQ(write(first.get())["ranks"]["missing"], json::array({1}));
  write(killed.get());
  first.reset();
  const NetworkHandle other_seed = rank(0, 2, 2);
  send(other_seed.get(), 0);
  EXPECT_EQ(write(other_seed.get())["ranks"]["missing"], json::array({1}));
}

TEST_F(RankStatistics, FilesOfAnotherNetworkAreThoseOfAnEarlierProgram) {
  NetworkHandle earlier = rank(1, 2);
  send(earlier.get(), 1);
  const json before = write(earlier.get());
  const NetworkHandle other_loss = rank(0, 2, 1, "0.2");
  send(other_loss.get(), 0);
  const json record = write(other_loss.get());
  EXPECT_EQ(record["ranks"]["missing"], json::array({1}));
  EXPECT_NE(record["network"]["digest"], before["network"]["digest"]);
  EXPECT_EQ(comm::load_json(folder() + "/ranks/0.json")["network"], record["network"]["digest"]);
}

TEST_F(RankStatistics, AProgramThatIsKilledLeavesItsFolder) {
  const NetworkHandle network = rank(0, 2);
  EXPECT_TRUE(std::filesystem::is_directory(folder() + "/ranks"));
}

TEST_F(RankStatistics, ASecondNetworkOfARankThatWouldOverwriteTheCountsIsRefused) {
  const std::string text = R"({"network": {"loss": {"model": "none"}}, "statistics": ")" + folder() + "/\"}";
  const NetworkHandle other_rank = rank(1, 2);
  NetworkHandle first = rank(0, 2);
  droptest_network* second = nullptr;
  EXPECT_EQ(droptest_network_create(text.c_str(), "net.json", 0, 2, &second), DROPTEST_CONFIG_ERROR);
  EXPECT_THAT(droptest_last_error(),
              testing::HasSubstr("net.json: /statistics: got " + folder() + "/, where another network of rank 0"));
  first.reset();
  ASSERT_EQ(droptest_network_create(text.c_str(), "net.json", 0, 2, &second), DROPTEST_OK) << droptest_last_error();
  droptest_network_destroy(second);
}

TEST_F(RankStatistics, AFileThatNoRankHasWrittenIsNamed) {
  const NetworkHandle network = rank(0, 2);
  send(network.get(), 0);
  write(network.get());
  const std::string file = folder() + "/ranks/1.json";
  const json of_another_rank = comm::load_json(folder() + "/ranks/0.json");
  for (const std::string& text : {std::string("[]"), std::string("{}"), std::string("7"), of_another_rank.dump(),
                                  with_words(of_another_rank, {1, 2}), with_words(of_another_rank, "x")}) {
    std::ofstream(file) << text;
    EXPECT_EQ(droptest_network_write_statistics(network.get(), nullptr), DROPTEST_CONFIG_ERROR) << text;
    EXPECT_THAT(droptest_last_error(), testing::HasSubstr(file + ": got a file that is not the counts of a rank"));
  }
  std::ofstream(file) << R"({"schema_version": 3, "world_size": 2, "seed": 1, "words": [], "exempt": {}})";
  EXPECT_EQ(droptest_network_write_statistics(network.get(), nullptr), DROPTEST_CONFIG_ERROR);
  EXPECT_THAT(droptest_last_error(), testing::HasSubstr("/schema_version: got 3, want 2"));
}

TEST_F(RankStatistics, AFolderThatCannotBeFoundIsNamed) {
  const std::string name(300, 'x');  // longer than a name may be
  const std::string text = R"({"network": {"loss": {"model": "none"}}, "statistics": "/tmp/)" + name + "\"}";
  droptest_network* network = nullptr;
  EXPECT_EQ(droptest_network_create(text.c_str(), "net.json", 0, 1, &network), DROPTEST_CONFIG_ERROR);
  EXPECT_THAT(droptest_last_error(), testing::HasSubstr(name));
}

TEST_F(RankStatistics, AFolderThatCannotBeWrittenIsNamed) {
  const NetworkHandle network = rank(0, 1);
  EXPECT_EQ(droptest_network_write_statistics(network.get(), "/proc/none"), DROPTEST_CONFIG_ERROR);
  EXPECT_THAT(droptest_last_error(), testing::HasSubstr("/proc/none"));
  droptest_network* refused = nullptr;
  EXPECT_EQ(droptest_network_create(R"({"network": {"loss": {"model": "none"}}, "statistics": "/proc/none"})",
                                    "net.json", 0, 1, &refused),
            DROPTEST_CONFIG_ERROR);
  EXPECT_THAT(droptest_last_error(), testing::HasSubstr("/proc/none/ranks"));
}

}  // namespace
}  // namespace droptest::api::rank_statistics_test
