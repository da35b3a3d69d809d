// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/statistics/layer_collection.h"

#include <cstdint>

namespace droptest::comm {
namespace {

// The sums of one layer over ranks.
struct LayerMerge {
  SampleSums samples;
  VerdictRecord::Steps steps;
};

void put_layer(WordWriter& out, const LayerKey& key, const SampleSums& samples, const VerdictRecord::Steps& steps) {
  out.put(static_cast<std::uint64_t>(key.traffic_class));
  out.put(static_cast<std::uint64_t>(static_cast<std::int64_t>(key.layer)));
  put_samples(out, samples);
  put_verdicts(out, steps.settled);
  out.put(steps.open.size());
  for (const auto& [step, verdict] : steps.open) {
    out.put(step);
    out.put(verdict == Verdict::kLossy ? 1 : 0);
  }
}

void merge_layer(WordReader& in, std::map<LayerKey, LayerMerge>& merged) {
  LayerKey key;
  key.traffic_class = static_cast<sim::TrafficClass>(in.take());
  key.layer = static_cast<int>(static_cast<std::int64_t>(in.take()));
  LayerMerge& merge = merged[key];
  merge.samples.add(take_samples(in));
  merge.steps.settled += take_verdicts(in);
  for (std::uint64_t left = in.take(); left > 0; --left) {
    Verdict& verdict = merge.steps.open.try_emplace(in.take(), Verdict::kLossless).first->second;
    if (in.take() != 0) verdict = Verdict::kLossy;
  }
}

// The open steps before `end`.
Verdicts count_open(const LayerMerge& merge, std::uint64_t end) {
  Verdicts verdicts;
  for (const auto& [step, verdict] : merge.steps.open) {
    if (step < end) verdicts += {1, verdict == Verdict::kLossless ? 1U : 0U};
  }
  return verdicts;
}

}  // namespace

void put_samples(WordWriter& out, const SampleSums& sums) {
  out.put(sums.calls);
  out.put(sums.coding.dropped_pairs);
  for (const double x : {sums.error_energy, sums.exact_energy, sums.result_energy, sums.inner_product,
                         sums.divergence_max, sums.divergence_energy, sums.divergence_elems, sums.elems, sums.error_sum,
                         sums.coding.error_energy, sums.coding.energy, sums.ends.error_energy, sums.ends.energy}) {
    out.put_double(x);
  }
}

SampleSums take_samples(WordReader& in) {
  SampleSums sums;
  sums.calls = in.take();
  sums.coding.dropped_pairs = in.take();
  for (double* x : {&sums.error_energy, &sums.exact_energy, &sums.result_energy, &sums.inner_product,
                    &sums.divergence_max, &sums.divergence_energy, &sums.divergence_elems, &sums.elems, &sums.error_sum,
                    &sums.coding.error_energy, &sums.coding.energy, &sums.ends.error_energy, &sums.ends.energy}) {
    *x = in.take_double();
  }
  return sums;
}

void put_verdicts(WordWriter& out, const Verdicts& verdicts) {
  out.put(verdicts.total);
  out.put(verdicts.untouched);
}

Verdicts take_verdicts(WordReader& in) {
  const std::uint64_t total = in.take();
  return {total, in.take()};
}

std::map<sim::TrafficClass, std::vector<LayerStatistics>> collect_layers(Communicator& group, const RankCounts& counts,
                                                                         Settling settling) {
  WordWriter out;
  const auto& samples = counts.sampler.layers();
  out.put(counts.verdicts.steps().size());
  for (const auto& [key, steps] : counts.verdicts.steps()) {
    const auto sampled = samples.find(key);
    put_layer(out, key, sampled == samples.end() ? SampleSums{} : sampled->second, steps);
  }
  std::map<LayerKey, LayerMerge> merged;
  for (const std::vector<std::uint64_t>& words : gather_words(group, out.words())) {
    WordReader in(words);
    for (std::uint64_t left = in.take(); left > 0; --left) merge_layer(in, merged);
  }
  std::map<sim::TrafficClass, std::vector<LayerStatistics>> layers;
  for (const auto& [key, merge] : merged) {
    Verdicts steps = merge.steps.settled;
    steps += count_open(merge, ~std::uint64_t{0});
    layers[key.traffic_class].push_back({key.layer, merge.samples, steps.total, steps.untouched});
    if (settling == Settling::kKeep) continue;
    const bool counts_here = group.rank() == 0;
    counts.verdicts.settle_steps(key, counts.step, counts_here ? count_open(merge, counts.step) : Verdicts{});
  }
  return layers;
}

}  // namespace droptest::comm
