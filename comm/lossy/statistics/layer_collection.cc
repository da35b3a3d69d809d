// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/statistics/layer_collection.h"

#include <cstdint>

namespace droptest::comm {
namespace {

// One layer while ranks are added up.
struct LayerMerge {
  SampleSums samples;
  TouchedSteps::Settled settled;
  std::map<std::uint64_t, Touch> open;  // by step
};

void put_layer(WordWriter& out, const LayerKey& key, const SampleSums& samples, const TouchedSteps::Record& record) {
  out.put(static_cast<std::uint64_t>(key.traffic_class));
  out.put(static_cast<std::uint64_t>(static_cast<std::int64_t>(key.layer)));
  put_samples(out, samples);
  out.put(record.settled.steps);
  out.put(record.settled.untouched);
  out.put(record.open.size());
  for (const TouchedSteps::Step& step : record.open) {
    out.put(step.step);
    out.put(step.touch == Touch::kTouched ? 1 : 0);
  }
}

void merge_layer(WordReader& in, std::map<LayerKey, LayerMerge>& merged) {
  LayerKey key;
  key.traffic_class = static_cast<sim::TrafficClass>(in.take());
  key.layer = static_cast<int>(static_cast<std::int64_t>(in.take()));
  LayerMerge& merge = merged[key];
  merge.samples.add(take_samples(in));
  merge.settled.steps += in.take();
  merge.settled.untouched += in.take();
  for (std::uint64_t left = in.take(); left > 0; --left) {
    Touch& touch = merge.open.try_emplace(in.take(), Touch::kUntouched).first->second;
    if (in.take() != 0) touch = Touch::kTouched;
  }
}

// How many of the open steps before `end` there are, and how many of them were untouched.
TouchedSteps::Settled count_open(const LayerMerge& merge, std::uint64_t end) {
  TouchedSteps::Settled counts;
  for (const auto& [step, touch] : merge.open) {
    if (step >= end) continue;
    ++counts.steps;
    if (touch == Touch::kUntouched) ++counts.untouched;
  }
  return counts;
}

}  // namespace

void put_samples(WordWriter& out, const SampleSums& sums) {
  out.put(sums.calls);
  for (const double x :
       {sums.error_energy, sums.exact_energy, sums.result_energy, sums.inner_product, sums.divergence_max,
        sums.divergence_energy, sums.divergence_elems, sums.elems, sums.error_sum}) {
    out.put_double(x);
  }
}

SampleSums take_samples(WordReader& in) {
  SampleSums sums;
  sums.calls = in.take();
  for (double* x :
       {&sums.error_energy, &sums.exact_energy, &sums.result_energy, &sums.inner_product, &sums.divergence_max,
        &sums.divergence_energy, &sums.divergence_elems, &sums.elems, &sums.error_sum}) {
    *x = in.take_double();
  }
  return sums;
}

std::map<sim::TrafficClass, std::vector<LayerStatistics>> collect_layers(Communicator& group, const RankCounts& counts,
                                                                         Settling settling) {
  WordWriter out;
  const auto& samples = counts.sampler.layers();
  out.put(counts.steps.records().size());
  for (const auto& [key, record] : counts.steps.records()) {
    const auto sampled = samples.find(key);
    put_layer(out, key, sampled == samples.end() ? SampleSums{} : sampled->second, record);
  }
  std::map<LayerKey, LayerMerge> merged;
  for (const std::vector<std::uint64_t>& words : gather_words(group, out.words())) {
    WordReader in(words);
    for (std::uint64_t left = in.take(); left > 0; --left) merge_layer(in, merged);
  }
  std::map<sim::TrafficClass, std::vector<LayerStatistics>> layers;
  for (const auto& [key, merge] : merged) {
    const TouchedSteps::Settled open = count_open(merge, ~std::uint64_t{0});
    layers[key.traffic_class].push_back(
        {key.layer, merge.samples, merge.settled.steps + open.steps, merge.settled.untouched + open.untouched});
    if (settling == Settling::kKeep) continue;
    const bool counts_here = group.rank() == 0;
    counts.steps.settle(key, counts.step, counts_here ? count_open(merge, counts.step) : TouchedSteps::Settled{});
  }
  return layers;
}

}  // namespace droptest::comm
