// SPDX-License-Identifier: Apache-2.0
// The memory that the plan gives a call is what the loss layer takes for it.
#include "comm/lossy/paths/call_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/lossy/paths/path_registry.h"
#include "tests/comm/lossy_recovery.h"

namespace droptest::comm::call_memory_test {
namespace {

constexpr int kRanks = 4;
constexpr std::uint64_t kElems = 211;

struct Memory {
  std::uint64_t messages = 0;
  std::uint64_t remembered = 0;
};

/// The bytes of the rank that takes most of them, after two calls; none: the network refuses the call.
std::optional<Memory> measured(const ClassNetwork& network, Operation operation) {
  std::vector<Memory> by_rank(kRanks);
  try {
    run_lossy(kRanks, network, [&](LossyCommunicator& group, Communicator&) {
      for (int call = 0; call < 2; ++call) {
        const Message message{kRecoveryClass, "m", 1};
        const std::vector<std::uint64_t> counts = even_counts(kElems, kRanks);
        const std::uint64_t own = counts[static_cast<std::size_t>(group.rank())];
        Floats whole = recovery_values(call, group.rank(), kElems);
        if (operation == Operation::kAllReduce) {
          group.all_reduce(std::span(whole), ReduceOp::kMean, message);
        } else if (operation == Operation::kReduceScatter) {
          Floats part(own);
          group.reduce_scatter(std::span<const float>(whole), std::span(part), counts, ReduceOp::kMean, message);
        } else {
          const Floats part = recovery_values(call, group.rank(), own);
          group.all_gather(std::span<const float>(part), std::span(whole), counts, message);
        }
      }
      const LossLayerBuffers buffers = group.buffers();
      by_rank[static_cast<std::size_t>(group.rank())] = {buffers.messages.bytes, buffers.remembered};
    });
  } catch (const ConfigError&) {
    return std::nullopt;
  }
  Memory most;
  for (const Memory& of_rank : by_rank) {
    most.messages = std::max(most.messages, of_rank.messages);
    most.remembered = std::max(most.remembered, of_rank.remembered);
  }
  return most;
}

TEST(CallMemory, OfEveryPathIsWhatItsCallsTake) {
  using Feedback = ClassRecovery::ErrorFeedback;
  struct Fills {
    Fill reduce, gather;
  };
  int compared = 0;
  for (const PathEntry& path : paths()) {
    for (const Fills& fills : {Fills{Fill::kZero, Fill::kZero}, Fills{Fill::kStale, Fill::kStale},
                               Fills{Fill::kCountRescale, Fill::kOwn}, Fills{Fill::kOwn, Fill::kZero}}) {
      for (const Feedback feedback : {Feedback::kOff, Feedback::kOn, Feedback::kEf21}) {
        for (const CompressionKind kind : {CompressionKind::kNone, CompressionKind::kInt8, CompressionKind::kTopK}) {
          for (const Operation operation : {Operation::kAllReduce, Operation::kReduceScatter, Operation::kAllGather}) {
            ClassNetwork network = recovery_network(path.name, 0.2, 0.2);
            network.group_ranks = path.has_groups ? 2 : 0;
            network.reduce.fill = fills.reduce;
            network.gather.fill = fills.gather;
            network.recovery.error_feedback = feedback;
            network.compression = {kind, 16, 0.1};
            const std::optional<Memory> got = measured(network, operation);
            if (!got) continue;
            const std::vector<std::uint64_t> counts = even_counts(kElems, kRanks);
            CallShape shape{operation, ElementType::kFloat32, kElems};
            if (operation != Operation::kAllReduce) shape.counts = counts;
            const CallMemory want = memory_of({network, shape, kRanks}, false);
            const std::string what =
                std::string(path.name) + ", operation " + std::to_string(static_cast<int>(operation)) + ", fills " +
                std::string(fill_entry(fills.reduce).name) + " and " + std::string(fill_entry(fills.gather).name) +
                ", feedback " + std::to_string(static_cast<int>(feedback)) + ", " +
                std::string(compression_entry(kind).name);
            EXPECT_EQ(got->remembered, sizeof(float) * want.remembered) << what;
            EXPECT_EQ(got->messages,
                      sizeof(float) * std::accumulate(want.scratch.begin(), want.scratch.end(), std::uint64_t{0}))
                << what;
            ++compared;
          }
        }
      }
    }
  }
  EXPECT_GE(compared, 79);
}

}  // namespace
}  // namespace droptest::comm::call_memory_test
