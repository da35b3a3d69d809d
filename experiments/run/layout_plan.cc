// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/layout_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "comm/call.h"
#include "experiments/files/weights_file.h"
#include "experiments/spec/dry_run.h"
#include "experiments/spec/model_options.h"
#include "experiments/spec/pipeline_plan.h"
#include "models/gpt2/gpt2_tensors.h"
#include "models/gpt2/gpt2_weights.h"
#include "models/gpt2/shard_plan.h"
#include "models/gpt2/stage_plan.h"
#include "models/pipeline/schedule_csv.h"
#include "models/pipeline/schedule_timing.h"

namespace droptest::experiments {
namespace {

using comm::ParallelDimension;
using comm::ParallelLayout;
using comm::ParallelNumbers;
using nlohmann::json;

/// The stages from the embedding to the head; a run without a pipeline has one.
std::vector<models::StageRange> stages_of(const RunConfig& config) {
  const auto plan = pipeline_plan(config);
  return plan == nullptr ? std::vector{models::StageRange::whole(config.model)} : plan->stages;
}

/// The stages of a rank with that coordinate.
std::vector<int> stages_of_rank(const RunConfig& config, int pipeline) {
  const auto plan = pipeline_plan(config);
  return plan == nullptr ? std::vector{0} : plan->stages_of(pipeline);
}

/// The options of a plan that lists the collectives of one forward and one backward pass.
models::SlotOptions options_without_repeats(const RunConfig& config) {
  models::SlotOptions options;
  options.tensor_sequence = config.tensor_sequence;
  return options;
}

models::StagePlan stage_plan(const RunConfig& config, const models::StageRange& stage, int tensor,
                             const models::BatchShape& batch) {
  return {config.model,
          stage,
          config.parallel.tensor,
          tensor,
          *ops_form(config),
          batch,
          models::Keep::kForBackward,
          models::SentPast{},
          options_without_repeats(config)};
}

json numbers_json(const ParallelNumbers& numbers) {
  json object;
  for (const ParallelDimension dimension : comm::kParallelDimensions) {
    object[std::string(name_of(dimension))] = numbers.of(dimension);
  }
  return object;
}

/// The ranks that meet in that dimension, in its order; `at` has any coordinate there.
std::vector<int> group_of(const ParallelLayout& layout, ParallelDimension dimension, ParallelNumbers at) {
  std::vector<int> group;
  for (at.of(dimension) = 0; at.of(dimension) < layout.of(dimension); ++at.of(dimension)) {
    group.push_back(layout.rank(at));
  }
  return group;
}

/// Dimension -> its groups, in the order of their first ranks. Dimensions of one rank have none.
json groups_json(const ParallelLayout& layout) {
  json groups = json::object();
  const int ranks = layout.world_size();
  for (const ParallelDimension dimension : comm::kParallelDimensions) {
    if (layout.of(dimension) == 1) continue;
    json& list = groups[std::string(name_of(dimension))] = json::array();
    for (int rank = 0; rank < ranks; ++rank) {
      const ParallelNumbers at = layout.coordinates(rank);
      if (at.of(dimension) == 0) list.push_back(group_of(layout, dimension, at));
    }
  }
  return groups;
}

/// The previous and the next rank of each group, as a ring. The ends of a pipeline have no such rank.
json neighbours_json(const ParallelLayout& layout, const ParallelNumbers& at) {
  json neighbours = json::object();
  for (const ParallelDimension dimension : comm::kParallelDimensions) {
    const int extent = layout.of(dimension);
    if (extent == 1) continue;
    const auto shifted = [&](int by) -> json {
      const int to = at.of(dimension) + by;
      if (dimension == ParallelDimension::kPipeline && (to < 0 || to >= extent)) return nullptr;
      ParallelNumbers other = at;
      other.of(dimension) = (to + extent) % extent;
      return layout.rank(other);
    };
    neighbours[std::string(name_of(dimension))] = {{"previous", shifted(-1)}, {"next", shifted(1)}};
  }
  return neighbours;
}

/// The parameters of the ranks that share stages of a pipeline and a part of their layers.
struct Part {
  models::ParameterTable table;
  models::ShardPlan plan;
  std::vector<std::uint64_t> owned;  ///< elements that each replica updates

  /// Elements that a rank has, with the copy of another stage's embedding.
  std::uint64_t held() const {
    std::uint64_t elems = table.trained_elems;
    for (std::size_t i = 0; i < table.tensors.size(); ++i) {
      if (table.tensors[i].is_copy) elems += table.ranges[i].count - models::padding_of(table.tensors[i]);
    }
    return elems;
  }

