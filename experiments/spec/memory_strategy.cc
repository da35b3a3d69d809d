// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/memory_strategy.h"

#include <algorithm>

namespace droptest::experiments {
namespace {

using models::Recompute;

bool loses(const comm::HalfNetwork& half) {
  const bool never = half.loss == nullptr || (comm::has_one_process(half) && half.loss->loss_rate() == 0);
  return !never || !half.links.empty() || half.deadline;
}

/// Whether all ranks of a collective get the same values, whatever is lost.
bool has_equal_results(const comm::ClassNetwork& network) {
  const bool by_other_path = std::any_of(network.sized_paths.begin(), network.sized_paths.end(),
                                         [](const comm::SizedPath& sized) { return sized.path != "contribution"; });
  const bool by_aggregation = network.path == "contribution" && !by_other_path;
  return by_aggregation || network.consistency == comm::Consistency::kShared || !loses(network.gather);
}

}  // namespace

std::string why_ranks_differ(const RunConfig& config) {
  for (const sim::TrafficClass of : sim::kAllTrafficClasses) {
    const auto& network = config.network.of(of);
    if (sim::repeated_class(of)) continue;  // its values are not used
    if (!network || (!loses(network->reduce) && !loses(network->gather))) continue;
    const bool within_layers = of == sim::TrafficClass::kTpForward || of == sim::TrafficClass::kTpBackward;
    if (within_layers && has_equal_results(*network)) continue;
    return "class " + std::string(sim::traffic_class_name(of)) + " can lose packets of one rank alone";
  }
  return "";
}

std::string why_recomputation_differs(const RunConfig& config) {
  const auto& gathers = config.network.of(sim::TrafficClass::kParameterGather);
  if (!config.sharding.shards_values() || !gathers || !loses(gathers->gather)) return "";
  return "class parameter_gather can lose packets, and the backward pass gathers parameters again";
}

std::string why_inputs_differ(const RunConfig& config) {
  const auto& forward = config.network.of(sim::TrafficClass::kTpForward);
  // The second gather of an input repeats the losses of the first, and has no others.
  if (forward && loses(forward->gather) &&
      comm::lost_gradient_of(sim::TrafficClass::kTpForward, *forward) == comm::LostGradient::kZero) {
    return "";
  }
  for (const sim::TrafficClass of : {sim::TrafficClass::kTpForward, sim::TrafficClass::kTpBackward}) {
    const auto& network = config.network.of(of);
    if (config.tensor_sequence && network && loses(network->gather)) {
      return "class " + std::string(sim::traffic_class_name(of)) + " can lose gathered values";
    }
  }
  return "";
}

bool gathers_inputs_again(const RunConfig& config) {
  const models::Recompute policy = config.memory.recompute;
  return policy == models::Recompute::kBlock ||
         (policy == models::Recompute::kSelective && config.device == Device::kCuda);
}

MemoryConfig memory_of_strategy(const MemoryStrategy& strategy, const RunConfig& config) {
  MemoryConfig memory = config.memory;
  memory.recompute = strategy.recompute;
  memory.place = {strategy.cut && config.parallel.tensor > 1 && !config.tensor_sequence, strategy.offload};
  return memory;
}

}  // namespace droptest::experiments
