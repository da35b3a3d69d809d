// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/fill/contribution_counts.h"

#include <algorithm>

#include "sim/error.h"

namespace droptest::comm {

void ContributionCounts::start(std::uint64_t count_elems) {
  runs_.clear();
  if (count_elems > 0) runs_.push_back({count_elems, 1});
}

std::vector<CountRun> ContributionCounts::of(sim::ElementRange elements) const {
  std::vector<CountRun> result;
  const auto ends_by = [](const Run& run, std::uint64_t element) { return run.end <= element; };
  auto run = std::lower_bound(runs_.begin(), runs_.end(), elements.begin, ends_by);
  for (std::uint64_t begin = elements.begin; begin < elements.end; ++run) {
    DROPTEST_CHECK(run != runs_.end(), "counts of elements past the end");
    const std::uint64_t end = std::min(run->end, elements.end);
    result.push_back({end - begin, run->contributions});
    begin = end;
  }
  return result;
}

void ContributionCounts::add(sim::ElementRange elements, std::span<const CountRun> runs) {
  merged_.clear();
  const auto put = [this](std::uint64_t end, std::uint64_t contributions) {
    if (!merged_.empty() && merged_.back().contributions == contributions) {
      merged_.back().end = end;
    } else {
      merged_.push_back({end, contributions});
    }
  };
  std::uint64_t begin = 0;
  std::size_t next = 0;
  std::uint64_t next_end = elements.begin + (runs.empty() ? 0 : runs[0].elems);
  for (const Run& run : runs_) {
    while (begin < run.end) {
      if (begin < elements.begin) {
        begin = std::min(run.end, elements.begin);
        put(begin, run.contributions);
      } else if (begin < elements.end) {
        while (next_end == begin) {
          DROPTEST_CHECK(++next < runs.size(), "fewer counts than elements");
          next_end += runs[next].elems;
        }
        begin = std::min({run.end, elements.end, next_end});
        put(begin, run.contributions + runs[next].contributions);
      } else {
        begin = run.end;
        put(begin, run.contributions);
      }
    }
  }
  runs_.swap(merged_);
}

}  // namespace droptest::comm
