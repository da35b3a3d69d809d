// SPDX-License-Identifier: Apache-2.0
// Losses of single calls of NCCL's functions.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "api/nccl/newer_nccl.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/gilbert_elliott.h"
#include "tests/api/nccl/shim_ranks.h"

namespace droptest::nccl_shim::nccl_shim_test {
namespace {

using sim::Half;
using sim::Link;
using sim::TrafficClass;
using ::testing::HasSubstr;

const sim::Bernoulli kThirtyPercent(0.3);
constexpr std::uint64_t kCount = 16 * 150 + 5;  // 151 packets, the last one short

TEST(NcclShim, AnAllReduceLosesTheContributionsThatTheHostDraws) {
  in_process(lossy(), [] {
    on_ranks(3, [](const Rank& rank) {
      const std::vector<float> sent = values(rank.rank, kCount);
      std::vector<float> input = sent;
      for (int call = 0; call < 3; ++call) {
        std::vector<float> sum(kCount, -1);
        ok(ncclAllReduce(input.data(), sum.data(), kCount, ncclFloat32, ncclSum, rank.comm, rank.stream));
        wait(rank);
        EXPECT_EQ(sum,
                  sum_of(kThirtyPercent, {0, 1, 2}, 0, static_cast<std::uint64_t>(call) * packets_of(kCount), kCount));
        EXPECT_EQ(input, sent);
      }
    });
  });
}

TEST(NcclShim, AnAllReduceInPlaceLosesTheSamePackets) {
  in_process(lossy(), [] {
    on_ranks(2, [](const Rank& rank) {
      std::vector<float> data = values(rank.rank, kCount);
      ok(ncclAllReduce(data.data(), data.data(), kCount, ncclFloat32, ncclSum, rank.comm, rank.stream));
      wait(rank);
      EXPECT_EQ(data, sum_of(kThirtyPercent, {0, 1}, 0, 0, kCount));
    });
  });
}

TEST(NcclShim, ANetworkWithoutLossChangesNoBit) {
  in_process(network(R"("loss": {"model": "none"})"), [] {
    on_ranks(3, [](const Rank& rank) {
      std::vector<float> input = values(rank.rank, kCount);
      std::vector<float> sum(kCount);
      ok(ncclAllReduce(input.data(), sum.data(), kCount, ncclFloat32, ncclSum, rank.comm, rank.stream));
      wait(rank);
      for (std::uint64_t i = 0; i < kCount; ++i) EXPECT_EQ(sum[i], value(0, i) + value(1, i) + value(2, i));
    });
  });
}

/// Weights of all ranks after 20 steps of a least-squares fit: gradients by reduce-scatter, weights by all-gather, a
/// norm by all-reduce. `network` empty: without one.
std::vector<float> trained(const std::string& network) {
  const std::string file = ::testing::TempDir() + "shim_weights_" + std::to_string(getpid());
  in_process(network, [&] {
    if (network.empty()) unsetenv("DROPTEST_NETWORK");
    std::vector<float> of_all(2 * kCount);
    on_ranks(2, [&](const Rank& rank) {
      constexpr std::uint64_t kPart = kCount / 2;
      std::vector<float> weights(2 * kPart, 0.5F);
      std::vector<float> gradients(2 * kPart);
      std::vector<float> part(kPart);
      for (int step = 0; step < 20; ++step) {
        for (std::uint64_t i = 0; i < weights.size(); ++i) {
          const float input = 1.0F / static_cast<float>(1 + (i + static_cast<std::uint64_t>(step)) % 7);
          gradients[i] = input * (weights[i] * input - static_cast<float>(rank.rank + 1));
        }
        ok(ncclReduceScatter(gradients.data(), part.data(), kPart, ncclFloat32, ncclAvg, rank.comm, rank.stream));
        float norm = 0;
        wait(rank);
        for (const float gradient : part) norm += gradient * gradient;
        ok(ncclAllReduce(&norm, &norm, 1, ncclFloat32, ncclSum, rank.comm, rank.stream));
        wait(rank);
        float* const own = weights.data() + static_cast<std::uint64_t>(rank.rank) * kPart;
        for (std::uint64_t i = 0; i < kPart; ++i) own[i] -= part[i] / std::max(1.0F, std::sqrt(norm));
        ok(ncclAllGather(own, weights.data(), kPart, ncclFloat32, rank.comm, rank.stream));
        wait(rank);
      }
      std::copy(weights.begin(), weights.end(), of_all.begin() + static_cast<std::ptrdiff_t>(kCount) * rank.rank);
    });
    std::ofstream(file, std::ios::binary)
        .write(reinterpret_cast<const char*>(of_all.data()),
               static_cast<std::streamsize>(of_all.size() * sizeof(float)));
  });
  std::vector<float> weights(2 * kCount);
  std::ifstream(file, std::ios::binary)
      .read(reinterpret_cast<char*>(weights.data()), static_cast<std::streamsize>(weights.size() * sizeof(float)));
  return weights;
}

TEST(NcclShim, TwentyStepsWithoutLossHaveTheBitsOfNccl) {
  const std::vector<float> without_network = trained("");
  EXPECT_NE(without_network.front(), 0.5F);
  EXPECT_EQ(trained(network(R"("loss": {"model": "none"})")), without_network);
  EXPECT_NE(trained(lossy()), without_network);
}

struct Law {
  const char* name;
  const char* json;
  sim::GilbertElliottRates rates;
};
class NcclShimLaws : public ::testing::TestWithParam<Law> {};

TEST_P(NcclShimLaws, TheDeviceDrawsTheHostsFates) {
  const sim::GilbertElliott process(GetParam().rates);
  in_process(network(std::string(R"("loss": {"model": "gilbert_elliott", )") + GetParam().json + "}"), [&] {
    on_ranks(2, [&](const Rank& rank) {
      std::vector<float> input = values(rank.rank, kCount);
      for (std::uint64_t call = 0; call < 4; ++call) {
        std::vector<float> sum(kCount);
        ok(ncclAllReduce(input.data(), sum.data(), kCount, ncclFloat32, ncclSum, rank.comm, rank.stream));
        wait(rank);
        EXPECT_EQ(sum, sum_of(process, {0, 1}, 0, call * packets_of(kCount), kCount));
      }
    });
  });
}

INSTANTIATE_TEST_SUITE_P(
    Chains, NcclShimLaws,
    ::testing::Values(
        Law{"bursts",
            R"("p_good_to_bad": 0.01, "p_bad_to_good": 0.02, "loss_good": 0, "loss_bad": 1)",
            {0.01, 0.02, 0, 1}},
        Law{"noise",
            R"("p_good_to_bad": 0.1, "p_bad_to_good": 0.2, "loss_good": 0.05, "loss_bad": 0.7)",
            {0.1, 0.2, 0.05, 0.7}},
        Law{"swaps", R"("p_good_to_bad": 0.9, "p_bad_to_good": 0.8, "loss_good": 0, "loss_bad": 1)", {0.9, 0.8, 0, 1}}),
    [](const auto& law) { return law.param.name; });

TEST(NcclShim, AReduceScatterAndAReduceLeaveTheirInputsAsTheyAre) {
  in_process(lossy(), [] {
    on_ranks(2, [](const Rank& rank) {
      const std::vector<float> sent = values(rank.rank, 2 * kCount);
      std::vector<float> input = sent;
      std::vector<float> part(kCount);
      ok(ncclReduceScatter(input.data(), part.data(), kCount, ncclFloat32, ncclSum, rank.comm, rank.stream));
      wait(rank);
      const std::vector<float> whole = sum_of(kThirtyPercent, {0, 1}, 0, 0, 2 * kCount);
      const auto mine = whole.begin() + static_cast<std::ptrdiff_t>(kCount) * rank.rank;
      EXPECT_EQ(part, std::vector<float>(mine, mine + static_cast<std::ptrdiff_t>(kCount)));
      EXPECT_EQ(input, sent);

      std::vector<float> sum(2 * kCount, -1);
      ok(ncclReduce(input.data(), sum.data(), 2 * kCount, ncclFloat32, ncclSum, 1, rank.comm, rank.stream));
      wait(rank);
      const std::vector<float> nothing(2 * kCount, -1);
      EXPECT_EQ(sum, rank.rank == 1 ? sum_of(kThirtyPercent, {0, 1}, 0, packets_of(2 * kCount), 2 * kCount) : nothing);
      EXPECT_EQ(input, sent);
    });
  });
}

TEST(NcclShim, AllReceiversOfAnAllGatherLoseTheSamePackets) {
  in_process(lossy(), [] {
    on_ranks(3, [](const Rank& rank) {
      const std::vector<float> sent = values(rank.rank, kCount);
      std::vector<float> input = sent;
      std::vector<float> all(3 * kCount);
      ok(ncclAllGather(input.data(), all.data(), kCount, ncclFloat32, rank.comm, rank.stream));
      wait(rank);
      EXPECT_EQ(input, sent);
      for (int source = 0; source < 3; ++source) {
        const Link link{TrafficClass::kParameterGather, Half::kGather, static_cast<std::uint16_t>(source)};
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(kCount) * source;
        EXPECT_EQ(std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(kCount)),
                  without_lost(values(source, kCount), lost_elements(kThirtyPercent, link, 0, kCount)));
      }
    });
  });
}

TEST(NcclShim, AReceiverLosesPacketsOfItsOwnLink) {
  const std::string classes = network(
      R"("gather": {"loss": {"model": "bernoulli", "loss_rate": "30%"}}, "classes": {"dp_gradient": {"gather": {"loss": {"model": "none"}}}})");
  in_process(classes, [] {
    on_ranks(2, [](const Rank& rank) {
      const std::vector<float> sent = values(rank.rank, kCount);
      std::vector<float> output = sent;
      std::vector<float> input(kCount);
      const int peer = 1 - rank.rank;
      ok(ncclGroupStart());
      ok(ncclSend(output.data(), kCount, ncclFloat32, peer, rank.comm, rank.stream));
      ok(ncclRecv(input.data(), kCount, ncclFloat32, peer, rank.comm, rank.stream));
      ok(ncclGroupEnd());
      wait(rank);
      const Link link{TrafficClass::kPpActivation, Half::kGather, static_cast<std::uint16_t>(peer),
                      static_cast<std::uint16_t>(rank.rank)};
      EXPECT_EQ(input, without_lost(values(peer, kCount), lost_elements(kThirtyPercent, link, 0, kCount)));
      EXPECT_EQ(output, sent);
    });
  });
}

TEST(NcclShim, IntegersSmallMessagesBroadcastsAndMinimaAreExempt) {
  in_process(network(R"("loss": {"model": "bernoulli", "loss_rate": "100%"})"), [] {
    on_ranks(2, [](const Rank& rank) {
      std::vector<std::int64_t> numbers(1000, rank.rank + 1);
      ok(ncclAllReduce(numbers.data(), numbers.data(), 1000, ncclInt64, ncclSum, rank.comm, rank.stream));
      float norm = 2;
      ok(ncclAllReduce(&norm, &norm, 1, ncclFloat32, ncclSum, rank.comm, rank.stream));
      std::vector<float> parameters = values(rank.rank, kCount);
      ok(ncclBroadcast(parameters.data(), parameters.data(), kCount, ncclFloat32, 1, rank.comm, rank.stream));
      std::vector<float> smallest = values(rank.rank, kCount);
      ok(ncclAllReduce(smallest.data(), smallest.data(), kCount, ncclFloat32, ncclMin, rank.comm, rank.stream));
      std::vector<float> gradient = values(rank.rank, kCount);
      ok(ncclAllReduce(gradient.data(), gradient.data(), kCount, ncclFloat32, ncclAvg, rank.comm, rank.stream));
      wait(rank);
      EXPECT_EQ(numbers[999], 3);
      EXPECT_EQ(norm, 4.0F);
      EXPECT_EQ(parameters, values(1, kCount));
      EXPECT_EQ(smallest, values(1, kCount));  // the double has maxima in the place of minima
      EXPECT_EQ(gradient, std::vector<float>(kCount));
    });
  });
}

// Lost elements have no effect on the maximum; it is minus infinity if all of them are lost.
TEST(NcclShim, AMaximumLosesTheContributionsThatASumLoses) {
  for (const std::uint64_t count : {kCount, kCount + 3}) {  // copies of words and of bytes
    in_process(lossy(), [count] {
      on_ranks(2, [count](const Rank& rank) {
        std::vector<float> largest = values(rank.rank, count);
        ok(ncclAllReduce(largest.data(), largest.data(), count, ncclFloat32, ncclMax, rank.comm, rank.stream));
        wait(rank);
        std::vector<float> expected(count, -std::numeric_limits<float>::infinity());
        for (int source = 0; source < 2; ++source) {
          const Link link{TrafficClass::kDpGradient, Half::kReduce, static_cast<std::uint16_t>(source)};
          const std::vector<bool> lost = lost_elements(kThirtyPercent, link, 0, count);
          for (std::uint64_t i = 0; i < count; ++i) {
            if (!lost[i]) expected[i] = value(source, i);
          }
        }
        EXPECT_EQ(largest, expected);
      });
    });
  }
}

TEST(NcclShim, ACollectiveWithAConfigurationLosesPacketsAsOneWithout) {
  in_process(lossy(), [] {
    on_ranks(2, [](const Rank& rank) {
      std::vector<float> data = values(rank.rank, kCount);
      ok(ncclAllReduceConfig(data.data(), data.data(), kCount, ncclFloat32, ncclSum, rank.comm, rank.stream, nullptr));
      wait(rank);
      EXPECT_EQ(data, sum_of(kThirtyPercent, {0, 1}, 0, 0, kCount));
    });
  });
}

TEST(NcclShim, AnExemptMessageIsCountedOnceByItsSender) {
  const std::string folder = ::testing::TempDir() + "shim_messages_" + std::to_string(getpid());
  std::filesystem::remove_all(folder);
  in_process(network(R"("loss": {"model": "bernoulli", "loss_rate": "30%"})", R"(, "statistics": ")" + folder + "\""),
             [] {
               on_ranks(2, [](const Rank& rank) {
                 float value = 1;
                 ok(rank.rank == 0 ? ncclSend(&value, 1, ncclFloat32, 1, rank.comm, rank.stream)
                                   : ncclRecv(&value, 1, ncclFloat32, 0, rank.comm, rank.stream));
                 wait(rank);
               });
             });
  std::ifstream file(folder + "/loss_statistics.json");
  EXPECT_EQ(nlohmann::json::parse(file)["exempt"], nlohmann::json::parse(R"({"small": {"calls": 1, "bytes": 4}})"));
}

