// SPDX-License-Identifier: Apache-2.0
// Calls that would lose nothing are refused, and ncclGetLastError() says why.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "api/nccl/newer_nccl.h"
#include "sim/loss/bernoulli.h"
#include "tests/api/nccl/shim_ranks.h"

namespace droptest::nccl_shim::nccl_shim_errors_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const sim::Bernoulli kThirtyPercent(0.3);
constexpr std::uint64_t kCount = 16 * 150 + 5;

/// A function of the test double itself, not of the library under test.
template <class Function>
Function* of_double(const char* name) {
  void* const library = dlopen(DROPTEST_DOUBLE, RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(library, nullptr) << dlerror();
  void* const found = dlsym(library, name);
  EXPECT_NE(found, nullptr) << name;
  return reinterpret_cast<Function*>(found);
}

/// A function that the library under test has, and the double has not.
#define DROPTEST_LACKING(function) reinterpret_cast<decltype(&function)>(dlsym(RTLD_DEFAULT, #function))

TEST(NcclShimErrors, EveryFunctionOfTheNewestHeadersIsExported) {
  std::ifstream file(DROPTEST_NCCL_NAMES);
  const nlohmann::json names = nlohmann::json::parse(file);
  void* const library = dlopen(DROPTEST_SHIM, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  Dl_info own{};
  for (const char* kind : {"functions", "others"}) {
    for (const auto& name : names[kind]) {
      for (const std::string& symbol : {name.get<std::string>(), "p" + name.get<std::string>()}) {
        void* const address = dlsym(library, symbol.c_str());
        ASSERT_NE(address, nullptr) << symbol;
        ASSERT_NE(dladdr(address, &own), 0);
        EXPECT_THAT(own.dli_fname, HasSubstr("droptest_nccl")) << symbol;
      }
    }
  }
  EXPECT_GE(names["functions"].size(), 80U);
}

TEST(NcclShimErrors, AFunctionThatNcclsLibraryLacksIsAnErrorWithBothNames) {
  in_process(lossy(), [] {
    on_ranks(2, [](const Rank& rank) {
      const auto lacks = [](ncclResult_t result, const char* name) {
        EXPECT_EQ(result, ncclInvalidUsage);
        EXPECT_THAT(ncclGetLastError(nullptr),
                    AllOf(HasSubstr("NCCL 2.28.9 has no function " + std::string(name)), HasSubstr("a newer version")));
      };
      std::vector<float> data = values(rank.rank, kCount);
      lacks(DROPTEST_LACKING(ncclReduceConfig)(data.data(), data.data(), kCount, ncclFloat32, ncclSum, 0, rank.comm,
                                               rank.stream, nullptr),
            "ncclReduceConfig");  // interposed
      const auto suspend = reinterpret_cast<ncclResult_t (*)(ncclComm_t, int)>(dlsym(RTLD_DEFAULT, "ncclCommSuspend"));
      lacks(suspend(rank.comm, 1), "ncclCommSuspend");  // passed on by a jump
      wait(rank);
    });
  });
}

TEST(NcclShimErrors, AnErrorOfNcclTakesThePlaceOfAnEarlierTextOfTheLibrary) {
  in_process(network(R"("loss": {"model": "pattern", "every": 10})"), [] {
    on_ranks(1, [](const Rank& rank) {
      const auto say = of_double<void(const char*)>("droptest_fake_nccl_say");
      std::vector<float> data = values(rank.rank, kCount);
      say("an old text of NCCL");
      ncclDataType_t type = ncclFloat32;
      // A group of one rank is exempt; a link between two ranks is not.
      EXPECT_EQ(ncclAllReduce(data.data(), data.data(), kCount, type, ncclSum, rank.comm, rank.stream), ncclSuccess);
      EXPECT_STREQ(ncclGetLastError(nullptr), "an old text of NCCL");
      EXPECT_EQ(DROPTEST_LACKING(ncclDevCommCreate)(rank.comm, nullptr, nullptr), ncclInvalidUsage);
      EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("ncclDevCommCreate: its messages would lose nothing"));
      say("a new text of NCCL");  // a forwarded call sets this text
      EXPECT_STREQ(ncclGetLastError(nullptr), "a new text of NCCL");
    });
  });
}

TEST(NcclShimErrors, MessagesThatCannotLosePacketsAreRefusedWhereTheirClassHasALoss) {
  const std::string only_gradients = network(
      R"("loss": {"model": "none"}, "classes": {"dp_gradient": {"loss": {"model": "bernoulli", "loss_rate": "30%"}}})");
  for (const bool all : {true, false}) {
    in_process(all ? lossy() : only_gradients, [all] {
      on_ranks(2, [all](const Rank& rank) {
        std::vector<float> data = values(rank.rank, kCount);
        EXPECT_EQ(DROPTEST_LACKING(ncclPutSignal)(data.data(), kCount, ncclFloat32, 1 - rank.rank, nullptr, 0, 0, 0, 0,
                                                  rank.comm, rank.stream),
                  ncclInvalidUsage);
        EXPECT_THAT(
            ncclGetLastError(nullptr),
            HasSubstr(all ? "ncclPutSignal: its messages would lose nothing, but class pp_activation has a loss; "
                            "want ncclSend and ncclRecv"
                          : "has no function ncclPutSignal"));
        EXPECT_EQ(DROPTEST_LACKING(ncclDevCommCreate)(rank.comm, nullptr, nullptr), ncclInvalidUsage);
        EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("ncclDevCommCreate: its messages would lose nothing"));
      });
    });
  }
}

