// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/idle_protection.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "experiments/spec/pipeline_plan.h"
#include "models/gpt2/parameter_table.h"
#include "models/gpt2/shard_plan.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

struct Blocks {
  std::set<int> without_bucket;  ///< blocks that, on some rank, no bucket lies within
  std::uint64_t least_bytes = UINT64_MAX;
};

Blocks blocks_of(const RunConfig& config) {
  Blocks blocks;
  for (int part = 0; part < config.parallel.tensor * config.parallel.pipeline; ++part) {
    const models::ParameterTable table(
        tensors_of_rank(config, part / config.parallel.tensor, part % config.parallel.tensor));
    const models::ShardPlan plan(table, sizeof(float), config.sharding, config.parallel.gradient_ranks(), 0);
    for (const models::ParameterUnit& unit : table.units) {
      if (unit.layer == models::kOutsideOfBlocks) continue;
      blocks.least_bytes = std::min(blocks.least_bytes, unit.count * sizeof(float));
      if (std::none_of(plan.buckets().begin(), plan.buckets().end(),
                       [&unit](const models::Bucket& bucket) { return bucket.layer == unit.layer; })) {
        blocks.without_bucket.insert(unit.layer);
      }
    }
  }
  return blocks;
}

/// A class's recovery replaces that of the whole network.
std::string pointer_to_layers(const json& network, const std::string& class_name) {
  const std::string of_class = "/classes/" + class_name;
  const bool own = network.contains(json::json_pointer(of_class + "/recovery"));
  return "/network" + (own ? of_class : "") + "/recovery/protect/layers";
}

}  // namespace

std::vector<Warning> idle_protection(const json& network, const RunConfig& config) {
  std::vector<Warning> warnings;
  for (const sim::TrafficClass traffic_class : {sim::TrafficClass::kDpGradient, sim::TrafficClass::kParameterGather}) {
    const auto& of_class = config.network.of(traffic_class);
    if (!of_class || of_class->recovery.protect.layers.empty()) continue;
    const Blocks blocks = blocks_of(config);
    std::string idle;
    for (const int layer : of_class->recovery.protect.layers) {
      if (blocks.without_bucket.contains(layer)) idle += (idle.empty() ? "" : ", ") + std::to_string(layer);
    }
    if (idle.empty()) continue;
    // If buckets have at most half a block, at least one bucket lies within each block.
    const std::string half = std::to_string(blocks.least_bytes / 2);
    const std::string name(sim::traffic_class_name(traffic_class));
    warnings.push_back(
        {pointer_to_layers(network, name),
         "no message of " + name + " belongs to layer " + idle +
             ", so protection has no effect there: each bucket with their parameters has those of other layers, too; "
             "want /parallel/bucket_bytes and /parallel/first_bucket_bytes of at most " +
             half + ", half of a block" +
             (config.parallel.pipeline == 1 ? ", or /parallel/zero 2 or 3, where no bucket has two blocks" : ""),
         Warning::About::kRun});
  }
  return warnings;
}

}  // namespace droptest::experiments
