// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator.h"

#include <gtest/gtest.h>

#include <chrono>
#include <span>
#include <vector>

#include "comm/call.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "tests/comm/error_text.h"

namespace droptest::comm::communicator_test {
namespace {

using Counts = std::vector<std::uint64_t>;

TEST(EvenCounts, TheFirstPartsTakeTheRemainder) {
  EXPECT_EQ(even_counts(10, 4), (Counts{3, 3, 2, 2}));
  EXPECT_EQ(even_counts(8, 4), (Counts{2, 2, 2, 2}));
  EXPECT_EQ(even_counts(2, 3), (Counts{1, 1, 0}));
  EXPECT_EQ(even_counts(0, 2), (Counts{0, 0}));
  EXPECT_EQ(even_counts(7, 1), (Counts{7}));
  EXPECT_THROW(even_counts(1, 0), CheckError);
}

TEST(Tensor, KnowsItsTypeAndCount) {
  std::vector<double> data(3, 1.5);
  const Tensor tensor = std::span(data);
  EXPECT_EQ(tensor.type, ElementType::kFloat64);
  EXPECT_EQ(tensor.count_elems(), 3U);
  tensor.as<double>()[1] = 2.5;
  const ConstTensor read = tensor;
  EXPECT_EQ(read.as<double>()[1], 2.5);
  EXPECT_EQ(element_bytes(ElementType::kFloat32), 4U);
  EXPECT_EQ(element_bytes(ElementType::kUint64), 8U);
}

class NoReduction final : public PartReduction {
 public:
  void reduce(std::span<const std::byte* const> /*inputs*/, std::span<std::byte* const> /*outputs*/,
              std::span<const PartReduction* const> /*reductions*/) override {}
};

// Arguments with values that no call of Communicator sets.
TEST(CallArguments, AreThoseOfTheirOperation) {
  run_ranks(1, std::chrono::seconds(60), [](Communicator& local) {
    LossyCommunicator lossy(local, {});
    std::vector<float> data(8);
    const Tensor first{std::span(data).first(4)};
    const Tensor second{std::span(data).last(4)};
    NoReduction reduction;
    for (Communicator* const group : {&local, static_cast<Communicator*>(&lossy)}) {
      const auto run = [group](const CallArguments& arguments) { group->run(arguments); };
      EXPECT_THROW(run({.operation = Operation::kAllReduceWith, .input = first, .output = second}), CheckError);
      EXPECT_THROW(run({.operation = Operation::kAllReduce, .input = first, .output = second, .reduction = &reduction}),
                   CheckError);
      EXPECT_THROW(run({.operation = Operation::kBroadcast, .input = first, .output = second, .peer = 0}), CheckError);
      EXPECT_THROW(run({.operation = Operation::kSplit}), CheckError);
      const Tensor three{std::span(data).last(3)};
      const std::string error =
          config_error_of([&] { group->all_reduce_with(first, three, reduction, {.name = "tensor"}); });
      EXPECT_EQ(error.find("all_reduce_with: rank 0: output has 12 bytes, want 16"), 0U) << error;
    }
    const Send send{first, 0};
    EXPECT_THROW(KeptArguments({.operation = Operation::kExchange, .sends = {&send, 1}}), CheckError);
  });
}

}  // namespace
}  // namespace droptest::comm::communicator_test
