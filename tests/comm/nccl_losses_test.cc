// SPDX-License-Identifier: Apache-2.0
// The loss layer on tensors of devices over the test double of NCCL: the fates of `local`, and its bits on every path
// that computes its own sums.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/run_ranks.h"
#include "tests/comm/lossy_program.h"
#include "tests/comm/lossy_recovery.h"
#include "tests/comm/nccl_fixture.h"
#include "tests/comm/nccl_ranks.h"
#include "tests/comm/through_device.h"

namespace droptest::comm::nccl_losses_test {
namespace {

constexpr std::uint64_t kSteps = 2;

struct Outcome {
  std::vector<std::byte> bytes;
  ClassStatistics statistics;
};
using Outcomes = std::vector<Outcome>;

template <class ThroughMemory>
Outcome program_over(Communicator& inner, const ClassNetwork& network, const ThroughMemory& through_memory) {
  LossyCommunicator lossy(inner, recovery_options(network));
  Outcome outcome;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    lossy.begin_step(step);
    through_memory(lossy, [&](Communicator& group) { run_program<float>(group, step, outcome.bytes); });
  }
  lossy.verify_fates();
  outcome.statistics = lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit).at(0);
  return outcome;
}

Outcomes over_local(int ranks, const ClassNetwork& network) {
  Outcomes outcomes(static_cast<std::size_t>(ranks));
  run_ranks(ranks, std::chrono::seconds(60), [&](Communicator& inner) {
    outcomes[static_cast<std::size_t>(inner.rank())] =
        program_over(inner, network, [](Communicator& lossy, const auto& program) { program(lossy); });
  });
  return outcomes;
}

Outcomes over_nccl(int ranks, const ClassNetwork& network) {
  Outcomes outcomes(static_cast<std::size_t>(ranks));
  const auto ends = run_nccl_ranks({.world_size = ranks}, [&](Communicator& inner, Stream& stream) {
    outcomes[static_cast<std::size_t>(inner.rank())] =
        program_over(inner, network, [&](Communicator& lossy, const auto& program) {
          ThroughDevice device(lossy, stream.device());
          program(device);
          lossy.barrier({sim::TrafficClass::kControl, "end of step"});  // the sends have left this stream
        });
  });
  EXPECT_THAT(ends, ::testing::Each("ok"));
  return outcomes;
}

ClassNetwork network_of(const PathEntry& path, Fill fill) {
  ClassNetwork network = recovery_network(path.name, 0.1, 0.1);
  if (path.has_groups) network.group_ranks = 2;
  apply_fill(network, fill);
  return network;
}

using NcclLosses = NcclTest;

TEST_F(NcclLosses, EveryPathHasTheFatesAndBitsOfLocal) {
  for (const PathEntry& path : paths()) {
    for (const Fill fill : {Fill::kZero, Fill::kCountRescale, Fill::kStale}) {
      SCOPED_TRACE(std::string(path.name) + " " + std::string(fill_entry(fill).name));
      const ClassNetwork network = network_of(path, fill);
      const int ranks = path.has_groups ? 4 : 3;
      const Outcomes local = over_local(ranks, network);
      const Outcomes nccl = over_nccl(ranks, network);
      for (std::size_t r = 0; r < local.size(); ++r) {
        EXPECT_EQ(local[r].statistics.digest, nccl[r].statistics.digest);
        EXPECT_EQ(local[r].statistics.total().lost_packets, nccl[r].statistics.total().lost_packets);
        EXPECT_GT(nccl[r].statistics.total().lost_packets, 0U);
        // The double sums in the order of ranks too; a real NCCL does not, on `contribution`.
        EXPECT_EQ(local[r].bytes, nccl[r].bytes) << "rank " << r;
      }
    }
  }
}

}  // namespace
}  // namespace droptest::comm::nccl_losses_test
