// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/statistics/statistics_collection.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>

#include "comm/lossy/statistics/layer_collection.h"
#include "comm/lossy/statistics/word_stream.h"

namespace droptest::comm {
namespace {

void put_counts(WordWriter& out, const LossCounts& counts) {
  for (const std::uint64_t n :
       {counts.messages, counts.packets, counts.bytes, counts.lost_packets, counts.lost_bytes, counts.repaired_packets,
        counts.residual_packets, counts.residual_bytes, counts.resent_packets, counts.resend_rounds,
        counts.timed_messages, counts.content_bytes}) {
    out.put(n);
  }
  out.put_double(counts.expected_lost);
  out.put_double(counts.expected_lost_variance);
  out.put(counts.bursts.size());
  for (const auto& [length, number] : counts.bursts) {
    out.put(length);
    out.put(number);
  }
  out.put(counts.gaps.size());
  for (const std::uint64_t number : counts.gaps) out.put(number);
  out.put(counts.stretches.size());
  for (const auto& [length, number] : counts.stretches) {
    out.put(length);
    out.put(number);
  }
}

LossCounts take_counts(WordReader& in) {
  LossCounts counts;
  for (std::uint64_t* n :
       {&counts.messages, &counts.packets, &counts.bytes, &counts.lost_packets, &counts.lost_bytes,
        &counts.repaired_packets, &counts.residual_packets, &counts.residual_bytes, &counts.resent_packets,
        &counts.resend_rounds, &counts.timed_messages, &counts.content_bytes}) {
    *n = in.take();
  }
  counts.expected_lost = in.take_double();
  counts.expected_lost_variance = in.take_double();
  for (std::uint64_t left = in.take(); left > 0; --left) {
    const std::uint64_t length = in.take();
    counts.bursts[length] = in.take();
  }
  counts.gaps.resize(in.take());
  for (std::uint64_t& number : counts.gaps) number = in.take();
  for (std::uint64_t left = in.take(); left > 0; --left) {
    const std::uint64_t length = in.take();
    counts.stretches[length] = in.take();
  }
  return counts;
}

// The figures of a link that are summed in the order of links. There are as many links as pairs of ranks, so only these
// figures go to all ranks unless the caller asks for detail.
struct InOrder {
  std::uint64_t digest = 0;
  double expected_lost = 0;
  double expected_lost_variance = 0;
};

// The sums of one class over ranks.
struct ClassMerge {
  SampleSums samples;
  VerdictRecord::Calls calls;
  std::array<LossCounts, 2> halves;  // counts without the expected losses
  std::map<sim::Link, InOrder> in_order;
  std::map<sim::Link, LossCounts> links;  // empty if detail is omitted
};

void put_class(WordWriter& out, sim::TrafficClass traffic_class, const FlowLedger& ledger,
               const VerdictRecord::Calls& calls, const ResultSampler& sampler, LinkDetail detail) {
  put_samples(out, sampler.total(traffic_class));
  put_verdicts(out, calls.settled);
  out.put(calls.open.size());
  for (const auto& [identity, of_group] : calls.open) {
    out.put(identity.number);
    out.put(identity.lowest_world_rank);
    out.put(of_group.total);
    for (const std::uint64_t word : of_group.lossy) out.put(word);
  }
  const auto is_mine = [traffic_class](const auto& entry) {
    return entry.first.link.traffic_class == traffic_class && entry.second.tally != nullptr;
  };
  std::array<LossCounts, 2> halves;
  out.put(static_cast<std::uint64_t>(std::ranges::count_if(ledger.flows(), is_mine)));
  for (const auto& entry : ledger.flows()) {
    if (!is_mine(entry)) continue;
    const sim::Link& link = entry.first.link;
    LossCounts counts = entry.second.loss_counts();
    out.put(static_cast<std::uint64_t>(link.half));
    out.put(link.source);
    out.put(link.destination);
    out.put(entry.second.tally->digest());
    out.put_double(counts.expected_lost);
    out.put_double(counts.expected_lost_variance);
    if (detail == LinkDetail::kInclude) put_counts(out, counts);
    counts.expected_lost = counts.expected_lost_variance = 0;
    halves[static_cast<std::size_t>(link.half)].add(counts);
  }
  for (const LossCounts& half : halves) put_counts(out, half);
}

void merge_class(WordReader& in, sim::TrafficClass traffic_class, LinkDetail detail, ClassMerge& merge) {
  merge.samples.add(take_samples(in));
  merge.calls.settled += take_verdicts(in);
  for (std::uint64_t left = in.take(); left > 0; --left) {
    GroupIdentity identity;
    identity.number = static_cast<GroupNumber>(in.take());
    identity.lowest_world_rank = static_cast<std::uint16_t>(in.take());
    VerdictRecord::OpenCalls& merged = merge.calls.open[identity];
    const std::uint64_t total = in.take();
    merged.total = std::max(merged.total, total);
    merged.lossy.resize((merged.total + 63) / 64);
    for (std::uint64_t word = 0; word < (total + 63) / 64; ++word) merged.lossy[word] |= in.take();
  }
  for (std::uint64_t left = in.take(); left > 0; --left) {
    sim::Link link;
    link.traffic_class = traffic_class;
    link.half = static_cast<sim::Half>(in.take());
    link.source = static_cast<std::uint16_t>(in.take());
    link.destination = static_cast<std::uint16_t>(in.take());
    InOrder& merged = merge.in_order[link];
    merged.digest = with_link_digest(merged.digest, in.take());
    merged.expected_lost += in.take_double();
    merged.expected_lost_variance += in.take_double();
    if (detail == LinkDetail::kInclude) merge.links[link].add(take_counts(in));
  }
  for (LossCounts& half : merge.halves) half.add(take_counts(in));
}

Verdicts count(const VerdictRecord::OpenCalls& calls) {
  std::uint64_t lossy = 0;
  for (const std::uint64_t word : calls.lossy) lossy += static_cast<std::uint64_t>(std::popcount(word));
  return {calls.total, calls.total - lossy};
}

// The lowest rank of a group counts its verdicts; the others forget them.
void settle(VerdictRecord& verdicts, sim::TrafficClass traffic_class, const ClassMerge& merge, int world_rank) {
  Verdicts mine;
  for (const auto& [identity, of_group] : merge.calls.open) {
    if (identity.lowest_world_rank == world_rank) mine += count(of_group);
  }
  verdicts.settle_calls(traffic_class, mine);
}

ClassStatistics finish(sim::TrafficClass traffic_class, const ClassMerge& merge) {
  ClassStatistics statistics;
  statistics.traffic_class = traffic_class;
  Verdicts calls = merge.calls.settled;
  for (const auto& [identity, of_group] : merge.calls.open) calls += count(of_group);
  statistics.collectives = calls.total;
  statistics.untouched = calls.untouched;
  statistics.halves = merge.halves;
  for (const auto& [link, of_link] : merge.in_order) {
    LossCounts& half = statistics.halves[static_cast<std::size_t>(link.half)];
    half.expected_lost += of_link.expected_lost;
    half.expected_lost_variance += of_link.expected_lost_variance;
    statistics.digest = with_link_digest(statistics.digest, of_link.digest);
  }
  for (const auto& [link, counts] : merge.links) {
    statistics.links.push_back({link, counts, merge.in_order.at(link).digest});
  }
  statistics.sampled_calls = merge.samples.calls;
  statistics.error_energy = merge.samples.error_energy;
  statistics.exact_energy = merge.samples.exact_energy;
  statistics.result_energy = merge.samples.result_energy;
  statistics.inner_product = merge.samples.inner_product;
  statistics.coding = merge.samples.coding;
  statistics.ends = merge.samples.ends;
  statistics.divergence_max = merge.samples.largest_divergence();
  statistics.divergence_rms = merge.samples.divergence_rms();
  return statistics;
}

}  // namespace

std::uint64_t with_link_digest(std::uint64_t digest, std::uint64_t next) {
  // An odd multiplier and a rotation: the order of the links matters, and a missing link changes the digest.
  return std::rotl(digest, 23) * 0x9e3779b97f4a7c15U + next;
}

std::vector<std::uint64_t> statistics_words(const RankCounts& counts, LinkDetail detail) {
  const FlowLedger& ledger = counts.ledger;
  WordWriter out;
  for (const sim::TrafficClass traffic_class : sim::kAllTrafficClasses) {
    if (ledger.network().of(traffic_class).has_value())
      put_class(out, traffic_class, ledger, counts.verdicts.calls(traffic_class), counts.sampler, detail);
  }
  return out.words();
}

std::vector<ClassStatistics> merge_statistics(std::span<const std::vector<std::uint64_t>> by_rank,
                                              const Network& network, LinkDetail detail) {
  std::vector<WordReader> readers(by_rank.begin(), by_rank.end());
  std::vector<ClassStatistics> merged;
  for (const sim::TrafficClass traffic_class : sim::kAllTrafficClasses) {
    if (!network.of(traffic_class).has_value()) continue;
    ClassMerge merge;
    for (WordReader& reader : readers) merge_class(reader, traffic_class, detail, merge);
    ClassStatistics statistics = finish(traffic_class, merge);
    if (statistics.collectives > 0) merged.push_back(std::move(statistics));
  }
  return merged;
}

std::vector<ClassStatistics> collect_statistics(Communicator& group, const RankCounts& counts, Settling settling,
                                                LinkDetail detail) {
  const FlowLedger& ledger = counts.ledger;
  const auto by_rank = gather_words(group, statistics_words(counts, detail));
  std::vector<WordReader> readers(by_rank.begin(), by_rank.end());
  std::map<sim::TrafficClass, std::vector<LayerStatistics>> layers = collect_layers(group, counts, settling);
  std::vector<ClassStatistics> collected;
  for (const sim::TrafficClass traffic_class : sim::kAllTrafficClasses) {
    if (!ledger.network().of(traffic_class).has_value()) continue;
    ClassMerge merge;
    for (WordReader& reader : readers) merge_class(reader, traffic_class, detail, merge);
    if (settling == Settling::kSettle) settle(counts.verdicts, traffic_class, merge, group.world_rank(group.rank()));
    ClassStatistics statistics = finish(traffic_class, merge);
    statistics.layers = std::move(layers[traffic_class]);
    if (statistics.collectives > 0) collected.push_back(std::move(statistics));
  }
  return collected;
}

std::vector<ClassSample> take_samples(Communicator& group, const FlowLedger& ledger, ResultSampler& sampler) {
  WordWriter out;
  for (const sim::TrafficClass traffic_class : sim::kAllTrafficClasses) {
    if (ledger.network().of(traffic_class).has_value()) put_samples(out, sampler.take_interval(traffic_class));
  }
  const auto by_rank = gather_words(group, out.words());
  std::vector<WordReader> readers(by_rank.begin(), by_rank.end());
  std::vector<ClassSample> samples;
  for (const sim::TrafficClass traffic_class : sim::kAllTrafficClasses) {
    if (!ledger.network().of(traffic_class).has_value()) continue;
    SampleSums sums;
    for (WordReader& reader : readers) sums.add(take_samples(reader));
    if (sums.calls == 0) continue;
    samples.push_back(
        {traffic_class, sums.calls, sums.nmse(), sums.cosine(), sums.largest_divergence(), sums.divergence_rms()});
  }
  return samples;
}

}  // namespace droptest::comm
