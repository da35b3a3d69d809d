// SPDX-License-Identifier: Apache-2.0
// Losses of calls that belong together, of replayed graphs, and in communicators made from others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <numeric>
#include <thread>

#include "api/nccl/newer_nccl.h"
#include "sim/loss/bernoulli.h"
#include "tests/api/nccl/shim_ranks.h"

namespace droptest::nccl_shim::nccl_shim_groups_test {
namespace {

using sim::Half;
using sim::Link;
using sim::TrafficClass;

const sim::Bernoulli kThirtyPercent(0.3);
constexpr std::uint64_t kCount = 16 * 70;

std::vector<float> gathered(int ranks, std::uint64_t packets_before) {
  std::vector<float> all;
  for (int source = 0; source < ranks; ++source) {
    const Link link{TrafficClass::kParameterGather, Half::kGather, static_cast<std::uint16_t>(source)};
    const auto part = without_lost(values(source, kCount), lost_elements(kThirtyPercent, link, packets_before, kCount));
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

// NCCL moves no data before the outermost group ends: a fill after an inner end would be overwritten.
TEST(NcclShimGroups, LossesComeAfterTheOutermostGroup) {
  in_process(lossy(), [] {
    on_ranks(2, [](const Rank& rank) {
      std::vector<float> input = values(rank.rank, kCount);
      std::vector<float> first(2 * kCount);
      std::vector<float> second(2 * kCount);
      std::vector<float> part(kCount / 2);
      std::vector<float> other_part(kCount / 2);
      ok(ncclGroupStart());
      ok(ncclGroupStart());
      ok(ncclAllGather(input.data(), first.data(), kCount, ncclFloat32, rank.comm, rank.stream));
      ok(ncclGroupEnd());
      ok(ncclAllGather(input.data(), second.data(), kCount, ncclFloat32, rank.comm, rank.stream));
      ok(ncclReduceScatter(input.data(), part.data(), kCount / 2, ncclFloat32, ncclSum, rank.comm, rank.stream));
      ok(ncclReduceScatter(input.data(), other_part.data(), kCount / 2, ncclFloat32, ncclSum, rank.comm, rank.stream));
      ok(ncclGroupEnd());
      wait(rank);
      EXPECT_EQ(first, gathered(2, 0));
      EXPECT_EQ(second, gathered(2, packets_of(kCount)));
      const auto mine = static_cast<std::ptrdiff_t>(kCount / 2) * rank.rank;
      const auto half_of = [&](const std::vector<float>& whole) {
        return std::vector<float>(whole.begin() + mine, whole.begin() + mine + static_cast<std::ptrdiff_t>(kCount / 2));
      };
      EXPECT_EQ(part, half_of(sum_of(kThirtyPercent, {0, 1}, 0, 0, kCount)));
      EXPECT_EQ(other_part, half_of(sum_of(kThirtyPercent, {0, 1}, 0, packets_of(kCount), kCount)));
      EXPECT_EQ(input, values(rank.rank, kCount));
    });
  });
}

// The device counts packets, so each replay has new fates; in the end, they are those of twice as many packets.
TEST(NcclShimGroups, EachReplayOfAGraphDrawsFreshFates) {
  in_process(lossy(), [] {
    on_ranks(2, [](const Rank& rank) {
      std::vector<float> input = values(rank.rank, kCount);
      std::vector<float> sum(kCount);
      std::vector<float> part(kCount / 2);
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t replay = nullptr;
      // A capture cannot wait for earlier work.
      ok(ncclAllReduce(input.data(), sum.data(), kCount, ncclFloat32, ncclSum, rank.comm, rank.stream));
      ok(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal));
      ok(ncclAllReduce(input.data(), sum.data(), kCount, ncclFloat32, ncclSum, rank.comm, rank.stream));
      ok(ncclReduceScatter(input.data(), part.data(), kCount / 2, ncclFloat32, ncclSum, rank.comm, rank.stream));
      ok(cudaStreamEndCapture(rank.stream, &graph));
      ok(cudaGraphInstantiate(&replay, graph, 0));
      for (std::uint64_t replays = 0; replays < 2; ++replays) {
        ok(cudaGraphLaunch(replay, rank.stream));
        wait(rank);
        EXPECT_EQ(sum, sum_of(kThirtyPercent, {0, 1}, 0, (1 + 2 * replays) * packets_of(kCount), kCount));
      }
      // One message and two replays of two messages came before.
      ok(ncclAllReduce(input.data(), sum.data(), kCount, ncclFloat32, ncclSum, rank.comm, rank.stream));
      wait(rank);
      EXPECT_EQ(sum, sum_of(kThirtyPercent, {0, 1}, 0, 5 * packets_of(kCount), kCount));
      ok(cudaGraphExecDestroy(replay));
      ok(cudaGraphDestroy(graph));
    });
  });
}

// Both communicators receive over one link, and the second message is there first.
TEST(NcclShimGroups, MessagesOnSeveralStreamsUseTheirLinkInTheOrderOfTheCalls) {
  in_process(lossy(), [] {
    on_ranks(2, [](const Rank& rank) {
      Rank other = rank;
      ok(ncclCommSplit(rank.comm, 0, rank.rank, &other.comm, nullptr));
      ok(cudaStreamCreateWithFlags(&other.stream, cudaStreamNonBlocking));
      const std::vector<float> sent = values(0, kCount);
      const auto send = [&](const Rank& to) { ok(ncclSend(sent.data(), kCount, ncclFloat32, 1, to.comm, to.stream)); };
      std::vector<std::vector<float>> received(5, std::vector<float>(kCount));
      const auto receive = [&](std::size_t i, const Rank& from) {
        ok(ncclRecv(received[i].data(), kCount, ncclFloat32, 0, from.comm, from.stream));
      };
      for (const std::size_t i : {0U, 1U}) {  // first calls take longer, for their tables
        const Rank& one = i == 0 ? rank : other;
        rank.rank == 0 ? send(one) : receive(i, one);
        wait(one);
      }
      if (rank.rank == 0) {
        send(other);
        wait(other);
        send(rank);
        send(rank);
      } else {
        receive(2, rank);
        receive(3, other);
        receive(4, rank);
      }
      wait(other);
      wait(rank);
      const Link link{TrafficClass::kPpActivation, Half::kGather, 0, 1};
      for (std::size_t i = 0; i < received.size() && rank.rank == 1; ++i) {
        EXPECT_EQ(received[i], without_lost(sent, lost_elements(kThirtyPercent, link, i * packets_of(kCount), kCount)));
      }
      ok(ncclCommDestroy(other.comm));
    });
  });
}

TEST(NcclShimGroups, ThePartsOfASplitHaveWorldRanksAndNumbersOfTheirOwn) {
  in_process(lossy(), [] {
    on_ranks(4, [](const Rank& rank) {
      std::vector<float> input = values(rank.rank, kCount);
      std::vector<float> sum(kCount);
      ncclComm_t part = nullptr;
      // Rank 3 takes no part; the others are in reverse order.
      const int color = rank.rank == 3 ? NCCL_SPLIT_NOCOLOR : 0;
      ok(ncclCommSplit(rank.comm, color, -rank.rank, &part, nullptr));
      if (rank.rank == 3) {
        EXPECT_EQ(part, nullptr);
        return;
      }
      ok(ncclAllReduce(input.data(), sum.data(), kCount, ncclFloat32, ncclSum, part, rank.stream));
      wait(rank);
      EXPECT_EQ(sum, sum_of(kThirtyPercent, {0, 1, 2}, 1, 0, kCount));
      ok(ncclCommDestroy(part));
    });
  });
}

TEST(NcclShimGroups, AShrunkCommunicatorKeepsWorldRanks) {
  in_process(lossy(), [] {
    on_ranks(3, [](const Rank& rank) {
      std::vector<float> input = values(rank.rank, kCount);
      std::vector<float> sum(kCount);
      int excluded[] = {1};
      if (rank.rank == 1) return;
      ncclComm_t part = nullptr;
      ok(ncclCommShrink(rank.comm, excluded, 1, &part, nullptr, NCCL_SHRINK_DEFAULT));
      ok(ncclAllReduce(input.data(), sum.data(), kCount, ncclFloat32, ncclSum, part, rank.stream));
      wait(rank);
      EXPECT_EQ(sum, sum_of(kThirtyPercent, {0, 2}, 1, 0, kCount));
      ok(ncclCommDestroy(part));
    });
  });
}

TEST(NcclShimGroups, AGrownCommunicatorLosesPacketsOnTheLinksOfItsWorldRanks) {
  in_process(lossy(), [] {
    ncclUniqueId of_growth;
    std::barrier<> known(3);
    on_ranks(3, [&](const Rank& rank) {
      ncclComm_t part = nullptr;
      ok(ncclCommSplit(rank.comm, rank.rank < 2 ? 0 : NCCL_SPLIT_NOCOLOR, rank.rank, &part, nullptr));
      if (rank.rank == 0) ok(ncclCommGetUniqueId(part, &of_growth));
      known.arrive_and_wait();
      ncclComm_t grown = nullptr;
      ok(ncclCommGrow(part, 3, rank.rank == 1 ? nullptr : &of_growth, rank.rank < 2 ? -1 : 2, &grown, nullptr));
      std::vector<float> sum(kCount);
      std::vector<float> input = values(rank.rank, kCount);
      ok(ncclAllReduce(input.data(), sum.data(), kCount, ncclFloat32, ncclSum, grown, rank.stream));
      wait(rank);
      EXPECT_EQ(sum, sum_of(kThirtyPercent, {0, 1, 2}, 2, 0, kCount));
      std::vector<float> all(3 * kCount);
      ok(ncclAllGather(input.data(), all.data(), kCount, ncclFloat32, grown, rank.stream));
      wait(rank);
      EXPECT_NE(all, values_of_all(3, kCount));
      ok(ncclCommDestroy(grown));
      if (part != nullptr) ok(ncclCommDestroy(part));
    });
  });
}

// A group that NCCL only simulates puts no work on streams: nothing of it is lost, and calls after it are again.
TEST(NcclShimGroups, CallsAfterASimulatedGroupLosePackets) {
  in_process(lossy(), [] {
    on_ranks(2, [](const Rank& rank) {
      std::vector<float> input = values(rank.rank, kCount);
      std::vector<float> all(2 * kCount);
      ok(ncclGroupStart());
      ok(ncclAllGather(input.data(), all.data(), kCount, ncclFloat32, rank.comm, rank.stream));
      ok(ncclGroupSimulateEnd(nullptr));
      wait(rank);
      EXPECT_EQ(all, std::vector<float>(2 * kCount));
      ok(ncclAllGather(input.data(), all.data(), kCount, ncclFloat32, rank.comm, rank.stream));
      wait(rank);
      EXPECT_EQ(all, gathered(2, 0));
    });
  });
}

// The devices of one process, with one thread: NCCL's own ncclCommInitAll calls functions that are interposed.
TEST(NcclShimGroups, TheCommunicatorsOfOneThreadAreTheRanksOfAProgram) {
  in_process(lossy(), [] {
    const int devices[] = {0, 0, 0};
    ncclComm_t comms[3] = {};
    ok(ncclCommInitAll(comms, 3, devices));
    std::vector<std::vector<float>> data;
    std::vector<cudaStream_t> streams(3);
    for (int rank = 0; rank < 3; ++rank) data.push_back(values(rank, kCount));
    for (cudaStream_t& stream : streams) ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    ok(ncclGroupStart());
    for (std::size_t rank = 0; rank < 3; ++rank) {
      ok(ncclAllReduce(data[rank].data(), data[rank].data(), kCount, ncclFloat32, ncclSum, comms[rank], streams[rank]));
    }
    ok(ncclGroupEnd());
    for (std::size_t rank = 0; rank < 3; ++rank) {
      ok(cudaStreamSynchronize(streams[rank]));
      EXPECT_EQ(data[rank], sum_of(kThirtyPercent, {0, 1, 2}, 0, 0, kCount));
      ok(ncclCommDestroy(comms[rank]));
    }
  });
}

// Calls of such communicators take effect while the program asks for their state.
TEST(NcclShimGroups, LossesOfCommunicatorsThatDoNotBlockWaitForTheirCalls) {
  in_process(lossy(), [] {
    ncclUniqueId id;
    ok(ncclGetUniqueId(&id));
    const auto settle = [](ncclComm_t comm, ncclResult_t result) {
      while (result == ncclInProgress) ok(ncclCommGetAsyncError(comm, &result));
      ok(result);
    };
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([&, rank] {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        ncclComm_t comm = nullptr;
        cudaStream_t stream = nullptr;
        ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        const ncclResult_t started = ncclCommInitRankConfig(&comm, 3, id, rank, &config);
        settle(comm, started);
        std::vector<float> input = values(rank, kCount);
        std::vector<float> all(3 * kCount);
        settle(comm, ncclAllGather(input.data(), all.data(), kCount, ncclFloat32, comm, stream));
        ok(cudaStreamSynchronize(stream));
        EXPECT_EQ(all, gathered(3, 0));
        ncclComm_t part = nullptr;
        ok(ncclCommSplit(comm, 0, rank, &part, &config));
        settle(comm, ncclInProgress);
        std::vector<float> sum(kCount);
        settle(part, ncclAllReduce(input.data(), sum.data(), kCount, ncclFloat32, ncclSum, part, stream));
        ok(cudaStreamSynchronize(stream));
        EXPECT_EQ(sum, sum_of(kThirtyPercent, {0, 1, 2}, 1, 0, kCount));
        std::vector<ncclComm_t> ended = {part, comm};
        if (rank != 1) {
          int excluded[] = {1};
          ncclComm_t rest = nullptr;
          ok(ncclCommShrink(comm, excluded, 1, &rest, &config, NCCL_SHRINK_DEFAULT));
          settle(comm, ncclInProgress);
          settle(rest, ncclAllReduce(input.data(), sum.data(), kCount, ncclFloat32, ncclSum, rest, stream));
          ok(cudaStreamSynchronize(stream));
          EXPECT_EQ(sum, sum_of(kThirtyPercent, {0, 2}, 2, 0, kCount));
          ended.insert(ended.begin(), rest);
        }
        for (ncclComm_t one : ended) {
          settle(one, ncclCommFinalize(one));
          ok(ncclCommDestroy(one));
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
  });
}

}  // namespace
}  // namespace droptest::nccl_shim::nccl_shim_groups_test