  Part(const RunConfig& config, int pipeline, int tensor)
      : table(tensors_of_rank(config, pipeline, tensor)),
        plan(table, sizeof(float), config.sharding, config.parallel.gradient_ranks(), 0),
        owned(static_cast<std::size_t>(config.parallel.gradient_ranks()), table.trained_elems) {
    if (!config.sharding.shards_state()) return;
    std::fill(owned.begin(), owned.end(), 0);
    for (const models::Bucket& bucket : plan.buckets()) {
      for (std::size_t d = 0; d < owned.size(); ++d) owned[d] += bucket.counts[d];
    }
  }
};

using Parts = std::vector<std::vector<Part>>;  ///< parts by [pipeline coordinate][tensor-parallel coordinate]

json ranks_json(const RunConfig& config, const Parts& parts) {
  const ParallelLayout& layout = config.parallel;
  const std::vector<models::StageRange> stages = stages_of(config);
  const models::SequenceParts tokens = config.model.attention.sequence.parts(config.training.sequence_tokens);
  std::vector<std::vector<int>> stages_of_ranks;
  for (int p = 0; p < layout.pipeline; ++p) stages_of_ranks.push_back(stages_of_rank(config, p));
  json ranks = json::array();
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    const ParallelNumbers at = layout.coordinates(rank);
    const Part& part = parts[static_cast<std::size_t>(at.pipeline)][static_cast<std::size_t>(at.tensor)];
    json blocks = json::array();
    for (const int stage : stages_of_ranks[static_cast<std::size_t>(at.pipeline)]) {
      blocks.push_back({stages[static_cast<std::size_t>(stage)].first, stages[static_cast<std::size_t>(stage)].end});
    }
    ranks.push_back({{"rank", rank},
                     {"coordinates", numbers_json(at)},
                     {"neighbours", neighbours_json(layout, at)},
                     {"blocks", std::move(blocks)},
                     {"parameters", part.held()},
                     {"updated_parameters", part.owned[static_cast<std::size_t>(layout.gradient_rank(at))]}});
    if (layout.sequence == 1) continue;
    json& ranges = ranks.back()["tokens"] = json::array();
    for (const models::PositionRange& range : tokens.ranges(at.sequence)) {
      ranges.push_back({range.begin, range.begin + range.count});
    }
  }
  return ranks;
}

std::string sharding_of(const models::Gpt2Tensor& tensor) {
  if (tensor.placement == models::Placement::kReplicated) return "replicated";
  if (tensor.name == "wte.weight") return "vocabulary-parallel";
  if (tensor.name == models::kClassTensor) return "class-parallel";
  return tensor.slice.full_shape.size() == 2 && tensor.slice.axis == 0 ? "row-parallel" : "column-parallel";
}

/// The stages that use a tensor.
json stages_with(const models::Gpt2Tensor& tensor, const std::vector<models::StageRange>& stages,
                 const models::Gpt2Config& model) {
  json numbers = json::array();
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const models::StageRange& stage = stages[s];
    const bool of_block = stage.first <= tensor.layer && tensor.layer < stage.end;
    const bool of_embedding = stage.has_embedding() && (tensor.name == "wte.weight" || tensor.name == "wpe.weight");
    const std::string outputs = model.classifies() ? models::kClassTensor : "wte.weight";
    const bool of_head = stage.has_head() && (tensor.name == outputs || tensor.name.starts_with("ln_f."));
    if (of_block || of_embedding || of_head) numbers.push_back(s);
  }
  return numbers;
}

/// The whole model's tensors; one that two stages hold is in the list once.
json tensors_json(const RunConfig& config, const Parts& parts) {
  const std::vector<models::StageRange> stages = stages_of(config);
  json list = json::array();
  for (const models::Gpt2Tensor& tensor : models::gpt2_tensors(config.model, 1, 0)) {
    json on_ranks = json::array();
    std::string sharding;
    for (std::size_t p = 0; p < parts.size() && on_ranks.empty(); ++p) {
      const std::vector<models::Gpt2Tensor>& held = parts[p][0].table.tensors;
      const auto found = std::find_if(held.begin(), held.end(),
                                      [&](const models::Gpt2Tensor& t) { return t.name == tensor.name && !t.is_copy; });
      if (found == held.end()) continue;
      const auto i = static_cast<std::size_t>(found - held.begin());
      sharding = config.parallel.tensor == 1 ? "replicated" : sharding_of(*found);
      for (const Part& part : parts[p]) {
        on_ranks.push_back(
            {{"shape", part.table.tensors[i].slice.local_shape()}, {"parameters", part.table.trained[i]}});
      }
    }
    list.push_back({{"name", tensor.name},
                    {"shape", tensor.slice.full_shape},
                    {"sharding", sharding},
                    {"stages", stages_with(tensor, stages, config.model)},
                    {"of_tensor_rank", on_ranks}});
  }
  return list;
}

