// SPDX-License-Identifier: Apache-2.0
// Diagnostics of single layers of all ranks, added up over the reliable inner communicator.
#pragma once

#include <map>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/statistics/loss_statistics.h"
#include "comm/lossy/statistics/statistics_collection.h"
#include "comm/lossy/statistics/word_stream.h"

namespace droptest::comm {

// Each put function writes words, which the take function reads back in the same order.
void put_samples(WordWriter& out, const SampleSums& sums);
SampleSums take_samples(WordReader& in);
void put_verdicts(WordWriter& out, const Verdicts& verdicts);
Verdicts take_verdicts(WordReader& in);

/// The layers of each class, equal on every rank: sums are added in rank order. A step is untouched if no rank lost a
/// packet of the layer in it. Settling keeps the verdicts of finished steps as two counts, on the group's first rank.
/// Ranks: all of the group.
std::map<sim::TrafficClass, std::vector<LayerStatistics>> collect_layers(Communicator& group, const RankCounts& counts,
                                                                         Settling settling);

}  // namespace droptest::comm
