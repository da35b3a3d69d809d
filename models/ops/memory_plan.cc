// SPDX-License-Identifier: Apache-2.0
#include "models/ops/memory_plan.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <numeric>
#include <utility>

namespace droptest::models {
namespace {

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + MemoryPlan::kAlignmentBytes - 1) / MemoryPlan::kAlignmentBytes * MemoryPlan::kAlignmentBytes;
}

using Times = std::pair<int, int>;

bool meet(const Times& a, const Times& b) { return a.first <= b.second && b.first <= a.second; }

/// Whether the times are among the buffer's.
bool uses(const PlannedBuffer& buffer, const Times& times) {
  return meet({buffer.first_time, buffer.last_time}, times) ||
         std::any_of(buffer.earlier.begin(), buffer.earlier.end(), [&](const Times& e) { return meet(e, times); });
}

/// Finds placed buffers by the times of their use. Times are cut into spans, and a buffer is listed in each span that
/// it is in use in: most buffers are in use for a few operations, so few are compared with one another.
class PlacedByTime {
 public:
  PlacedByTime(int first, int last) : first_(first), spans_(static_cast<std::size_t>((last - first) / kSpan + 1)) {}

  void add(std::size_t number, const PlannedBuffer& buffer) {
    for_spans(buffer, [&](std::vector<std::size_t>& span) { span.push_back(number); });
  }
  /// Those listed in a span of the buffer's uses, each once.
  std::vector<std::size_t> near(const PlannedBuffer& buffer) {
    std::vector<std::size_t> found;
    for_spans(buffer,
              [&](const std::vector<std::size_t>& span) { found.insert(found.end(), span.begin(), span.end()); });
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  }

 private:
  static constexpr int kSpan = 8;
  template <class Visit>
  void for_spans(const PlannedBuffer& buffer, const Visit& visit) {
    int next = 0;  // a span is visited once
    const auto visit_times = [&](const Times& times) {
      const int end = (times.second - first_) / kSpan;
      for (int span = std::max(next, (times.first - first_) / kSpan); span <= end; ++span) {
        visit(spans_[static_cast<std::size_t>(span)]);
      }
      next = std::max(next, end + 1);
    };
    for (const Times& times : buffer.earlier) visit_times(times);
    visit_times({buffer.first_time, buffer.last_time});
  }

  int first_;
  std::vector<std::vector<std::size_t>> spans_;
};

/// The first and the last time of all uses.
Times times_of(const std::vector<PlannedBuffer>& buffers) {
  Times all{buffers.front().first_time, buffers.front().last_time};
  for (const PlannedBuffer& buffer : buffers) {
    all.first = std::min(all.first, buffer.earlier.empty() ? buffer.first_time : buffer.earlier.front().first);
    all.second = std::max(all.second, buffer.last_time);
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

bool in_use_at_once(const PlannedBuffer& a, const PlannedBuffer& b) {
  return uses(b, {a.first_time, a.last_time}) ||
         std::any_of(a.earlier.begin(), a.earlier.end(), [&](const Times& e) { return uses(b, e); });
}

MemoryPlan::MemoryPlan(std::vector<PlannedBuffer> buffers) : buffers_(std::move(buffers)), offsets_(buffers_.size()) {
  std::vector<std::size_t> order(buffers_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return buffers_[a].bytes > buffers_[b].bytes; });
  if (buffers_.empty()) return;
  const Times all = times_of(buffers_);
  if (all.first == all.second) {  // nothing shares a place
    for (const std::size_t i : order) {
      offsets_[i] = bytes_;
      bytes_ += aligned(buffers_[i].bytes);
    }
    return;
  }
  using Range = std::pair<std::uint64_t, std::uint64_t>;  // begin, end
  PlacedByTime placed(all.first, all.second);
  std::vector<Range> taken;
  for (const std::size_t i : order) {
    taken.clear();
    for (const std::size_t other : placed.near(buffers_[i])) {
      if (in_use_at_once(buffers_[i], buffers_[other])) {
        taken.emplace_back(offsets_[other], offsets_[other] + aligned(buffers_[other].bytes));
      }
    }
    std::sort(taken.begin(), taken.end());
    const std::uint64_t wanted = aligned(buffers_[i].bytes);
    std::uint64_t offset = 0;
    for (const Range& range : taken) {
      if (offset + wanted <= range.first) break;
      offset = std::max(offset, range.second);
    }
    offsets_[i] = offset;
    bytes_ = std::max(bytes_, offset + wanted);
    placed.add(i, buffers_[i]);
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