TEST(NcclShim, AProgramThatLoadsNcclByNameLosesPackets) {
  in_process(lossy(), [] {
    void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    auto* const all_reduce = reinterpret_cast<decltype(&ncclAllReduce)>(dlsym(library, "ncclAllReduce"));
    ASSERT_NE(all_reduce, nullptr);
    ASSERT_NE(dlsym(library, "pncclMemAlloc"), nullptr);
    ASSERT_NE(dlsym(library, "ncclCommSuspend"), nullptr);  // a function of versions newer than the build's header
    on_ranks(2, [&](const Rank& rank) {
      std::vector<float> data = values(rank.rank, kCount);
      ok(all_reduce(data.data(), data.data(), kCount, ncclFloat32, ncclSum, rank.comm, rank.stream));
      wait(rank);
      EXPECT_EQ(data, sum_of(kThirtyPercent, {0, 1}, 0, 0, kCount));
    });
  });
}

TEST(NcclShim, AMistakeInTheNetworkIsAnErrorBeforeRanksMeet) {
  in_process(network(R"("loss": {"model": "bernoulli", "loss_rate": 3})"), [] {
    ncclUniqueId id;
    ok(ncclGetUniqueId(&id));
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRank(&comm, 4, id, 2), ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("rank 2: "));
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("/network/loss/loss_rate: got 3"));
  });
}

