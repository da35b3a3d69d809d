// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/section_resolvers.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "comm/json/json_text.h"
#include "comm/json/read_file.h"
#include "experiments/spec/pipeline_plan.h"
#include "experiments/spec/section_members.h"
#include "models/gpt2/shard_plan.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

class ParallelResolver {
 public:
  explicit ParallelResolver(Resolution& resolution)
      : resolution_(resolution),
        parallel_(resolution.spec["parallel"]),
        given_(resolution.given.value("parallel", json::object())),
        config_(resolution.config) {}

  void resolve() {
    config_.parallel.tensor = parallel_["tensor"].get<int>();
    config_.parallel.data = parallel_["data"].get<int>();
    config_.parallel.pipeline = parallel_["pipeline"].get<int>();
    config_.parallel.sequence = parallel_["sequence"].get<int>();
    resolve_sequence();
    resolve_tensor_sequence();
    models::ShardOptions& sharding = config_.sharding;
    read_members(parallel_, sharding);
    if (sharding.zero > 0 && config_.parallel.gradient_ranks() == 1) {
      report("/parallel/zero", "got " + comm::quote_json(parallel_["zero"]) +
                                   ", want 0, or 2 replicas or more in /parallel/data, which share state out");
    }
    if (sharding.zero < 2 && parallel_["reduce"] == "after_each") {
      report("/parallel/reduce", R"(got "after_each", want "after_last", or /parallel/zero 2 or 3)");
    }
    resolve_order(parallel_["order"]);
    resolve_pipeline();
    if (config_.parallel.data == 1) parallel_.erase("data");
    if (config_.parallel.gradient_ranks() == 1) {
      for (const char* of_replicas : {"zero", "bucket_bytes", "first_bucket_bytes", "gather_bucket_bytes", "reduce"}) {
        parallel_.erase(of_replicas);
      }
    }
    // Equal runs have equal resolved specs.
    if (sharding.zero == 3) {
      for (const char* of_gradients : {"bucket_bytes", "first_bucket_bytes"}) parallel_.erase(of_gradients);
    } else {
      parallel_.erase("gather_bucket_bytes");
    }
    const comm::ParallelLayout& layout = config_.parallel;
    if (std::max({layout.tensor, layout.data, layout.pipeline, layout.sequence}) ==
        layout.tensor * layout.data * layout.pipeline * layout.sequence) {
      parallel_.erase("order");
    }
    try {
      (void)config_.parallel.world_size();
    } catch (const ConfigError& error) {
      resolution_.errors.push_back(resolution_.where + ": " + error.what());
    }
  }

 private:
  void report(const std::string& pointer, const std::string& message) { resolution_.report(pointer, message); }

  void resolve_tensor_sequence() {
    config_.tensor_sequence = parallel_["tensor_sequence"].get<bool>();
    if (config_.tensor_sequence && config_.parallel.tensor == 1) {
      report("/parallel/tensor_sequence",
             "got true with /parallel/tensor 1, want several tensor-parallel ranks, which cut the tokens, or false");
    }
    if (config_.tensor_sequence && config_.parallel.sequence > 1) {
      report("/parallel/tensor_sequence",
             "got true with /parallel/sequence " + std::to_string(config_.parallel.sequence) +
                 ", want one of the two: each cuts the tokens of a replica over its ranks");
      config_.tensor_sequence = false;
    }
    if (!config_.tensor_sequence) parallel_.erase("tensor_sequence");
  }

  /// A name becomes factors; one rank has none.
  void resolve_sequence() {
    const int ranks = config_.parallel.sequence;
    if (ranks == 1) {
      if (given_.contains("sequence_kind")) {
        report("/parallel/sequence_kind", "got " + comm::quote_json(given_["sequence_kind"]) +
                                              ", which one rank has no use for, want it absent, or 2 ranks or more in "
                                              "/parallel/sequence");
      }
      parallel_.erase("sequence");
      parallel_.erase("sequence_kind");
      return;
    }
    json& kind = parallel_["sequence_kind"];
    if (kind.is_null()) kind = "ulysses";
    if (kind.is_string()) {
      const bool by_heads = kind == "ulysses";
      kind = {{"ulysses", by_heads ? ranks : 1}, {"ring", by_heads ? 1 : ranks}, {"zigzag", kind == "zigzag"}};
    } else if (!kind.contains("zigzag")) {
      kind["zigzag"] = false;
    }
    models::SequenceLayout& layout = config_.model.attention.sequence;
    layout.factors = {kind["ulysses"].get<int>(), kind["ring"].get<int>()};
    if (kind["zigzag"] == true) layout.order = models::SequenceLayout::Order::kZigzag;
    if (std::int64_t{layout.factors.ulysses} * layout.factors.ring != ranks) {
      report("/parallel/sequence_kind", "got ulysses " + std::to_string(layout.factors.ulysses) + " x ring " +
                                            std::to_string(layout.factors.ring) + ", want a product of " +
                                            std::to_string(ranks) + ", the ranks of /parallel/sequence");
      layout = {{1, ranks}};
      return;
    }
    // The fewest heads of a tensor-parallel rank.
    const int heads = config_.model.heads / config_.parallel.tensor;
    if (heads < layout.factors.ulysses) {
      report("/parallel/sequence_kind", "got " + std::to_string(layout.factors.ulysses) + " Ulysses ranks for " +
                                            std::to_string(heads) +
                                            " attention heads of a tensor-parallel rank, want at least one head for "
                                            "each, or \"ring\"");
      layout = {{1, ranks}};
    }
    // Equal runs have equal resolved specs: a ring of one has no order.
    if (layout.factors.ring == 1) {
      layout.order = models::SequenceLayout::Order::kConsecutive;
      kind["zigzag"] = false;
    }
  }

