// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/resolve_memory.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"

namespace droptest::experiments {
namespace {

using models::Recompute;
using nlohmann::json;

constexpr std::array<std::pair<std::string_view, Recompute>, 3> kRecompute = {
    {{"none", Recompute::kSaveAll}, {"selective", Recompute::kSelective}, {"full", Recompute::kBlock}}};

const MemoryStrategy& strategy_of(const std::string& name) {
  return *std::find_if(kMemoryStrategies.begin(), kMemoryStrategies.end(),
                       [&](const MemoryStrategy& strategy) { return strategy.name == name; });
}

Recompute recompute_of(const std::string& name) {
  return std::find_if(kRecompute.begin(), kRecompute.end(), [&](const auto& entry) { return entry.first == name; })
      ->second;
}

std::string name_of(Recompute recompute) { return std::string(kRecompute[static_cast<std::size_t>(recompute)].first); }

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

models::SlotOptions MemoryConfig::options(int layers) const {
  models::SlotOptions options;
  options.place = place;
  options.traffic = traffic;
  if (recompute == Recompute::kSaveAll) return options;
  options.recompute.resize(static_cast<std::size_t>(layers), Recompute::kSaveAll);
  for (int layer = every - 1; layer < layers; layer += every) {
    options.recompute[static_cast<std::size_t>(layer)] = recompute;
  }
  return options;
}

models::SlotOptions slot_options(const RunConfig& config) {
  models::SlotOptions options = config.memory.options(config.model.layers);
  options.tensor_sequence = config.tensor_sequence;
  return options;
}

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

MemoryConfig memory_of_strategy(const MemoryStrategy& strategy, const RunConfig& config) {
  MemoryConfig memory = config.memory;
  memory.recompute = strategy.recompute;
  memory.place = {strategy.cut && config.parallel.tensor > 1 && !config.tensor_sequence, strategy.offload};
  return memory;
}

void resolve_memory(json& spec, const std::string& where, RunConfig& config, std::vector<std::string>& errors) {
  if (!spec.contains("memory")) return;
  json& section = spec["memory"];
  if (section.is_string()) section = {{"strategy", section}};
  const json given = section;
  const auto report = [&](const std::string& member, const std::string& message) {
    errors.push_back(where + ": /memory" + (given.contains(member) ? "/" + member : "") + ": got " + message);
  };
  const MemoryStrategy& strategy = strategy_of(section.value("strategy", "basic"));
  const MemoryConfig usual = memory_of_strategy(strategy, config);
  section["strategy"] = strategy.name;
  if (!section.contains("every")) section["every"] = 1;
  if (!section.contains("recompute")) section["recompute"] = name_of(usual.recompute);
  MemoryConfig& memory = config.memory;
  memory.recompute = recompute_of(section["recompute"]);
  memory.every = section["every"].get<int>();
  memory.directory = section.value("directory", "");
  const bool is_full = memory.recompute == Recompute::kBlock;
  const auto place = [&](const char* member, bool of_strategy) {
    if (!section.contains(member)) section[member] = of_strategy && is_full;
    const bool chosen = section[member].get<bool>();
    if (chosen && !is_full) {
      report(member, "true with /memory/recompute " + comm::quote_json(section["recompute"]) +
                         ", want recompute \"full\", whose blocks save residual streams alone");
    }
    return chosen;
  };
  memory.place.cut = place("cut", usual.place.cut);
  memory.place.offloaded = place("offload", usual.place.offloaded);
  if (!section.contains("recompute_traffic")) section["recompute_traffic"] = "kept";
  if (section["recompute_traffic"] == "sent") memory.traffic = models::RecomputeTraffic::kSent;
  if (memory.traffic == models::RecomputeTraffic::kSent && !is_full) {
    report("recompute_traffic", "\"sent\" with /memory/recompute " + comm::quote_json(section["recompute"]) +
                                    ", want recompute \"full\", whose blocks can repeat their sums over ranks");
  } else if (memory.traffic == models::RecomputeTraffic::kSent && config.parallel.tensor == 1) {
    report(
        "recompute_traffic",
        "\"sent\" with /parallel/tensor 1, want several tensor-parallel ranks, whose sums are sent again, or \"kept\"");
  }
  if (memory.traffic == models::RecomputeTraffic::kSent && config.parallel.sequence > 1) {
    report("recompute_traffic", "\"sent\" with /parallel/sequence " + std::to_string(config.parallel.sequence) +
                                    ", want \"kept\": attention over sequence ranks keeps what it received");
  }
  const auto flag = [&](const char* member) {
    if (!section.contains(member)) section[member] = false;
    return section[member].get<bool>();
  };
  config.sharding.offloads_moments = flag("offload_optimizer");
  config.sharding.offloads_values = flag("offload_parameters");
  const bool offloads_state = config.sharding.offloads_moments || config.sharding.offloads_values;
  if (memory.every > config.model.layers) {
    report("every", std::to_string(memory.every) + ", want at most " + std::to_string(config.model.layers) +
                        ", the blocks of the model");
  }
  if (memory.place.cut && config.tensor_sequence) {
    report(
        "cut",
        "true with /parallel/tensor_sequence true, whose ranks have residual streams of their own tokens alone; want "
        "no cut");
  }
  if (memory.place.cut && config.parallel.tensor == 1) {
    report("cut", "true with /parallel/tensor 1, want several tensor-parallel ranks, or no cut");
  }
  const bool has_chunks = config.model.attention.chunk_tokens > 0;
  const bool is_used = memory.place.offloaded || offloads_state || has_chunks;
  if (section.contains("directory") && (config.device == Device::kCuda || !is_used)) {
    report("directory", comm::quote_json(section["directory"]) +
                            (config.device == Device::kCuda ? " with device \"cuda\", whose offload is host memory"
                                                            : " without an offload in /memory") +
                            ", want no directory");
  }
  if (memory.recompute == Recompute::kSaveAll && !offloads_state && !has_chunks) spec.erase("memory");
}

void check_memory(const json& given, const std::string& where, const RunConfig& config, bool has_deadline,
                  std::vector<std::string>& errors) {
  const auto report = [&](const std::string& member, const std::string& message) {
    const json::json_pointer own("/memory/" + member);
    errors.push_back(where + ": /memory" + (given.contains(own) ? "/" + member : "") + ": got " + message);
  };
  if (const std::string why = why_ranks_differ(config); config.memory.place.cut && !why.empty()) {
    report("cut", "a cut of saved activations, but " + why +
                      ", so that activations of tensor-parallel ranks may differ; want \"cut\": false, or " +
                      "network path \"contribution\" or consistency \"shared\" for tensor-parallel classes alone");
  }
  if (const std::string why = why_recomputation_differs(config);
      config.memory.recompute != Recompute::kSaveAll && !why.empty()) {
    report("recompute", "recomputation with /parallel/zero 3, but " + why +
                            ", so that blocks would be computed again with other parameters than those of the forward "
                            "pass; want recompute \"none\", or no loss in /network/classes/parameter_gather");
  }
  if (const std::string why = why_inputs_differ(config); config.memory.recompute == Recompute::kBlock && !why.empty()) {
    report("recompute", "\"full\" with /parallel/tensor_sequence true, whose blocks gather their inputs again, but " +
                            why +
                            ", so that a block would be computed from other values than in the forward pass; want "
                            "\"selective\" or \"none\", or no loss in that half");
  }
  if (config.memory.traffic == models::RecomputeTraffic::kSent && (has_deadline || comm::keeps_time(config.network))) {
    report("recompute_traffic",
           std::string("\"sent\" with ") +
               (has_deadline ? "/time/deadline_microseconds" : "a loss process whose clock is time") +
               ", so that the time of the repeated sums would change the fates of later packets; "
               "want \"kept\"");
  }
}

}  // namespace droptest::experiments
