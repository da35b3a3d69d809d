// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/layer_memory.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/fill/reduction_fill.h"
#include "comm/lossy/fill/scratch.h"
#include "comm/lossy/paths/path_registry.h"
#include "experiments/spec/planned_collectives.h"
#include "sim/schedules/hop_schedule.h"

namespace droptest::experiments {
namespace {

using comm::ParallelDimension;
using Slot = comm::Scratch::Slot;
using Slots = std::array<std::uint64_t, static_cast<std::size_t>(Slot::kSentinel)>;

/// One call of a rank.
struct LayerCall {
  sim::Collective collective = sim::Collective::kAllReduce;
  std::uint64_t elements = 0;  ///< of the whole message
  std::uint64_t part = 0;      ///< of them, the largest of a rank
  int ranks = 1;
};

std::vector<std::uint64_t> part_ends(const LayerCall& call, const std::vector<std::uint64_t>& counts, int parts) {
  std::vector<std::uint64_t> ends = {0};
  for (const std::uint64_t count :
       static_cast<int>(counts.size()) == parts ? counts : comm::even_counts(call.elements, parts)) {
    ends.push_back(ends.back() + count);
  }
  return ends;
}

/// The most elements that a rank receives in one round, and in all rounds of the reduce half.
struct Received {
  std::uint64_t at_once = 0;
  std::uint64_t reduced = 0;
};

Received received_of(const comm::ClassNetwork& network, const LayerCall& call,
                     const std::vector<std::uint64_t>& counts) {
  const comm::PathEntry& path = comm::path_entry(network.path_of(call.elements));
  const auto schedule = path.schedule({call.collective, call.ranks, 0, network.group_ranks});
  const std::vector<std::uint64_t> ends = part_ends(call, counts, schedule->parts());
  const bool replaces = comm::can_lose(network.gather) && network.gather.fill == comm::Fill::kOwn;
  Received most;
  for (int rank = 0; rank < call.ranks; ++rank) {
    std::uint64_t reduced = 0;
    for (int round = 0; round < schedule->rounds(); ++round) {
      std::vector<sim::Hop> hops;
      schedule->receives(round, rank, hops);
      std::uint64_t buffered = 0;
      for (const sim::Hop& hop : hops) {
        const std::uint64_t elems =
            ends[static_cast<std::size_t>(hop.end_part)] - ends[static_cast<std::size_t>(hop.first_part)];
        if (hop.half == sim::Half::kReduce || replaces) buffered += elems;
        if (round < schedule->reduce_rounds()) reduced += elems;
      }
      most.at_once = std::max(most.at_once, buffered);
    }
    most.reduced = std::max(most.reduced, reduced);
  }
  return most;
}

bool reduces(const LayerCall& call) {
  return call.collective == sim::Collective::kAllReduce || call.collective == sim::Collective::kReduceScatter;
}

/// Elements that the call takes from the scratch.
Slots slots_of(const comm::ClassNetwork& network, const LayerCall& call, const std::vector<std::uint64_t>& counts,
               bool is_sampled) {
  Slots slots{};
  const auto slot = [&](Slot of) -> std::uint64_t& { return slots[static_cast<std::size_t>(of)]; };
  const comm::PathEntry& path = comm::path_entry(network.path_of(call.elements));
  const bool scatters = call.collective == sim::Collective::kReduceScatter;
  if (is_sampled) slot(Slot::kExact) = scatters ? call.part : call.elements;
  // The divergence of results that are equal on all ranks without loss.
  if (is_sampled && !scatters) slot(Slot::kUnused) = call.part;
  const bool feeds_back = network.recovery.error_feedback != comm::ClassRecovery::ErrorFeedback::kOff;
  if (feeds_back && reduces(call)) slot(Slot::kCorrected) = call.elements;
  if (network.recovery.hadamard_block_elems > 0 || network.recovery.interleave_packets > 1) {
    slot(Slot::kTransformed) = call.collective == sim::Collective::kAllGather ? call.part : call.elements;
  }
  if (comm::codes_values(network.compression) && reduces(call)) {
    slot(Slot::kCoded) = call.elements;
    const bool keeps_states = network.recovery.keeps_states();
    if (keeps_states) slot(Slot::kReceived) = static_cast<std::uint64_t>(call.ranks) * call.part;
  }
  if (network.compression.kind == comm::CompressionKind::kPowerSgd && reduces(call)) {
    slot(comm::factors_of(network.compression, call.elements) ? Slot::kCoded : Slot::kMasked) = call.elements;
  }
  const bool keeps_own = comm::can_lose(network.gather) && comm::keeps_own(network.gather.fill);
  if (keeps_own && !scatters) slot(Slot::kInputCopy) = call.elements;
  if (path.route == comm::Route::kAggregated && scatters) slot(Slot::kMasked) = call.elements;
  if (path.route == comm::Route::kManyHops) {
    slot(Slot::kReceived) = received_of(network, call, counts).at_once;
    if (scatters) slot(Slot::kPart) = call.elements;
  }
  return slots;
}

/// Elements that the layer remembers of a message with a name of its own.
std::uint64_t remembered_of(const comm::ClassNetwork& network, const LayerCall& call,
                            const std::vector<std::uint64_t>& counts) {
  const comm::PathEntry& path = comm::path_entry(network.path_of(call.elements));
  std::uint64_t elems = 0;
  if (reduces(call)) {
    if (comm::can_lose(network.reduce) && network.reduce.fill == comm::Fill::kStale) {
      elems += path.route == comm::Route::kAggregated ? call.elements
               : path.route == comm::Route::kOneHop   ? static_cast<std::uint64_t>(call.ranks) * call.part
                                                      : received_of(network, call, counts).reduced;
    }
    if (network.recovery.error_feedback != comm::ClassRecovery::ErrorFeedback::kOff) elems += call.elements;
    if (network.compression.kind == comm::CompressionKind::kPowerSgd) {
      if (const auto factors = comm::factors_of(network.compression, call.elements)) elems += factors->elems();
    }
    if (network.recovery.keeps_states()) {
      const bool from_all = network.compression.kind == comm::CompressionKind::kTopK;
      elems += static_cast<std::uint64_t>(call.ranks) * (from_all ? call.elements : call.part);
    }
  }
  const bool has_results = call.collective != sim::Collective::kReduceScatter || path.route == comm::Route::kManyHops;
  if (has_results && comm::can_lose(network.gather) && network.gather.fill == comm::Fill::kStale) {
    elems += call.elements;
  }
  return elems;
}

/// Messages of a rank in a step of such a class that are alike, each with a name of its own.
std::uint64_t names_of(const RunConfig& config, sim::TrafficClass of, std::uint64_t times) {
  const auto of_all = [&](std::uint64_t groups) { return (times + groups - 1) / groups; };
  // Sequence ranks have activations of their own tokens.
  const auto data = static_cast<std::uint64_t>(config.parallel.gradient_ranks());
  const auto tensor = static_cast<std::uint64_t>(config.parallel.tensor);
  const auto pipeline = static_cast<std::uint64_t>(config.parallel.pipeline);
  switch (of) {
    case sim::TrafficClass::kTpForward:
    case sim::TrafficClass::kTpBackward:
      return of_all(data * pipeline);
    case sim::TrafficClass::kDpGradient:
    case sim::TrafficClass::kParameterGather:
      return of_all(tensor * pipeline);
    case sim::TrafficClass::kPpActivation:
    case sim::TrafficClass::kPpGradient:
      return of_all(data * tensor * pipeline) * static_cast<std::uint64_t>(config.training.accumulation);
    case sim::TrafficClass::kSequenceForward:
    case sim::TrafficClass::kSequenceBackward:
      return of_all(config.tensor_sequence ? times : data * tensor * pipeline);
    default:
      return 1;
  }
}

}  // namespace

LayerMemory layer_memory(const RunConfig& config) {
  LayerMemory memory;
  std::map<std::pair<ParallelDimension, bool>, Slots> scratch;  // by group, and whether messages stay on the host
  const bool is_sampled = config.record.sample_every_steps > 0;
  for (const sim::TrafficClass of : sim::kAllTrafficClasses) {
    const auto& network = config.network.of(of);
    if (!network) continue;
    const bool of_data = of == sim::TrafficClass::kDpGradient || of == sim::TrafficClass::kParameterGather ||
                         of == sim::TrafficClass::kOuter;
    const bool of_layers = of == sim::TrafficClass::kTpForward || of == sim::TrafficClass::kTpBackward;
    const ParallelDimension group = of_data     ? ParallelDimension::kData
                                    : of_layers ? ParallelDimension::kTensor
                                                : ParallelDimension::kPipeline;
    const bool is_on_host = config.device == Device::kCuda && of == sim::TrafficClass::kOuter;
    for (const PlannedCollective& planned : planned_collectives(config, of)) {
      LayerCall call{planned.call.collective, planned.call.elements, 0, planned.call.ranks};
      const std::vector<std::uint64_t>& counts = planned.call.counts;
      call.part = counts.empty() ? comm::even_counts(call.elements, call.ranks).front()
                                 : *std::max_element(counts.begin(), counts.end());
      const std::uint64_t remembered =
          sizeof(float) * names_of(config, of, planned.times) * remembered_of(*network, call, counts);
      memory.remembered += remembered;
      if (is_on_host) memory.on_host += remembered;
      const bool is_message = call.collective == sim::Collective::kBroadcast;
      const Slots slots = is_message ? Slots{} : slots_of(*network, call, counts, is_sampled);
      Slots& most = scratch[{group, is_on_host}];
      for (std::size_t i = 0; i < slots.size(); ++i) most[i] = std::max(most[i], slots[i]);
    }
  }
  for (const auto& [place, slots] : scratch) {
    const std::uint64_t bytes = sizeof(float) * std::accumulate(slots.begin(), slots.end(), std::uint64_t{0});
    memory.messages += bytes;
    if (place.second) memory.on_host += bytes;
  }
  return memory;
}

}  // namespace droptest::experiments
