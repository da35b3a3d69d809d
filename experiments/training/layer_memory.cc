// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/layer_memory.h"

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

LayerMemory layer_memory(const RunConfig& config, const LazyDryRun& run) {
  LayerMemory memory;
  if (config.network.is_empty()) return memory;
  const bool is_sampled = config.record.sample_every_steps > 0;
  const auto is_on_host = [&](sim::TrafficClass of) {
    return config.device == Device::kCuda && of == sim::TrafficClass::kOuter;
  };
  std::map<std::pair<sim::TrafficClass, std::size_t>, std::uint64_t> remembered;  // bytes for each name
  // The scratch of each group, by (its dimensions, whether on the host).
  std::map<std::pair<std::vector<comm::ParallelDimension>, bool>, Slots> scratch;
  for (const sim::TrafficClass of : sim::kAllTrafficClasses) {
    const auto& network = config.network.of(of);
    if (!network) continue;
    const std::vector<PlannedCollective>& collectives = run.get().of(of);
    for (std::size_t c = 0; c < collectives.size(); ++c) {
      const PlannedCollective& planned = collectives[c];
      const std::vector<std::uint64_t> counts = comm::counts_of(planned.call);
      const comm::CallShape shape = comm::shape_of(planned.call, counts);
      const comm::CallMemory held = comm::memory_of({*network, shape, planned.call.ranks}, is_sampled);
      remembered[{of, c}] = sizeof(float) * held.remembered;
      if (planned.is_message()) continue;  // a message takes no scratch
      Slots& most = scratch[{planned.dimensions, is_on_host(of)}];
      for (std::size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], held.scratch[i]);
    }
  }
  std::uint64_t on_device = 0;  // the most bytes of a rank on its device
  for (const RankKind& kind : run.get().kinds()) {
    std::uint64_t of_rank = 0;
    std::uint64_t on_host = 0;
    for (const auto& [at, share] : kind.shares) {
      const auto found = remembered.find(at);
      if (found == remembered.end()) continue;
      of_rank += share.names * found->second;
      if (is_on_host(at.first)) on_host += share.names * found->second;
    }
    memory.remembered = std::max(memory.remembered, of_rank);
    on_device = std::max(on_device, of_rank - on_host);
  }
  memory.on_host = memory.remembered - on_device;
  for (const auto& [place, slots] : scratch) {
    const std::uint64_t bytes = sizeof(float) * std::accumulate(slots.begin(), slots.end(), std::uint64_t{0});
    memory.messages += bytes;
    if (place.second) memory.on_host += bytes;
  }
  return memory;
}

}  // namespace droptest::experiments
