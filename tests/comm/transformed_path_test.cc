// SPDX-License-Identifier: Apache-2.0
// Hadamard transform and interleaving over the elements of a message: bits without loss, and the spread of the error.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string_view>
#include <vector>

#include "comm/lab/collective_experiment.h"
#include "comm/lossy/lossy_communicator.h"
#include "sim/loss/gilbert_elliott.h"
#include "tests/comm/lossy_recovery.h"

namespace droptest::comm::transformed_path_test {
namespace {

TEST(Hadamard, WithoutLossIsEqualToRoundingAndWithLossSpreadsIt) {
  for (const std::string_view path : {"direct", "contribution"}) {
    ClassNetwork network = recovery_network(path, 0, 0);
    network.recovery.hadamard_block_elems = 1024;
    const Damage rounding = damage_of(network, 4000);
    EXPECT_EQ(rounding.wrong, 0U);
    network.reduce.loss = bernoulli(0.1);
    const Damage spread = damage_of(network, 4000);
    network.recovery.hadamard_block_elems = 0;
    const Damage plain = damage_of(network, 4000);
    EXPECT_LT(plain.wrong, 1200U);
    EXPECT_GT(spread.wrong, 3400U) << "nearly every block has a loss";
    EXPECT_LT(spread.worst, plain.worst);
    EXPECT_GT(spread.energy, 0.5 * plain.energy);
    EXPECT_LT(spread.energy, 2 * plain.energy);
  }
}

TEST(Hadamard, HasTheErrorOfItsFillUnderEveryFill) {
  for (const std::string_view path : {"direct", "contribution"}) {
    for (const Inputs inputs : {Inputs::kIndependent, Inputs::kIdentical}) {
      for (const Fill reduce : {Fill::kZero, Fill::kCountRescale, Fill::kInverseProbability}) {
        for (const Fill gather : {Fill::kZero, Fill::kOwn, Fill::kOwnScaled}) {
          CollectiveExperiment experiment;
          experiment.network = recovery_network(path, 0.15, 0.1);
          experiment.network.reduce.fill = reduce;
          experiment.network.gather.fill = gather;
          experiment.network.recovery.hadamard_block_elems = 128;
          experiment.network.recovery.interleave_packets = 4;
          experiment.ranks = 3;
          experiment.elements = 8192;
          experiment.trials = 24;
          experiment.inputs = inputs;
          const Estimate nmse = run_collective_experiment(experiment).nmse;
          EXPECT_NEAR(nmse.measured, *nmse.expected, 4 * nmse.standard_error + 1e-9)
              << path << " " << fill_entry(reduce).name << " " << fill_entry(gather).name;
        }
      }
    }
  }
}

TEST(Hadamard, FlattensTheErrorOfBurstsAtEqualEnergy) {
  CollectiveExperiment experiment;
  experiment.network = recovery_network("direct", 0, 0);
  experiment.network.reduce.loss = experiment.network.gather.loss =
      std::make_shared<sim::GilbertElliott>(sim::rates_of_burst(0.05, 4));
  experiment.ranks = 4;
  experiment.elements = 65536;
  experiment.trials = 8;
  const CollectiveExperimentResult plain = run_collective_experiment(experiment);
  experiment.network.recovery.hadamard_block_elems = 4096;
  const CollectiveExperimentResult flat = run_collective_experiment(experiment);
  EXPECT_NEAR(flat.nmse.measured, plain.nmse.measured,
              4 * std::hypot(flat.nmse.standard_error, plain.nmse.standard_error));
  // A lost result is an error as large as the largest of 65536 normal values; spread over a block it is a few
  // deviations of normal noise of the NMSE's size.
  EXPECT_GT(plain.peak_error.measured, 3.5);
  EXPECT_LT(flat.peak_error.measured, 6.5 * std::sqrt(flat.nmse.measured));
}

TEST(Hadamard, StaleValuesAreOfTheSameTransform) {
  // The input is always the same, and each message arrived once, so stale values are right for each later loss.
  ClassNetwork network = recovery_network("direct", 0.4, 0.4);
  network.reduce.fill = network.gather.fill = Fill::kStale;
  network.recovery.hadamard_block_elems = 64;
  network.recovery.protect.steps = {0, 1};
  run_lossy(3, network, [](LossyCommunicator& lossy, Communicator& inner) {
    const Floats input = recovery_values(0, inner.rank(), 500);
    const Floats want = all_reduce(inner, input, {sim::TrafficClass::kControl, "exact", -1});
    for (std::uint64_t step = 0; step < 4; ++step) {
      lossy.begin_step(step);
      const Floats got = all_reduce(lossy, input);
      for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5) << step;
    }
  });
}

TEST(Transforms, GatherCollectivesComeBack) {
  for (const std::uint64_t block : {std::uint64_t{0}, std::uint64_t{32}}) {
    for (const Fill fill : {Fill::kZero, Fill::kOwn}) {
      ClassNetwork network = recovery_network("direct", 0, 0);
      network.gather.fill = fill;
      network.recovery.hadamard_block_elems = block;
      network.recovery.interleave_packets = 3;
      const double tolerance = block == 0 ? 0 : 1e-6;
      run_lossy(3, network, [&](LossyCommunicator& lossy, Communicator& inner) {
        const int me = inner.rank();
        const std::vector<std::uint64_t> counts = {100, 0, 57};
        const Floats mine = recovery_values(0, me, counts[static_cast<std::size_t>(me)]);
        Floats all(157, 9.0F);
        lossy.all_gather(ConstTensor(std::span<const float>(mine)), Tensor(std::span(all)), counts,
                         {kRecoveryClass, "g", 0});
        for (std::size_t i = 0; i < 100; ++i) ASSERT_NEAR(all[i], recovery_values(0, 0, 100)[i], tolerance);
        for (std::size_t i = 0; i < 57; ++i) ASSERT_NEAR(all[100 + i], recovery_values(0, 2, 57)[i], tolerance);
        // Part d of rank s is recovery_values(s, d, 40 + d).
        Floats sent;
        const std::vector<std::uint64_t> send_counts = {40, 41, 42};
        for (int d = 0; d < 3; ++d) {
          const Floats part = recovery_values(me, d, 40 + static_cast<std::size_t>(d));
          sent.insert(sent.end(), part.begin(), part.end());
        }
        const std::size_t each = 40 + static_cast<std::size_t>(me);
        Floats got(3 * each);
        const std::vector<std::uint64_t> receive_counts(3, each);
        lossy.all_to_all(ConstTensor(std::span<const float>(sent)), send_counts, Tensor(std::span(got)), receive_counts,
                         {kRecoveryClass, "a", 0});
        for (int s = 0; s < 3; ++s) {
          const Floats want = recovery_values(s, me, each);
          for (std::size_t i = 0; i < each; ++i) {
            ASSERT_NEAR(got[static_cast<std::size_t>(s) * each + i], want[i], tolerance);
          }
        }
        Floats whole = recovery_values(7, me, 90);
        if (me == 1) lossy.send(ConstTensor(std::span<const float>(whole)), 0, {kRecoveryClass, "s", 0});
        if (me == 0) lossy.recv(Tensor(std::span(whole)), 1, {kRecoveryClass, "s", 0});
        for (std::size_t i = 0; i < 90 && me < 2; ++i) ASSERT_NEAR(whole[i], recovery_values(7, 1, 90)[i], tolerance);
        lossy.broadcast(Tensor(std::span(whole)), 2, {kRecoveryClass, "b", 0});
        for (std::size_t i = 0; i < 90; ++i) ASSERT_NEAR(whole[i], recovery_values(7, 2, 90)[i], 2 * tolerance);
        Floats part(counts[static_cast<std::size_t>(me)]);
        const Floats input = recovery_values(3, me, 157);
        lossy.reduce_scatter(ConstTensor(std::span<const float>(input)), Tensor(std::span(part)), counts,
                             ReduceOp::kSum, {kRecoveryClass, "r", 0});
        Floats want(part.size());
        inner.reduce_scatter(ConstTensor(std::span<const float>(input)), Tensor(std::span(want)), counts,
                             ReduceOp::kSum, {sim::TrafficClass::kControl, "exact"});
        for (std::size_t i = 0; i < part.size(); ++i) ASSERT_NEAR(part[i], want[i], 4 * tolerance);
      });
    }
  }
}

TEST(Interleave, KeepsBitsWithoutLossAndScattersHoles) {
  ClassNetwork network = recovery_network("contribution", 0, 0);
  network.recovery.interleave_packets = 8;
  EXPECT_EQ(damage_of(network, 4000).energy, 0);
  network.reduce.loss = bernoulli(0.02);
  run_lossy(2, network, [&](LossyCommunicator& lossy, Communicator& inner) {
    const Floats got = all_reduce(lossy, Floats(4096, 1.0F));
    if (inner.rank() != 0) return;
    // A part of 2048 elements is 16 groups of 8 packets of 16 elements: a lost packet has every 8th element of a group.
    std::size_t holes = 0;
    for (std::size_t i = 0; i < 4096; ++i) {
      if (got[i] == 2) continue;
      ++holes;
      const std::size_t base = i / 128 * 128 + i % 8;
      for (std::size_t j = 0; j < 16; ++j) EXPECT_LT(got[base + 8 * j], 2) << i;
    }
    EXPECT_GT(holes, 0U);
    EXPECT_EQ(holes % 16, 0U);
  });
}

// Messages of 3 packets, less than one for each rank's share: a lost packet has every third element.
void expect_scattered_holes(std::string_view path, std::size_t messages) {
  SCOPED_TRACE(path);
  constexpr std::size_t kElems = 48;
  ClassNetwork network = recovery_network(path, 0.2, 0);
  network.recovery.interleave_packets = 3;
  if (path == "hierarchical") network.group_ranks = 3;
  run_lossy(3, network, [&](LossyCommunicator& lossy, Communicator& inner) {
    std::size_t partly_lost = 0;
    for (int call = 0; call < 50; ++call) {
      const Floats got = all_reduce(lossy, Floats(messages * kElems, 1.0F));
      for (std::size_t begin = 0; begin < got.size(); begin += kElems) {
        std::size_t holes = 0;
        for (std::size_t i = 0; i < kElems; ++i) {
          if (got[begin + i] == 3) continue;
          ++holes;
          for (std::size_t j = i % 3; j < kElems; j += 3) ASSERT_LT(got[begin + j], 3) << i;
        }
        if (holes > 0 && holes < kElems) ++partly_lost;
      }
    }
    if (inner.rank() == 0) {
      EXPECT_GT(partly_lost, 10U);
    }
  });
}

TEST(Interleave, TakesPartsAsThePathCutsThem) {
  expect_scattered_holes("contribution", 1);
  expect_scattered_holes("tree", 2);
  expect_scattered_holes("hierarchical", 1);
}

TEST(Interleave, KeepsTheBitsOfBfloat16) {
  for (const std::string_view path : {"direct", "contribution", "ring"}) {
    SCOPED_TRACE(path);
    ClassNetwork network = recovery_network(path, 0, 0);
    const auto bits_of = [&network] {
      std::vector<std::uint16_t> bits;
      run_lossy(3, network, [&](LossyCommunicator& lossy, Communicator& inner) {
        std::vector<Bf16> data;
        for (const float value : recovery_values(0, inner.rank(), 500)) data.push_back(to_bf16(value));
        lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, {kRecoveryClass, "m", 1});
        if (inner.rank() != 0) return;
        for (const Bf16 value : data) bits.push_back(std::bit_cast<std::uint16_t>(value));
      });
      return bits;
    };
    const std::vector<std::uint16_t> plain = bits_of();
    EXPECT_EQ(plain.size(), 500U);
    network.recovery.interleave_packets = 4;
    EXPECT_EQ(bits_of(), plain);
  }
}

}  // namespace
}  // namespace droptest::comm::transformed_path_test