/// "h.0.attn.c_attn.weight" -> "h.0.attn.c_attn".
std::string layer_name(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

/// The layer that a call belongs to, by the name of its message.
std::string layer_of(const comm::DryCall& call) {
  if (call.name.starts_with("cross_entropy.")) return "lm_head";
  for (const std::string_view suffix : {".backward", ".input"}) {
    if (call.name.ends_with(suffix)) return call.name.substr(0, call.name.size() - suffix.size());
  }
  return call.name;
}

/// Collectives of a layer with equal names are one entry with their sum: an LM head works in chunks of rows.
json calls_json(const std::vector<comm::DryCall>& all, const std::string& layer, bool backward) {
  json list = json::array();
  for (const comm::DryCall& one : all) {
    const bool is_backward = one.traffic_class == sim::TrafficClass::kTpBackward;
    if (layer_of(one) != layer || is_backward != backward) continue;
    const auto same = std::find_if(list.begin(), list.end(), [&](const json& e) { return e["message"] == one.name; });
    if (same != list.end()) {
      (*same)["calls"] = (*same)["calls"].get<std::uint64_t>() + 1;
      (*same)["bytes"] = (*same)["bytes"].get<std::uint64_t>() + one.bytes();
      continue;
    }
    list.push_back({{"collective", comm::operation_name(one.operation)},
                    {"class", sim::traffic_class_name(one.traffic_class)},
                    {"message", one.name},
                    {"calls", 1},
                    {"bytes", one.bytes()}});
  }
  return list;
}

/// A line for each layer of each stage: its collectives of one micro-batch over tensor-parallel ranks, and the patterns
/// of a step over replicas.
json layers_json(const RunConfig& config) {
  const bool replicas = config.parallel.gradient_ranks() > 1;
  const models::ShardOptions& sharding = config.sharding;
  const std::string gradients = !replicas ? "none" : sharding.shards_state() ? "reduce_scatter" : "all_reduce";
  const std::string parameters = !sharding.shards_state()   ? "none"
                                 : sharding.shards_values() ? "all_gather in both passes"
                                                            : "all_gather after the update";
  json list = json::array();
  const models::SequenceParts tokens = config.model.attention.sequence.parts(config.training.sequence_tokens);
  const std::vector<models::StageRange> stages = stages_of(config);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const models::StageRange& range = stages[s];
    std::vector<comm::DryCall> calls;
    if (config.parallel.tensor > 1) {
      const models::StagePlan plan =
          stage_plan(config, range, 0, {config.training.batch_sequences, tokens.length_of(tokens.longest_rank())});
      calls = plan.forward_calls();
      calls.insert(calls.end(), plan.later_calls().begin(), plan.later_calls().end());
    }
    const auto add = [&](const std::string& layer, bool has_parameters) {
      list.push_back({{"layer", layer},
                      {"stage", s},
                      {"forward", calls_json(calls, layer, false)},
                      {"backward", calls_json(calls, layer, true)},
                      {"gradients", has_parameters ? gradients : "none"},
                      {"parameters", has_parameters ? parameters : "none"}});
    };
    std::string before;
    for (const models::Gpt2Tensor& tensor : models::stage_tensors(config.model, range, config.parallel.tensor, 0)) {
      const std::string layer = layer_name(tensor.name);
      if (layer == before || (layer == "wte" && !range.has_embedding())) continue;
      add(layer, !tensor.is_copy);
      before = layer;
    }
    if (range.has_head()) add("lm_head", !range.has_embedding());  // else its weight is the embedding's
  }
  return list;
}

json buckets_json(const Parts& parts) {
  json list = json::array();
  for (std::size_t p = 0; p < parts.size(); ++p) {
    for (std::size_t t = 0; t < parts[p].size(); ++t) {
      json buckets = json::array();
      for (const models::Bucket& bucket : parts[p][t].plan.buckets()) {
        buckets.push_back({{"gradients", bucket.gradients},
                           {"parameters", bucket.parameters},
                           {"elements", bucket.count},
                           {"of_data_rank", bucket.counts}});
      }
      if (!buckets.empty()) list.push_back({{"pipeline", p}, {"tensor", t}, {"buckets", buckets}});
    }
  }
  return list;
}

