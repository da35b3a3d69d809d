// SPDX-License-Identifier: Apache-2.0
#include "models/ops/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/models/formula_model.h"
#include "tests/models/planned_buffers.h"

namespace droptest::models::memory_plan_test {
namespace {

/// Whether buffers in use at the same time overlap, or a buffer is not aligned or leaves the memory.
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

/// Places each buffer, the largest first, at the lowest address that no buffer in use at one of its times has.
std::vector<std::uint64_t> places_by_comparing_all(const std::vector<PlannedBuffer>& buffers) {
  constexpr std::uint64_t kAlignment = MemoryPlan::kAlignmentBytes;
  const auto aligned = [](std::uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; };
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return buffers[a].bytes > buffers[b].bytes; });
  std::vector<std::uint64_t> places(buffers.size());
  for (std::size_t n = 0; n < order.size(); ++n) {
    const std::size_t i = order[n];
    std::uint64_t& place = places[i];
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t k = 0; k < n; ++k) {
        const std::size_t other = order[k];
        const std::uint64_t end = places[other] + aligned(buffers[other].bytes);
        const bool meets = place < end && places[other] < place + aligned(buffers[i].bytes);
        if (!meets || !in_use_at_once(buffers[i], buffers[other])) continue;
        place = end;
        moved = true;
      }
    }
  }
  return places;
}

TEST(MemoryPlan, FindsTheBuffersOfItsTimeAmongMany) {
  std::vector<PlannedBuffer> buffers;
  for (std::uint64_t i = 0; i < 400; ++i) {
    const auto draw = [i](std::uint64_t stream, double most) {
      return static_cast<int>(most * (mixed(stream, i) + 0.5));
    };
    const int first = draw(1, 300) + 300;
    PlannedBuffer buffer{std::to_string(i), static_cast<std::uint64_t>(draw(3, 5000)), first, first + draw(2, 30)};
    if (i % 3 == 0) buffer.earlier.emplace_back(draw(4, 290), 0);
    for (auto& [begin, end] : buffer.earlier) end = begin + static_cast<int>(i % 10);
    if (i % 50 == 0) buffer.last_time = 650;
    buffers.push_back(std::move(buffer));
  }
  const MemoryPlan plan(buffers);
  const std::vector<std::uint64_t> want = places_by_comparing_all(buffers);
  for (std::size_t i = 0; i < buffers.size(); ++i) EXPECT_EQ(plan.offset(i), want[i]) << i;
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
}  // namespace droptest::models::memory_plan_test