TEST(NcclShimErrors, ACommunicatorOfAnUnknownFunctionIsRefused) {
  in_process(lossy(), [] {
    on_ranks(2, [](const Rank& rank) {
      ncclComm_t unknown = nullptr;
      ok(of_double<decltype(ncclCommSplit)>("ncclCommSplit")(rank.comm, 0, rank.rank, &unknown, nullptr));
      std::vector<float> data = values(rank.rank, kCount);
      const auto refused = [](ncclResult_t result) {
        EXPECT_EQ(result, ncclInvalidUsage);
        EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("it would lose nothing; want one of ncclCommInitRank"));
      };
      refused(ncclAllReduce(data.data(), data.data(), kCount, ncclFloat32, ncclSum, unknown, rank.stream));
      refused(ncclAllGather(data.data(), data.data(), kCount, ncclFloat32, unknown, rank.stream));
      refused(ncclBroadcast(data.data(), data.data(), kCount, ncclFloat32, 0, unknown, rank.stream));
      ncclComm_t part = nullptr;
      refused(ncclCommSplit(unknown, 0, 0, &part, nullptr));
      ok(ncclCommDestroy(unknown));
    });
  });
}

TEST(NcclShimErrors, RanksWithDifferentNetworksAreRefusedWithBothDigests) {
  in_process(lossy(), [] {
    of_double<void(void (*)(int))>("droptest_fake_nccl_on_rank")([](int rank) {
      std::string text = lossy();
      text.replace(text.find("30%"), 3, rank == 1 ? "31%" : "30%");
      std::ofstream(std::getenv("DROPTEST_NETWORK")) << text;
    });
    const int devices[] = {0, 0, 0};
    ncclComm_t comms[3] = {};
    EXPECT_EQ(ncclCommInitAll(comms, 3, devices), ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(nullptr),
                AllOf(HasSubstr("rank 0: network: has the digest "), HasSubstr(", and that of rank 1 has "),
                      HasSubstr("want one network section and one seed on all ranks")));
  });
}

TEST(NcclShimErrors, AProgramThatGrowsBeyondItsFirstRanksIsRefusedOnAllOfThem) {
  in_process(lossy(), [] {
    ncclUniqueId id;
    ncclUniqueId of_growth;
    ok(ncclGetUniqueId(&id));
    std::vector<ncclComm_t> first(2);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] { ok(ncclCommInitRank(&first[static_cast<std::size_t>(rank)], 2, id, rank)); });
    }
    for (std::thread& rank : ranks) rank.join();
    ranks.clear();
    ok(ncclCommGetUniqueId(first[0], &of_growth));
    for (int rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([&, rank] {
        ncclComm_t grown = nullptr;
        ncclComm_t parent = rank < 2 ? first[static_cast<std::size_t>(rank)] : nullptr;
        EXPECT_EQ(ncclCommGrow(parent, 3, rank == 1 ? nullptr : &of_growth, rank < 2 ? -1 : rank, &grown, nullptr),
                  ncclInvalidUsage);
        EXPECT_THAT(ncclGetLastError(nullptr),
                    HasSubstr("rank " + std::to_string(rank) + ": communicator of 3 ranks: got a program of " +
                              (rank < 2 ? "2 ranks, and on rank 2 one of 3" : "3 ranks, and on rank 0 one of 2")));
      });
    }
    for (std::thread& rank : ranks) rank.join();
  });
}

}  // namespace
}  // namespace droptest::nccl_shim::nccl_shim_errors_test
