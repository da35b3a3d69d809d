// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "comm/json/json_text.h"
#include "comm/spec/resolve_network.h"
#include "experiments/spec/memory_strategy.h"
#include "experiments/spec/section_members.h"
#include "experiments/spec/section_resolvers.h"

namespace droptest::experiments {
namespace {

using models::Recompute;
using nlohmann::json;

const MemoryStrategy& strategy_of(const std::string& name) {
  return *std::find_if(kMemoryStrategies.begin(), kMemoryStrategies.end(),
                       [&](const MemoryStrategy& strategy) { return strategy.name == name; });
}

}  // namespace

void resolve_memory(Resolution& resolution) {
  json& spec = resolution.spec;
  if (!spec.contains("memory")) return;
  RunConfig& config = resolution.config;
  json& section = spec["memory"];
  if (section.is_string()) section = {{"strategy", section}};
  const json given = section;
  const auto report = [&](const std::string& member, const std::string& message) {
    resolution.report("/memory" + (given.contains(member) ? "/" + member : ""), "got " + message);
  };
  resolution.fill_defaults("/memory");
  const json usual = members_json(memory_of_strategy(strategy_of(section["strategy"]), config));
  section.emplace("recompute", usual["recompute"]);
  const bool is_full = section["recompute"] == "full";
  for (const char* place : {"cut", "offload"}) {
    section.emplace(place, is_full && usual[place].get<bool>());
    if (!is_full && section[place].get<bool>()) {
      report(place, "true with /memory/recompute " + comm::quote_json(section["recompute"]) +
                        ", want recompute \"full\", whose blocks save residual streams alone");
    }
  }
  MemoryConfig& memory = config.memory;
  read_members(section, memory);
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
  config.sharding.offloads_moments = section["offload_optimizer"].get<bool>();
  config.sharding.offloads_values = section["offload_parameters"].get<bool>();
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

void check_memory(Resolution& resolution) {
  const RunConfig& config = resolution.config;
  const bool has_deadline = comm::network_use(resolution.spec.value("time", json())) == comm::NetworkUse::kDeadline;
  const auto report = [&](const std::string& member, const std::string& message) {
    const json::json_pointer own("/memory/" + member);
    resolution.report("/memory" + (resolution.given.contains(own) ? "/" + member : ""), "got " + message);
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
  if (const std::string why = why_inputs_differ(config); gathers_inputs_again(config) && !why.empty()) {
    const bool is_full = config.memory.recompute == Recompute::kBlock;
    report("recompute", std::string(is_full ? "\"full\"" : "\"selective\" on a GPU") +
                            " with /parallel/tensor_sequence true, whose blocks gather their inputs again, but " + why +
                            ", so that a block would be computed from other values than in the forward pass; want " +
                            (config.device == Device::kCuda ? "" : "\"selective\" or ") +
                            "\"none\", or no loss in that half");
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
