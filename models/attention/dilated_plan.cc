// SPDX-License-Identifier: Apache-2.0
#include "models/attention/dilated_plan.h"

#include <algorithm>
#include <string>

#include "sim/error.h"

namespace droptest::models {
namespace {

/// The tokens [begin, end) of one rank.
struct Part {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

std::vector<Part> contiguous_parts(const SequenceParts& parts) {
  std::vector<Part> result;
  std::int64_t begin = 0;
  for (int rank = 0; rank < parts.ranks(); ++rank) {
    const std::vector<TokenRun> runs = parts.runs(rank, 1);
    if (runs.size() > 1 || (runs.size() == 1 && runs[0].position != begin)) {
      throw ConfigError("dilated attention: rank " + std::to_string(rank) + ": got tokens from position " +
                        std::to_string(runs[0].position) + " in " + std::to_string(runs.size()) +
                        " ranges, want one range from position " + std::to_string(begin) +
                        ": consecutive parts in the order of the ranks");
    }
    result.push_back({begin, begin + parts.length_of(rank)});
    begin = result.back().end;
  }
  return result;
}

/// The positions in `range` at the distances residue, residue + dilation, ... from `origin`, the beginning of the
/// segment. The index of a position is its distance from `begin_index`.
TokenRun residue_run(const DilatedBranch& branch, std::int64_t origin, std::int64_t residue, Part range,
                     std::int64_t begin_index) {
  const std::int64_t past = (range.begin - origin - residue) % branch.dilation;
  const std::int64_t ahead = past <= 0 ? -past : branch.dilation - past;
  const std::int64_t first = range.begin + ahead;
  const std::int64_t count = first < range.end ? (range.end - 1 - first) / branch.dilation + 1 : 0;
  return {first - begin_index, count, first, branch.dilation, branch.dilation};
}

bool share_segment(const DilatedBranch& branch, Part a, Part b) {
  if (a.begin > b.begin) std::swap(a, b);
  if (a.begin == a.end || b.begin == b.end) return false;
  return (a.end - 1) / branch.segment_length == b.begin / branch.segment_length;
}

/// The tokens of `part` in the one segment that it shares with `other`.
Part shared_range(const DilatedBranch& branch, Part part, Part other, std::int64_t& origin) {
  const std::int64_t segment = (part.begin < other.begin ? other.begin : part.begin) / branch.segment_length;
  origin = segment * branch.segment_length;
  return {std::max(part.begin, origin), std::min(part.end, origin + branch.segment_length)};
}

}  // namespace

void validate(const std::vector<DilatedBranch>& branches) {
  if (branches.empty()) throw ConfigError("branches: got none, want at least one");
  for (std::size_t i = 0; i < branches.size(); ++i) {
    const auto& [length, dilation] = branches[i];
    const std::string branch = "branches/" + std::to_string(i);
    if (length < 1) {
      throw ConfigError(branch + "/segment_length: got " + std::to_string(length) + ", want at least 1");
    }
    if (dilation < 1 || dilation > length) {
      throw ConfigError(branch + "/dilation: got " + std::to_string(dilation) + ", want 1 to the segment length " +
                        std::to_string(length));
    }
  }
}

std::int64_t dilated_visits(const std::vector<DilatedBranch>& branches, std::int64_t head, std::int64_t query,
                            std::int64_t key) {
  return std::ranges::count_if(branches, [&](const DilatedBranch& branch) {
    const std::int64_t residue = head % branch.dilation;
    return query / branch.segment_length == key / branch.segment_length &&
           query % branch.segment_length % branch.dilation == residue &&
           key % branch.segment_length % branch.dilation == residue;
  });
}

std::string dilated_message(std::size_t branch, const char* tensor) {
  return "attention.branch" + std::to_string(branch) + "." + tensor;
}

void check_dilated_ranks(const SequenceParts& parts, int ranks) {
  if (parts.ranks() == ranks) return;
  throw ConfigError("dilated attention: got parts of " + std::to_string(parts.ranks()) + " ranks, want " +
                    std::to_string(ranks));
}

std::int64_t DilatedPlan::tokens(const std::vector<TokenRun>& by_head) {
  std::int64_t sum = 0;
  for (const TokenRun& run : by_head) sum += run.count;
  return sum;
}

DilatedPlan dilated_plan(const DilatedBranch& branch, const SequenceParts& parts, int rank, std::int64_t first_head,
                         std::int64_t heads, Causality causality) {
  const std::vector<Part> ranges = contiguous_parts(parts);
  const Part mine = ranges[static_cast<std::size_t>(rank)];
  const auto ranks = static_cast<std::size_t>(parts.ranks());
  DilatedPlan plan;
  plan.local.resize(static_cast<std::size_t>(heads));
  plan.gathered.resize(static_cast<std::size_t>(heads));
  plan.sent.resize(ranks);
  plan.received.resize(ranks);
  const auto travels = [&](std::size_t source, std::size_t destination) {
    return source != destination && share_segment(branch, ranges[source], ranges[destination]) &&
           (causality == Causality::kAny || source < destination);
  };
  for (std::int64_t head = 0; head < heads; ++head) {
    const std::int64_t residue = (first_head + head) % branch.dilation;
    std::vector<AttentionBlock>& local = plan.local[static_cast<std::size_t>(head)];
    std::vector<AttentionBlock>& gathered = plan.gathered[static_cast<std::size_t>(head)];
    const std::int64_t first = mine.begin / branch.segment_length * branch.segment_length;
    for (std::int64_t origin = first; origin < mine.end; origin += branch.segment_length) {
      const Part range{std::max(mine.begin, origin), std::min(mine.end, origin + branch.segment_length)};
      const TokenRun run = residue_run(branch, origin, residue, range, mine.begin);
      if (run.count > 0) local.push_back({{run}, {run}});
    }
    std::int64_t gathered_here = 0;
    std::int64_t last_origin = -1;
    for (std::size_t other = 0; other < ranks; ++other) {
      std::int64_t origin = 0;
      TokenRun sent;
      if (travels(static_cast<std::size_t>(rank), other)) {
        const Part range = shared_range(branch, mine, ranges[other], origin);
        sent = residue_run(branch, origin, residue, range, mine.begin);
      }
      plan.sent[other].push_back(sent);
      TokenRun received;
      if (travels(other, static_cast<std::size_t>(rank))) {
        const Part range = shared_range(branch, ranges[other], mine, origin);
        received = residue_run(branch, origin, residue, range, 0);
        received.index = gathered_here;
        received.index_step = 1;
        gathered_here += received.count;
        const TokenRun queries =
            residue_run(branch, origin, residue, shared_range(branch, mine, ranges[other], origin), mine.begin);
        if (received.count > 0 && queries.count > 0) {
          if (origin != last_origin) gathered.push_back({{queries}, {}});
          gathered.back().keys.push_back(received);
          last_origin = origin;
        }
      }
      plan.received[other].push_back(received);
    }
    plan.gathered_tokens = std::max(plan.gathered_tokens, gathered_here);
  }
  return plan;
}

}  // namespace droptest::models
