// SPDX-License-Identifier: Apache-2.0
// The fill `own` in both halves of a mean: a rank that receives nothing has its own input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "comm/lossy/fill/fills.h"
#include "comm/run_ranks.h"
#include "comm/visit_elements.h"
#include "tests/comm/error_text.h"
#include "tests/comm/lossy_recovery.h"

namespace droptest::comm::own_fill_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Fills, ErrorsListThoseThatAllClassesCanHave) {
  EXPECT_EQ(fill_names(sim::Half::kReduce), "zero, count_rescale, inverse_probability or stale");
  EXPECT_EQ(fill_names(sim::Half::kGather), "zero, stale, own or own_scaled");
}

ClassNetwork own_network(double p) {
  ClassNetwork network = recovery_network("direct", p, p);
  network.reduce.fill = network.gather.fill = Fill::kOwn;
  return network;
}

// Numbers for which the rounded mean of several equal ones may differ from the number.
template <class T>
std::vector<T> values_of(int rank, std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = narrowed<T>(static_cast<WideOf<T>>(std::sin(static_cast<double>(i * 7 + 1) + rank)));
  }
  return values;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class T>
void expect_own_inputs(int ranks, Consistency consistency) {
  ClassNetwork network = own_network(1);
  network.consistency = consistency;
  run_lossy(ranks, network, [&](LossyCommunicator& lossy, Communicator&) {
    const std::string what = std::to_string(ranks) + " ranks, " + std::to_string(sizeof(T)) + " bytes";
    const std::vector<T> input = values_of<T>(lossy.rank(), 1003);
    std::vector<T> in_place = input;
    lossy.all_reduce(Tensor(std::span(in_place)), ReduceOp::kMean, {kRecoveryClass, "m", 0});
    EXPECT_TRUE(same_bits(in_place, input)) << what;
    std::vector<T> output(input.size());
    Work work = lossy.start_all_reduce(ConstTensor(std::span(input)), Tensor(std::span(output)), ReduceOp::kMean,
                                       {kRecoveryClass, "m", 1});
    work.wait();
    EXPECT_TRUE(same_bits(output, input)) << what << ", started";
    const std::vector<std::uint64_t> counts = even_counts(input.size(), ranks);
    const auto mine = counts.begin() + lossy.rank();
    const auto begin = input.begin() + static_cast<std::ptrdiff_t>(std::accumulate(counts.begin(), mine, 0));
    std::vector<T> part(*mine);
    lossy.reduce_scatter(ConstTensor(std::span(input)), Tensor(std::span(part)), counts, ReduceOp::kMean,
                         {kRecoveryClass, "m", 2});
    EXPECT_TRUE(same_bits(part, {begin, begin + static_cast<std::ptrdiff_t>(*mine)})) << what << ", parts";
  });
}

TEST(OwnFill, ARankThatHearsNothingKeepsItsInputToTheBit) {
  for (const int ranks : {2, 3, 4, 5, 7, 8}) {
    for (const Consistency consistency : {Consistency::kPerReceiver, Consistency::kShared}) {
      expect_own_inputs<float>(ranks, consistency);
      expect_own_inputs<double>(ranks, consistency);
      expect_own_inputs<Bf16>(ranks, consistency);
      expect_own_inputs<Fp16>(ranks, consistency);
    }
  }
}

TEST(OwnFill, KeepsItsInputUnderInterleavingAndAfterLossesOfOneHalf) {
  ClassNetwork network = own_network(1);
  network.recovery.interleave_packets = 3;
  run_lossy(3, network, [](LossyCommunicator& lossy, Communicator&) {
    const Floats input = recovery_values(1, lossy.rank(), 500);
    Floats data = input;
    lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kMean, {kRecoveryClass, "m", 0});
    EXPECT_EQ(data, input);
  });
  network = own_network(1);
  network.gather.loss = nullptr;
  run_lossy(2, network, [](LossyCommunicator& lossy, Communicator&) {
    Floats data = recovery_values(1, lossy.rank(), 100);
    lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kMean, {kRecoveryClass, "m", 0});
    for (std::size_t i = 0; i < data.size(); ++i) {
      EXPECT_EQ(data[i], recovery_values(1, i < 50 ? 0 : 1, 100)[i]) << "each part is its owner's";
    }
  });
}

TEST(OwnFill, AContributionStandsForNothingInASum) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
    run_lossy(2, own_network(0.5), [op](LossyCommunicator& lossy, Communicator&) {
      Floats data(100, 1.0F);
      const auto reduce = [&] { lossy.all_reduce(Tensor(std::span(data)), op, {kRecoveryClass, "m", 0}); };
      EXPECT_THAT(config_error_of(reduce),
                  AllOf(HasSubstr("\"m\" of class tp_forward: fill own of the reduce half"),
                        HasSubstr(op == ReduceOp::kSum ? "is a sum" : "is a maximum"), HasSubstr("want a mean")));
    });
  }
}

}  // namespace
}  // namespace droptest::comm::own_fill_test
