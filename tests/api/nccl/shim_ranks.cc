// SPDX-License-Identifier: Apache-2.0
#include "tests/api/nccl/shim_ranks.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <numeric>
#include <thread>

#include "sim/loss/packet_mask.h"

namespace droptest::nccl_shim {

std::string network(const std::string& members, const std::string& more) {
  return R"({"seed": )" + std::to_string(kSeed) + R"(, "network": {"payload_bytes": )" + std::to_string(kPayload) +
         ", " + members + "}" + more + "}";
}

std::string lossy() { return network(R"("loss": {"model": "bernoulli", "loss_rate": "30%"})"); }

void in_process(const std::string& network, const std::function<void()>& program) {
  const std::string file = ::testing::TempDir() + "network_" + std::to_string(getpid()) + ".json";
  std::ofstream(file) << network;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    setenv("DROPTEST_NETWORK", file.c_str(), 1);
    program();
    std::exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  unlink(file.c_str());
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status of the child: " << status;
}

void ok(ncclResult_t result) { ASSERT_EQ(result, ncclSuccess) << ncclGetLastError(nullptr); }
void ok(cudaError_t result) { ASSERT_EQ(result, cudaSuccess); }
void wait(const Rank& rank) { ok(cudaStreamSynchronize(rank.stream)); }

void on_ranks(int ranks, const std::function<void(const Rank&)>& program, End end) {
  ncclUniqueId id;
  ok(ncclGetUniqueId(&id));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      Rank rank{r, ranks, nullptr, nullptr};
      ok(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
      ok(ncclCommInitRank(&rank.comm, ranks, id, r));
      if (rank.comm != nullptr) program(rank);
      wait(rank);
      ok(end == End::kDestroyed ? ncclCommDestroy(rank.comm) : ncclCommAbort(rank.comm));
      ok(cudaStreamDestroy(rank.stream));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

float value(int rank, std::uint64_t i) { return static_cast<float>((rank + 1) * 1000 + static_cast<int>(i % 97)); }

std::vector<float> values(int rank, std::uint64_t count) {
  std::vector<float> made(count);
  for (std::uint64_t i = 0; i < count; ++i) made[i] = value(rank, i);
  return made;
}

std::vector<float> values_of_all(int ranks, std::uint64_t count) {
  std::vector<float> all;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<float> part = values(rank, count);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

std::uint64_t packets_of(std::uint64_t count) { return (count * sizeof(float) + kPayload - 1) / kPayload; }

std::vector<bool> lost_elements(const sim::LossProcess& process, const sim::Link& link, std::uint64_t first_packet,
                                std::uint64_t count) {
  sim::PacketMask mask(packets_of(count));
  process.draw(kSeed, link, first_packet, mask);
  std::vector<bool> lost(count);
  for (std::uint64_t i = 0; i < count; ++i) lost[i] = mask.lost(i * sizeof(float) / kPayload);
  return lost;
}

std::vector<float> without_lost(const std::vector<float>& sent, const std::vector<bool>& lost) {
  std::vector<float> received(sent);
  for (std::size_t i = 0; i < sent.size(); ++i) received[i] = lost[i] ? 0.0F : sent[i];
  return received;
}

std::vector<float> sum_of(const sim::LossProcess& process, const std::vector<int>& members, std::uint16_t group,
                          std::uint64_t packets_before, std::uint64_t count) {
  std::vector<float> sum(count);
  for (const int member : members) {
    const sim::Link link{sim::TrafficClass::kDpGradient, sim::Half::kReduce, static_cast<std::uint16_t>(member)};
    const std::uint64_t first = (std::uint64_t{group} << 48U) + packets_before;
    const std::vector<float> arrived = without_lost(values(member, count), lost_elements(process, link, first, count));
    for (std::uint64_t i = 0; i < count; ++i) sum[i] += arrived[i];
  }
  return sum;
}

}  // namespace droptest::nccl_shim
