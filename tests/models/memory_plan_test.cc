// SPDX-License-Identifier: Apache-2.0
#include "models/ops/memory_plan.h"

#include <gtest/gtest.h>

#include "tests/models/formula_model.h"

namespace droptest::models {
namespace {

/// Whether buffers of one time share bytes, one lies askew, or one leaves the memory.
std::string fault_of(const MemoryPlan& plan) {
  const auto& buffers = plan.buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (plan.offset(i) % MemoryPlan::kAlignmentBytes != 0) return buffers[i].name + " is not aligned";
    if (plan.offset(i) + buffers[i].bytes > plan.bytes()) return buffers[i].name + " leaves the memory";
    for (std::size_t k = 0; k < i; ++k) {
      const bool at_once =
          buffers[i].first_time <= buffers[k].last_time && buffers[k].first_time <= buffers[i].last_time;
      const bool apart =
          plan.offset(i) + buffers[i].bytes <= plan.offset(k) || plan.offset(k) + buffers[k].bytes <= plan.offset(i);
      if (at_once && !apart) return buffers[i].name + " lies on " + buffers[k].name;
    }
  }
  return "";
}

TEST(MemoryPlan, BuffersOfOneTimeLieApart) {
  std::vector<PlannedBuffer> buffers;
  for (std::uint64_t i = 0; i < 200; ++i) {
    const int first = static_cast<int>(20 * (mixed(1, i) + 0.5));
    const int length = static_cast<int>(6 * (mixed(2, i) + 0.5));
    const auto bytes = static_cast<std::uint64_t>(5000 * (mixed(3, i) + 0.5));
    buffers.push_back({std::to_string(i), bytes, first, first + length});
  }
  const MemoryPlan plan(buffers);
  EXPECT_EQ(fault_of(plan), "");
  std::uint64_t all = 0;
  for (const PlannedBuffer& buffer : buffers) all += buffer.bytes;
  EXPECT_LT(plan.bytes(), all / 2);  // they live for a quarter of the time at most
}

TEST(MemoryPlan, BuffersThatNeverMeetShareMemory) {
  const MemoryPlan plan({{"a", 1000, 0, 1}, {"b", 300, 2, 3}, {"c", 700, 1, 2}});
  EXPECT_EQ(plan.offset(0), 0U);
  EXPECT_EQ(plan.offset(2), 1024U);
  EXPECT_EQ(plan.offset(1), 0U);
  EXPECT_EQ(plan.bytes(), 1024U + 768U);
  EXPECT_EQ(fault_of(plan), "");
}

TEST(MemoryPlan, ATimeIsSharedAtBothEnds) {
  const MemoryPlan plan({{"a", 256, 0, 1}, {"b", 256, 1, 1}});
  EXPECT_EQ(plan.bytes(), 512U);
}

TEST(MemoryPlan, NothingNeedsNothing) {
  EXPECT_EQ(MemoryPlan({}).bytes(), 0U);
  EXPECT_EQ(MemoryPlan({{"empty", 0, 0, 0}}).bytes(), 0U);
}

TEST(MemoryPlan, SaysWhatIsLargest) {
  constexpr std::uint64_t kMebi = 1U << 20U;
  const std::vector<PlannedBuffer> buffers = {
      {"qkv", 600 * kMebi, 0, 9}, {"logits", 700 * kMebi, 0, 0}, {"qkv", 600 * kMebi, 0, 9}};
  EXPECT_EQ(largest_text(buffers, 2), "1.2 GiB qkv, 700.0 MiB logits");
}

}  // namespace
}  // namespace droptest::models
