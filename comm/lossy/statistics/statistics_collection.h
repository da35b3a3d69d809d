// SPDX-License-Identifier: Apache-2.0
// The statistics of all ranks, added up over the reliable inner communicator.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/flows/flow_ledger.h"
#include "comm/lossy/statistics/loss_statistics.h"
#include "comm/lossy/statistics/result_sampler.h"
#include "comm/lossy/statistics/verdict_record.h"

namespace droptest::comm {

/// What becomes of the open verdicts of RankCounts::verdicts that were merged. kSettle: they become counts, so that the
/// memory of the record stays bounded. This needs all ranks of the run, because a missing rank could have lost a
/// packet. kKeep: they stay open.
enum class Settling : std::uint8_t { kSettle, kKeep };

/// The counts of one rank.
struct RankCounts {
  const FlowLedger& ledger;
  VerdictRecord& verdicts;
  const ResultSampler& sampler;
  std::uint64_t step;  ///< the current step, with verdicts that stay open
};

/// One entry per class that has a network and made calls, equal on every rank: fractions are added in the order of
/// links, so the bits do not depend on the calling group. Ranks: all of the group, with the same `detail`.
std::vector<ClassStatistics> collect_statistics(Communicator& group, const RankCounts& counts, Settling settling,
                                                LinkDetail detail);

/// The counts of one rank in the form that merge_statistics() takes, for ranks that exchange their counts in files.
std::vector<std::uint64_t> statistics_words(const RankCounts& counts, LinkDetail detail);
/// collect_statistics() of the ranks with these words, without layers. `network` and `detail` are those of the words.
/// Throws: CheckError for words of another network.
std::vector<ClassStatistics> merge_statistics(std::span<const std::vector<std::uint64_t>> by_rank,
                                              const Network& network, LinkDetail detail);

/// Samples since the last call, summed over ranks; one entry per sampled class. Ranks: all of the group.
std::vector<ClassSample> take_samples(Communicator& group, const FlowLedger& ledger, ResultSampler& sampler);

/// Combines the digest of the links so far with that of the next link, in the order of sim::Link.
std::uint64_t with_link_digest(std::uint64_t digest, std::uint64_t next);

}  // namespace droptest::comm