std::uint64_t bytes_to_others(const std::vector<comm::DryCall>& calls) {
  std::uint64_t bytes = 0;
  for (const comm::DryCall& call : calls) {
    for (const std::uint64_t elems : message_elems(call).sent) bytes += elems * comm::element_bytes(call.type);
  }
  return bytes;
}

/// Bytes that each rank of the first replica and tensor-parallel rank sends in one block's attention of a micro-batch.
json sequence_json(const RunConfig& config) {
  const models::SequenceLayout& layout = config.model.attention.sequence;
  json forward = json::array();
  json backward = json::array();
  const LazyDryRun run(config);
  for (int rank = 0; rank < config.parallel.sequence; ++rank) {
    std::uint64_t sent = 0;
    std::uint64_t given_back = 0;
    if (config.parallel.sequence > 1) {
      const RankKind& kind = run.get().kind_of({.data = 0, .sequence = rank, .pipeline = 0, .tensor = 0});
      sent = bytes_to_others(kind.attention_forward);
      given_back = bytes_to_others(kind.attention_backward) / static_cast<std::uint64_t>(kind.micro_batches);
    }
    forward.push_back(sent);
    backward.push_back(given_back);
  }
  return {{"ulysses", layout.factors.ulysses},
          {"ring", layout.factors.ring},
          {"zigzag", layout.order == models::SequenceLayout::Order::kZigzag},
          {"forward_bytes", std::move(forward)},
          {"backward_bytes", std::move(backward)}};
}

/// Null without a pipeline. Times are those of links without a cost; the work of a rank in a step is 1 on average.
json schedule_json(const RunConfig& config) {
  if (config.parallel.pipeline == 1) return nullptr;
  const auto plan = pipeline_plan(config);
  const models::PipelineSchedule schedule = pipeline_schedule(config);
  const models::ScheduleTiming timing = models::time_actions(schedule, [&](const models::Action& action) {
    return compute_share(config, plan->stages[static_cast<std::size_t>(action.stage)], action.kind);
  });
  json rows = json::array();
  for (const auto& row : timing.ranks) {
    json& actions = rows.emplace_back(json::array());
    for (const models::TimedAction& timed : row) {
      actions.push_back({{"action", timed.action.text()}, {"begin", timed.begin}, {"end", timed.end}});
    }
  }
  return {{"csv", models::csv_of(schedule)},
          {"makespan", timing.makespan()},
          {"idle_share", timing.bubble_share()},
          {"in_flight", models::peaks(schedule)},
          {"ranks", std::move(rows)}};
}

}  // namespace

json layout_plan(const RunConfig& config) {
  Parts parts;
  for (int p = 0; p < config.parallel.pipeline; ++p) {
    std::vector<Part>& stage = parts.emplace_back();
    for (int t = 0; t < config.parallel.tensor; ++t) stage.emplace_back(config, p, t);
  }
  json order = json::array();
  for (const ParallelDimension dimension : config.parallel.order) order.push_back(name_of(dimension));
  json layout = numbers_json(config.parallel);
  layout["order"] = std::move(order);
  layout["zero"] = config.sharding.zero;
  layout["world_size"] = config.parallel.world_size();
  json plan = {{"layout", std::move(layout)},        {"groups", groups_json(config.parallel)},
               {"ranks", ranks_json(config, parts)}, {"tensors", tensors_json(config, parts)},
               {"layers", layers_json(config)},      {"buckets", buckets_json(parts)},
               {"schedule", schedule_json(config)}};
  if (config.parallel.sequence > 1) plan["sequence"] = sequence_json(config);
  return plan;
}

std::string check_shapes(const RunConfig& config) {
  const std::vector<models::StageRange> stages = stages_of(config);
  std::string text = "shapes fit: a forward pass of one token on " +
                     std::to_string(stages.size() * static_cast<std::size_t>(config.parallel.tensor)) +
                     " parts of the model";
  for (const models::StageRange& stage : stages) {
    for (int t = 0; t < config.parallel.tensor; ++t) (void)stage_plan(config, stage, t, {1, 1});
  }
  if (config.initial_weights.empty()) return text;
  models::check_gpt2_weights(config.model, read_weights(config.initial_weights), config.initial_weights,
                             models::MissingHead::kStays);
  return text + ", and all tensors of " + config.initial_weights;
}

}  // namespace droptest::experiments