  /// Leaves them out in a run without a pipeline.
  void resolve_pipeline() {
    PipelineConfig& pipeline = config_.pipeline;
    if (config_.parallel.pipeline == 1) {
      for (const char* of_pipeline : {"schedule", "chunks", "layers_per_stage"}) {
        if (given_.contains(of_pipeline)) {
          report(std::string("/parallel/") + of_pipeline,
                 "got " + comm::quote_json(given_[of_pipeline]) +
                     ", which one rank has no use for, want it absent, or 2 ranks "
                     "or more in /parallel/pipeline");
        }
        parallel_.erase(of_pipeline);
      }
      parallel_.erase("pipeline");
      return;
    }
    if (config_.sharding.zero > 1) {
      report("/parallel/zero", "got " + comm::quote_json(parallel_["zero"]) + ", want 0 or 1 with /parallel/pipeline " +
                                   comm::quote_json(parallel_["pipeline"]));
    }
    pipeline.layers_per_stage = parallel_.value("layers_per_stage", std::vector<int>{});
    pipeline.chunks = parallel_["chunks"].get<int>();
    json& schedule = parallel_["schedule"];
    if (schedule.is_string()) {
      for (const models::ScheduleKindName& kind : models::schedule_kinds()) {
        if (schedule == kind.name) pipeline.schedule = kind.kind;
      }
      return;
    }
    if (given_.contains("chunks")) {
      report("/parallel/chunks", "got " + comm::quote_json(parallel_["chunks"]) +
                                     ", want it absent, since the rows of /parallel/schedule name the stages");
    }
    parallel_.erase("chunks");
    if (schedule.size() != 1) {
      report("/parallel/schedule", "got " + schedule.dump() + ", want either a file or rows");
      return;
    }
    if (schedule.contains("file")) {
      try {
        schedule = {{"rows", lines_of(comm::read_file(schedule["file"].get<std::string>()))}};
      } catch (const ConfigError& error) {
        report("/parallel/schedule/file", error.what());
        return;
      }
    }
    pipeline.rows = schedule["rows"].get<std::vector<std::string>>();
  }

  void resolve_order(const json& order) {
    std::vector<std::string> sorted = order.get<std::vector<std::string>>();
    std::sort(sorted.begin(), sorted.end());
    if (sorted != std::vector<std::string>{"data", "pipeline", "sequence", "tensor"}) {
      report("/parallel/order",
             "got " + comm::quote_json(order) + R"(, want each of "pipeline", "sequence", "tensor" and "data" once)");
      return;
    }
    for (std::size_t i = 0; i < order.size(); ++i) {
      for (const comm::ParallelDimension dimension : comm::kParallelDimensions) {
        if (order[i] == comm::name_of(dimension)) config_.parallel.order[i] = dimension;
      }
    }
  }

  Resolution& resolution_;
  json& parallel_;
  const json given_;  ///< the section as the spec has it
  RunConfig& config_;
};

}  // namespace

void resolve_parallel(Resolution& resolution) { ParallelResolver(resolution).resolve(); }

void resolve_stages(Resolution& resolution) {
  RunConfig& config = resolution.config;
  if (config.parallel.pipeline == 1) return;
  if (config.device == Device::kCuda) {
    resolution.report("/parallel/pipeline",
                      "got " + std::to_string(config.parallel.pipeline) +
                          R"( with device "cuda", want 1: pipelines of GPUs are planned, not built)");
    return;
  }
  config.training.accumulation = resolution.spec["training"]["accumulation"].get<int>();
  try {
    const auto plan = pipeline_plan(config);
    config.pipeline.layers_per_stage.clear();
    for (const models::StageRange& stage : plan->stages) config.pipeline.layers_per_stage.push_back(stage.count());
    resolution.spec["parallel"]["layers_per_stage"] = config.pipeline.layers_per_stage;
  } catch (const ConfigError& error) {
    resolution.errors.push_back(resolution.where + ": " + error.what());
  }
}

}  // namespace droptest::experiments