TEST(NcclShim, ALossThatNoDeviceDrawsIsAnErrorOfItsFirstCall) {
  in_process(network(R"("loss": {"model": "pattern", "every": 10})"), [] {
    on_ranks(2, [](const Rank& rank) {
      std::vector<float> data = values(rank.rank, kCount);
      EXPECT_EQ(ncclAllReduce(data.data(), data.data(), kCount, ncclFloat32, ncclSum, rank.comm, rank.stream),
                ncclInvalidUsage);
      EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("rank " + std::to_string(rank.rank) + ": "));
      EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("want none, bernoulli or gilbert_elliott"));
    });
  });
}

TEST(NcclShim, WithoutANetworkCallsAreNccls) {
  in_process("", [] {
    unsetenv("DROPTEST_NETWORK");
    on_ranks(2, [](const Rank& rank) {
      std::vector<float> data = values(rank.rank, kCount);
      ok(ncclAllReduce(data.data(), data.data(), kCount, ncclFloat32, ncclSum, rank.comm, rank.stream));
      wait(rank);
      EXPECT_EQ(data[0], value(0, 0) + value(1, 0));
    });
  });
}

// The record of all ranks, and the host's digest of all fates in it. The program continues with a second communicator.
void expect_counts_of_two_communicators(End end) {
  const std::string folder = ::testing::TempDir() + "shim_statistics_" + std::to_string(getpid());
  std::filesystem::remove_all(folder);
  in_process(
      network(R"("loss": {"model": "bernoulli", "loss_rate": "30%"})", R"(, "statistics": ")" + folder + "\""), [end] {
        for (const int calls : {3, 2}) {
          on_ranks(
              2,
              [calls](const Rank& rank) {
                std::vector<float> data = values(rank.rank, kCount);
                for (int call = 0; call < calls; ++call) {
                  ok(ncclAllReduce(data.data(), data.data(), kCount, ncclFloat32, ncclSum, rank.comm, rank.stream));
                }
                wait(rank);
              },
              end);
        }
      });
  std::ifstream file(folder + "/loss_statistics.json");
  const nlohmann::json record = nlohmann::json::parse(file);
  const nlohmann::json& half = record["classes"]["dp_gradient"]["halves"]["reduce"];
  EXPECT_EQ(half["messages"], 10);
  EXPECT_EQ(half["packets"], 10 * packets_of(kCount));
  EXPECT_EQ(half["bytes"], 10 * kCount * sizeof(float));
  std::uint64_t lost = 0;
  for (std::uint16_t source = 0; source < 2; ++source) {
    for (const std::uint64_t group : {0U, 1U}) {
      sim::PacketMask mask((group == 0 ? 3 : 2) * packets_of(kCount));
      kThirtyPercent.draw(kSeed, {TrafficClass::kDpGradient, Half::kReduce, source}, group << 48U, mask);
      lost += mask.lost_count();
    }
  }
  EXPECT_EQ(half["lost"], lost);
}

