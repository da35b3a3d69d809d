// SPDX-License-Identifier: Apache-2.0
#include "comm/metered_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "comm/run_ranks.h"
#include "tests/comm/conformance.h"

namespace droptest::comm::metered_communicator_test {
namespace {

using namespace std::chrono_literals;

const Message kMessage{.name = "metered"};

TEST(MeteredCommunicator, KeepsTheContractOfTheInnerOne) {
  for (const int world_size : {1, 3}) {
    run_ranks(world_size, 60s, [](Communicator& inner) {
      MeteredCommunicator metered(inner);
      const std::uint64_t bare = check_conformance(inner);
      EXPECT_EQ(check_conformance(metered), bare);
      EXPECT_EQ(check_conformance_of_splits(metered), check_conformance_of_splits(inner));
      EXPECT_EQ(metered.backend(), inner.backend());
      EXPECT_EQ(metered.part_reductions(), inner.part_reductions());
    });
  }
  run_ranks(2, 60s, [](Communicator& inner) {
    MeteredCommunicator metered(inner);
    EXPECT_EQ(check_conformance_of_channels(metered), check_conformance_of_channels(inner));
  });
}

TEST(MeteredCommunicator, CountsTheBytesThatTheRankSends) {
  run_ranks(2, 60s, [](Communicator& inner) {
    MeteredCommunicator metered(inner);
    std::array<float, 4> data{};
    auto used = [&metered, last = std::uint64_t{0}]() mutable {
      const std::uint64_t before = std::exchange(last, metered.use().sent_bytes);
      return last - before;
    };
    metered.all_reduce(Tensor(std::span<float>(data)), ReduceOp::kSum, kMessage);
    EXPECT_EQ(used(), 16U);
    metered.broadcast(Tensor(std::span<float>(data)), 1, kMessage);
    EXPECT_EQ(used(), metered.rank() == 1 ? 16U : 0U);
    metered.barrier(kMessage);
    EXPECT_EQ(used(), 0U);
    const Tensor tensor{std::span<float>(data)};
    if (metered.rank() == 0) {
      metered.send(tensor, 1, kMessage);
    } else {
      metered.recv(tensor, 0, kMessage);
    }
    EXPECT_EQ(used(), metered.rank() == 0 ? 16U : 0U);
    const auto part = metered.split(0, metered.rank());
    (void)used();
    part->all_reduce(Tensor(std::span<float>(data)), ReduceOp::kSum, kMessage);
    EXPECT_EQ(used(), 16U) << "groups that were split from it count, too";
    metered.start_all_reduce(tensor, tensor, ReduceOp::kSum, kMessage).wait();
    EXPECT_EQ(used(), 16U);
    const bool sends = metered.rank() == 0;
    (sends ? metered.start_send(tensor, 1, kMessage) : metered.start_recv(tensor, 0, kMessage)).wait();
    EXPECT_EQ(used(), sends ? 16U : 0U);
    const Send send{tensor, 1 - metered.rank(), kMessage};
    std::array<float, 4> received{};
    const Receive receive{Tensor(std::span<float>(received)), 1 - metered.rank(), kMessage};
    metered.exchange({&send, 1}, {&receive, 1});
    EXPECT_EQ(used(), 16U);
  });
}

TEST(MeteredCommunicator, TheObserverHearsOfCallsThatBelongTogetherByEqualNumbers) {
  struct Heard final : CallObserver {
    void begins(const MeteredCall& call) override {
      const char* const parts[] = {"", " start", " wait"};
      std::string ends;
      if (call.source >= 0) ends = " " + std::to_string(call.source) + ">" + std::to_string(call.destination);
      list.push_back(std::string(operation_name(call.operation)) + parts[static_cast<int>(call.part)] + " [" +
                     std::string(call.group) + "]" + ends + " " + std::to_string(call.number) + ": " +
                     std::to_string(call.bytes));
      ++open;
    }
    void ends() override { --open; }
    std::vector<std::string> list;
    int open = 0;
  };
  run_ranks(2, 60s, [](Communicator& inner) {
    Heard heard;
    MeteredCommunicator metered(inner, &heard);
    std::array<float, 4> data{};
    const Tensor tensor{std::span<float>(data)};
    const auto first = metered.split(0, metered.rank());
    const auto second = metered.split(0, metered.rank());
    metered.barrier(kMessage);
    {
      Work work = metered.start_all_reduce(tensor, tensor, ReduceOp::kSum, kMessage);
      work.wait();
    }
    second->all_reduce(tensor, ReduceOp::kSum, kMessage);
    if (metered.rank() == 0) {
      metered.send(tensor, 1, kMessage);
    } else {
      metered.recv(tensor, 0, kMessage);
    }
    const Send send{tensor, 1 - metered.rank(), kMessage};
    std::array<float, 4> received{};
    const Receive receive{Tensor(std::span<float>(received)), 1 - metered.rank(), kMessage};
    metered.exchange({&send, 1}, {&receive, 1});
    metered.exchange({}, {});
    metered.barrier(kMessage);
    std::erase_if(heard.list, [](const std::string& one) { return one.find(" wait ") != std::string::npos; });
    const std::string message = metered.rank() == 0 ? "send" : "recv";
    EXPECT_THAT(heard.list, testing::ElementsAre("barrier [0 1] 1: 0", "all_reduce start [0 1] 2: 16",
                                                 "all_reduce [0 1 (3)] 1: 16", message + " [0 1] 0>1 1: 16",
                                                 "exchange [0 1] 2: 16", "exchange [0 1] 2: 0", "barrier [0 1] 3: 0"));
    EXPECT_EQ(heard.open, 0);
  });
}

TEST(MeteredCommunicator, TimeInCallsIsWaiting) {
  run_ranks(2, 60s, [](Communicator& inner) {
    MeteredCommunicator metered(inner);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(metered.use().waiting_seconds, 0);
    for (int i = 0; i < 100; ++i) metered.barrier(kMessage);
    const double all = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    EXPECT_GT(metered.use().waiting_seconds, 0);
    EXPECT_LE(metered.use().waiting_seconds, all);
  });
}

}  // namespace
}  // namespace droptest::comm::metered_communicator_test
