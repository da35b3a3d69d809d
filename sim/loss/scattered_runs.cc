// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/scattered_runs.h"

#include <algorithm>
#include <bit>
#include <iterator>

namespace droptest::sim {
namespace {

// The first packet from `from` on with a set bit in the words xor `flip`; `packets` if there is none.
std::uint64_t first_set(const FatesView& fates, std::uint64_t from, std::uint64_t flip) {
  while (from < fates.packets) {
    const std::uint64_t rest = (fates.words[from / 64] ^ flip) >> (from % 64);
    if (rest != 0) return std::min(fates.packets, from + static_cast<std::uint64_t>(std::countr_zero(rest)));
    from = (from / 64 + 1) * 64;
  }
  return fates.packets;
}
std::uint64_t next_lost(const FatesView& fates, std::uint64_t from) { return first_set(fates, from, 0); }
std::uint64_t next_delivered(const FatesView& fates, std::uint64_t from) {
  return first_set(fates, from, ~std::uint64_t{0});
}

}  // namespace

void ScatteredRuns::end(const Stretch& stretch, RunCounts& counts) {
  counts.count_stretch(stretch.packets);
  counts.count_burst(stretch.first_burst);
  if (!stretch.is_all_lost()) counts.count_burst(stretch.last_burst);
}

ScatteredRuns::Stretch ScatteredRuns::count_inner(const FatesView& lost) {
  Stretch stretch{lost.packets, lost.packets, lost.packets};
  for (std::uint64_t begin = next_lost(lost, 0); begin < lost.packets;) {
    const std::uint64_t end = next_delivered(lost, begin);
    if (!stretch.has_losses()) {
      stretch.before = begin;
    } else {
      ended_.count_gap(begin - (lost.packets - stretch.behind));
    }
    stretch.behind = lost.packets - end;
    if (begin == 0) stretch.first_burst = end;
    if (end == lost.packets) stretch.last_burst = end - begin;
    if (begin > 0 && end < lost.packets) ended_.count_burst(end - begin);
    begin = next_lost(lost, end);
  }
  return stretch;
}

// The bursts at the joint are at no edge afterwards, unless one side is all lost.
ScatteredRuns::Stretch ScatteredRuns::joined(const Stretch& left, const Stretch& right) {
  Stretch both{left.packets + right.packets, left.before, right.behind, left.first_burst, right.last_burst};
  if (!left.has_losses()) both.before = left.packets + right.before;
  if (!right.has_losses()) both.behind = left.behind + right.packets;
  const std::uint64_t burst = left.last_burst + right.first_burst;
  if (left.last_burst > 0 && right.first_burst > 0) {
    if (left.is_all_lost()) both.first_burst = burst;
    if (right.is_all_lost()) both.last_burst = burst;
    if (!left.is_all_lost() && !right.is_all_lost()) ended_.count_burst(burst);
    return both;
  }
  if (left.has_losses() && right.has_losses()) ended_.count_gap(left.behind + right.before);
  if (left.last_burst > 0 && !left.is_all_lost()) ended_.count_burst(left.last_burst);
  if (right.first_burst > 0 && !right.is_all_lost()) ended_.count_burst(right.first_burst);
  return both;
}

void ScatteredRuns::add(std::uint64_t first_draw, const FatesView& lost) {
  if (lost.packets == 0) return;
  const std::uint64_t end_draw = first_draw + lost.packets;
  const auto end_of = [](const auto& stretch) { return stretch.first + stretch.second.packets; };
  Stretch stretch = count_inner(lost);
  const auto behind = stretches_.lower_bound(first_draw);
  const bool has_left = behind != stretches_.begin();
  const bool has_right = behind != stretches_.end();
  const bool is_used = (has_left && end_of(*std::prev(behind)) > first_draw) ||
                       (has_right && behind->first < end_draw) || end_draw < first_draw;
  if (is_used) return end(stretch, ended_);
  if (has_right && behind->first == end_draw) {
    stretch = joined(stretch, behind->second);
    stretches_.erase(behind);
  }
  const auto next = stretches_.lower_bound(first_draw);
  if (has_left && end_of(*std::prev(next)) == first_draw) {
    std::prev(next)->second = joined(std::prev(next)->second, stretch);
    return;
  }
  const auto own = stretches_.insert(next, {first_draw, stretch});
  if (stretches_.size() <= kMostStretches) return;
  const auto last = std::prev(stretches_.end());
  const bool is_first =
      own == last || (own != stretches_.begin() && first_draw - stretches_.begin()->first > last->first - first_draw);
  const auto farthest = is_first ? stretches_.begin() : last;
  end(farthest->second, ended_);
  stretches_.erase(farthest);
}

RunCounts ScatteredRuns::counts() const {
  RunCounts all = ended_;
  for (const auto& [first, stretch] : stretches_) end(stretch, all);
  return all;
}

}  // namespace droptest::sim