TEST(NcclShim, TheCountsOfAllRanksAreWritten) { expect_counts_of_two_communicators(End::kDestroyed); }

// An abort waits for nothing, so its counts are read at the end of the program.
TEST(NcclShim, TheCountsOfAbortedCommunicatorsAreWritten) { expect_counts_of_two_communicators(End::kAborted); }

TEST(NcclShim, AForkedChildDoesNothingAtItsEnd) {
  const std::string errors = ::testing::TempDir() + "shim_child_errors";
  in_process(lossy(), [&] {
    on_ranks(2, [](const Rank& rank) {
      std::vector<float> data = values(rank.rank, kCount);
      ok(ncclAllReduce(data.data(), data.data(), kCount, ncclFloat32, ncclSum, rank.comm, rank.stream));
      wait(rank);
    });
    const pid_t child = fork();
    if (child == 0) {
      if (std::freopen(errors.c_str(), "w", stderr) == nullptr) std::_Exit(1);
      std::exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    std::ifstream file(errors);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "");
  });
}

TEST(NcclShim, ACommunicatorIsDestroyedWhereItsCountsCannotBeWritten) {
  const std::string folder = ::testing::TempDir() + "shim_unwritable";
  std::filesystem::remove_all(folder);
  in_process(network(R"("loss": {"model": "none"})", R"(, "statistics": ")" + folder + "\""), [&] {
    ncclUniqueId id;
    ok(ncclGetUniqueId(&id));
    ncclComm_t comm = nullptr;
    ok(ncclCommInitRank(&comm, 1, id, 0));
    std::filesystem::remove_all(folder);
    std::ofstream(folder) << "a file in the folder's place";
    EXPECT_EQ(ncclCommDestroy(comm), ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr(folder));
    EXPECT_DEATH(ncclCommDestroy(comm), "CommDestroy on a communicator that is gone");
    std::filesystem::remove(folder);
  });
}

}  // namespace
}  // namespace droptest::nccl_shim::nccl_shim_test
