// SPDX-License-Identifier: Apache-2.0
#include "models/ops/memory_plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <map>
#include <numeric>
#include <utility>

namespace droptest::models {
namespace {

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + MemoryPlan::kAlignmentBytes - 1) / MemoryPlan::kAlignmentBytes * MemoryPlan::kAlignmentBytes;
}

using Times = std::pair<int, int>;                      // first and last
using Range = std::pair<std::uint64_t, std::uint64_t>;  // begin and end of a range of addresses

/// Adds a range to ordered ranges without overlap; ranges that touch are merged.
void unite(std::vector<Range>& ranges, Range added) {
  const auto first = std::lower_bound(ranges.begin(), ranges.end(), added.first,
                                      [](const Range& range, std::uint64_t begin) { return range.second < begin; });
  auto last = first;
  for (; last != ranges.end() && last->first <= added.second; ++last) {
    added = {std::min(added.first, last->first), std::max(added.second, last->second)};
  }
  if (first == last) {
    ranges.insert(first, added);
    return;
  }
  *first = added;
  ranges.erase(std::next(first), last);
}

/// The addresses in use at each time, in a segment tree (de Berg et al., Computational Geometry, 10.3). Buffers at the
/// lowest free address leave few gaps, so a node has few ranges, however many buffers are in use at once.
class TakenByTime {
 public:
  explicit TakenByTime(const Times& all)
      : first_(all.first),
        count_(std::bit_ceil(static_cast<std::size_t>(all.second - all.first) + 1)),
        nodes_(2 * count_) {}

  /// Calls visit(ranges) for lists that together have all addresses in use at any of the times.
  template <class Visit>
  void visit_taken(const Times& times, const Visit& visit) {
    for_nodes(
        times, [&](const Node& node) { visit(node.at_some_time); },
        [&](const Node& node) { visit(node.at_all_times); });
  }
  void take(const Times& times, const Range& range) {
    for_nodes(
        times,
        [&](Node& node) {
          unite(node.at_all_times, range);
          unite(node.at_some_time, range);
        },
        [&](Node& node) { unite(node.at_some_time, range); });
  }

 private:
  struct Node {
    std::vector<Range> at_all_times;  ///< addresses of uses that cover this node but not its parent
    std::vector<Range> at_some_time;  ///< addresses of uses at any time of the node
  };

  /// Calls whole(node) for the largest nodes within the times, and part(node) for each of their ancestors.
  template <class Whole, class Part>
  void for_nodes(const Times& times, const Whole& whole, const Part& part) {
    for_nodes(times, whole, part, 1, first_, count_);
  }
  template <class Whole, class Part>
  void for_nodes(const Times& times, const Whole& whole, const Part& part, std::size_t number, std::int64_t first,
                 std::size_t count) {
    const std::int64_t last = first + static_cast<std::int64_t>(count) - 1;
    if (times.second < first || last < times.first) return;
    if (times.first <= first && last <= times.second) return whole(nodes_[number]);
    part(nodes_[number]);
    const std::size_t half = count / 2;
    for_nodes(times, whole, part, 2 * number, first, half);
    for_nodes(times, whole, part, 2 * number + 1, first + static_cast<std::int64_t>(half), half);
  }

  std::int64_t first_;
  std::size_t count_;        // number of times, a power of two
  std::vector<Node> nodes_;  // node 1 has all times; node n has the halves 2n and 2n + 1
};

template <class Visit>
void for_uses(const PlannedBuffer& buffer, const Visit& visit) {
  for (const Times& times : buffer.earlier) visit(times);
  visit({buffer.first_time, buffer.last_time});
}

/// The first and the last time of all uses.
Times times_of(const std::vector<PlannedBuffer>& buffers) {
  Times all{buffers.front().first_time, buffers.front().last_time};
  for (const PlannedBuffer& buffer : buffers) {
    for_uses(buffer, [&](const Times& times) {
      all = {std::min(all.first, times.first), std::max(all.second, times.second)};
    });
  }
  return all;
}

std::string size_text(std::uint64_t bytes) {
  constexpr double kMebi = 1024.0 * 1024.0;
  std::array<char, 32> text{};
  const double mebibytes = static_cast<double>(bytes) / kMebi;
  if (mebibytes >= 1024) {
    std::snprintf(text.data(), text.size(), "%.1f GiB", mebibytes / 1024);
  } else {
    std::snprintf(text.data(), text.size(), "%.1f MiB", mebibytes);
  }
  return text.data();
}

}  // namespace

MemoryPlan::MemoryPlan(std::vector<PlannedBuffer> buffers) : buffers_(std::move(buffers)), offsets_(buffers_.size()) {
  std::vector<std::size_t> order(buffers_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return buffers_[a].bytes > buffers_[b].bytes; });
  if (buffers_.empty()) return;
  const Times all = times_of(buffers_);
  if (all.first == all.second) {  // no buffer can share its place
    for (const std::size_t i : order) {
      offsets_[i] = bytes_;
      bytes_ += aligned(buffers_[i].bytes);
    }
    return;
  }
  TakenByTime taken_by_time(all);
  std::vector<Range> taken;
  for (const std::size_t i : order) {
    const PlannedBuffer& buffer = buffers_[i];
    taken.clear();
    for_uses(buffer, [&](const Times& times) {
      taken_by_time.visit_taken(
          times, [&](const std::vector<Range>& ranges) { taken.insert(taken.end(), ranges.begin(), ranges.end()); });
    });
    std::sort(taken.begin(), taken.end());
    const std::uint64_t wanted = aligned(buffer.bytes);
    std::uint64_t offset = 0;
    for (const Range& range : taken) {
      if (offset + wanted <= range.first) break;
      offset = std::max(offset, range.second);
    }
    offsets_[i] = offset;
    bytes_ = std::max(bytes_, offset + wanted);
    if (wanted == 0) continue;
    for_uses(buffer, [&](const Times& times) { taken_by_time.take(times, {offset, offset + wanted}); });
  }
}

std::string largest_text(std::span<const PlannedBuffer> buffers, std::size_t count) {
  std::map<std::string, std::uint64_t> by_name;
  for (const PlannedBuffer& buffer : buffers) by_name[buffer.name] += buffer.bytes;
  std::vector<std::pair<std::uint64_t, std::string>> sizes;
  for (const auto& [name, bytes] : by_name) sizes.emplace_back(bytes, name);
  std::stable_sort(sizes.begin(), sizes.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (std::size_t i = 0; i < std::min(count, sizes.size()); ++i) {
    text += (i == 0 ? "" : ", ") + size_text(sizes[i].first) + " " + sizes[i].second;
  }
  return text;
}

}  // namespace droptest::models
