// SPDX-License-Identifier: Apache-2.0
// Messages of a protected scope certainly arrive, and take their usual path.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "comm/run_ranks.h"
#include "tests/comm/lossy_recovery.h"
#include "tests/comm/timed_network.h"

namespace droptest::comm::protected_scope_test {
namespace {

using Scope = LossyCommunicator::ProtectedScope;

constexpr int kRanks = 4;
constexpr std::uint64_t kPartElems = 40;
const Message kParameters{kRecoveryClass, "wte", -1};

// Each rank gathers a part of its own.
Floats gathered(Communicator& group, int call) {
  const Floats part = recovery_values(call, group.rank(), kPartElems);
  const auto ranks = static_cast<std::size_t>(group.world_size());
  Floats all(ranks * kPartElems, -1);
  group.all_gather(ConstTensor(std::span(part)), Tensor(std::span(all)), std::vector<std::uint64_t>(ranks, kPartElems),
                   kParameters);
  return all;
}

// The parts of call `call`, except this rank's own part, which is that of call `own_call`.
Floats expected(int call, int own_call, int ranks, int own) {
  Floats all;
  for (int r = 0; r < ranks; ++r) {
    const Floats part = recovery_values(r == own ? own_call : call, r, kPartElems);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

ClassNetwork stale_network(std::string_view path, double p) {
  ClassNetwork network = recovery_network(path, p, p);
  network.reduce.fill = network.gather.fill = Fill::kStale;
  return network;
}

TEST(ProtectedScope, GivesMemoriesTheirFirstValues) {
  for (const std::string_view path : {"direct", "ring", "contribution"}) {
    for (const std::uint64_t interleave : {1, 3}) {
      ClassNetwork network = stale_network(path, 1);
      network.recovery.interleave_packets = interleave;
      run_lossy(kRanks, network, [&](LossyCommunicator& lossy, Communicator&) {
        {
          const Scope scope(lossy);
          EXPECT_EQ(gathered(lossy, 1), expected(1, 1, kRanks, -1)) << path;
        }
        // Along `contribution` a sender, too, misses its own lost packets.
        const int own = path == "contribution" ? -1 : lossy.rank();
        EXPECT_EQ(gathered(lossy, 2), expected(1, 2, kRanks, own)) << path << " interleave " << interleave;
      });
    }
  }
}

TEST(ProtectedScope, GivesMemoriesTheirFirstValuesInTheTransformedDomain) {
  ClassNetwork network = stale_network("direct", 1);
  network.recovery.hadamard_block_elems = 16;
  run_lossy(2, network, [&](LossyCommunicator& lossy, Communicator&) {
    {
      const Scope scope(lossy);
      gathered(lossy, 1);
    }
    const Floats got = gathered(lossy, 2);
    const Floats want = expected(1, 2, 2, lossy.rank());
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6) << i;  // two transforms' rounding
  });
}

TEST(ProtectedScope, ReachesGroupsSplitFromItsCommunicatorAndNestedScopes) {
  run_lossy(kRanks, stale_network("direct", 1), [&](LossyCommunicator& lossy, Communicator&) {
    const auto pair = lossy.split(lossy.rank() / 2, 0);
    {
      const Scope scope(lossy);
      { const Scope nested(lossy); }
      EXPECT_EQ(gathered(*pair, 1), expected(1, 1, 2, -1));
    }
    EXPECT_EQ(gathered(*pair, 2), expected(1, 2, 2, pair->rank()));
    const Floats lost = gathered(lossy, 3);
    EXPECT_EQ(lost[static_cast<std::size_t>((lossy.rank() + 1) % kRanks) * kPartElems], 0) << "over";
  });
}

// Protection of a step by the spec, and by a scope.
TEST(ProtectedScope, IsWhatRecoveryProtectIs) {
  struct Outcome {
    ClassStatistics statistics;
    std::vector<Floats> data;
  };
  const auto run = [](bool scoped, Fill fill) {
    ClassNetwork network = recovery_network("direct", 0.3, 0.3);
    network.reduce.fill = fill;
    if (!scoped) network.recovery.protect.steps = Protection::Steps{1, 2};
    Outcome outcome;
    outcome.data.resize(kRanks);
    outcome.statistics = run_lossy(kRanks, network, [&](LossyCommunicator& lossy, Communicator&) {
      Floats& seen = outcome.data[static_cast<std::size_t>(lossy.rank())];
      const auto step = [&](std::uint64_t number) {
        lossy.begin_step(number);
        const Floats sum = all_reduce(lossy, recovery_values(static_cast<int>(number), lossy.rank(), 500));
        const Floats all = gathered(lossy, static_cast<int>(number));
        seen.insert(seen.end(), sum.begin(), sum.end());
        seen.insert(seen.end(), all.begin(), all.end());
      };
      step(0);
      if (scoped) {
        const Scope scope(lossy);
        step(1);
      } else {
        step(1);
      }
      step(2);
    });
    return outcome;
  };
  for (const Fill fill : {Fill::kZero, Fill::kStale, Fill::kInverseProbability}) {
    const Outcome scope = run(true, fill);
    const Outcome spec = run(false, fill);
    EXPECT_EQ(scope.data, spec.data) << fill_entry(fill).name;
    EXPECT_EQ(scope.statistics.digest, spec.statistics.digest);
    EXPECT_EQ(scope.statistics.untouched, spec.statistics.untouched);
    const LossCounts of_scope = scope.statistics.total();
    const LossCounts of_spec = spec.statistics.total();
    EXPECT_EQ(of_scope.packets, of_spec.packets);
    EXPECT_EQ(of_scope.bytes, of_spec.bytes);
    EXPECT_EQ(of_scope.lost_packets, of_spec.lost_packets);
    EXPECT_EQ(of_scope.expected_lost, of_spec.expected_lost);
    EXPECT_EQ(of_scope.bursts, of_spec.bursts);
  }
}

// Works with fates that depend on their times run only when the rank waits.
TEST(ProtectedScope, HoldsForWhatIsStartedInIt) {
  LossyOptions options = options_of("direct", 0.3, model_of());
  apply_recovery(*options.network.of(kClass), protocol("selective_repeat"));
  const auto run = [&options](const std::function<void(LossyCommunicator&, Tensor)>& program) {
    VirtualTime time;
    run_ranks(2, kRecoveryTimeout, [&](Communicator& inner) {
      LossyCommunicator lossy(inner, options);
      Floats data(kElements, 1);
      program(lossy, Tensor(std::span(data)));
      lossy.verify_fates();
      const auto collected = lossy.collect_time();
      if (inner.rank() == 0) time = *collected;
    });
    return time;
  };
  const Message before{kClass, "before", 0};
  const Message within{kClass, "within", 0};
  const auto start = [](LossyCommunicator& lossy, Tensor data, const Message& message) {
    return lossy.start_all_reduce(data, data, ReduceOp::kSum, message);
  };
  const VirtualTime protected_work = run([&](LossyCommunicator& lossy, Tensor data) {
    Work work;
    {
      const Scope scope(lossy);
      work = start(lossy, data, within);
    }
    work.wait();
  });
  EXPECT_EQ(protected_work.repeated, 0U);
  const VirtualTime both = run([&](LossyCommunicator& lossy, Tensor data) {
    Work work = start(lossy, data, before);
    const Scope scope(lossy);
    work.wait();
  });
  const VirtualTime without = run([&](LossyCommunicator& lossy, Tensor data) { start(lossy, data, before).wait(); });
  EXPECT_GT(without.repeated, 0U);
  EXPECT_EQ(both.repeated, without.repeated) << "what was started before it is none of its messages";
}

}  // namespace
}  // namespace droptest::comm::protected_scope_test
