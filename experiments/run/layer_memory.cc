// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/layer_memory.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/lab/fate_simulation.h"
#include "comm/lossy/paths/call_memory.h"

namespace droptest::experiments {
namespace {

using Slots = decltype(comm::CallMemory::scratch);

}  // namespace

LayerMemory layer_memory(const RunConfig& config, const DryRunWhenAsked& run) {
  LayerMemory memory;
  if (config.network.is_empty()) return memory;
  std::map<std::pair<std::vector<comm::ParallelDimension>, bool>, Slots>
      scratch;  // by group, and whether messages stay on the host
  const bool is_sampled = config.record.sample_every_steps > 0;
  for (const sim::TrafficClass of : sim::kAllTrafficClasses) {
    const auto& network = config.network.of(of);
    if (!network) continue;
    const bool is_on_host = config.device == Device::kCuda && of == sim::TrafficClass::kOuter;
    for (const PlannedCollective& planned : run.get().of(of)) {
      const std::vector<std::uint64_t> counts = comm::counts_of(planned.call);
      const comm::CallShape shape = comm::shape_of(planned.call, counts);
      const comm::CallMemory held = comm::memory_of({*network, shape, planned.call.ranks}, is_sampled);
      const std::uint64_t remembered = sizeof(float) * planned.names * held.remembered;
      memory.remembered += remembered;
      if (is_on_host) memory.on_host += remembered;
      if (planned.call.collective == sim::Collective::kBroadcast) continue;  // a message, which takes no scratch
      Slots& most = scratch[{planned.dimensions, is_on_host}];
      for (std::size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], held.scratch[i]);
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
