// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator.h"

#include <gtest/gtest.h>

#include <vector>

#include "sim/error.h"

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

}  // namespace
}  // namespace droptest::comm::communicator_test
