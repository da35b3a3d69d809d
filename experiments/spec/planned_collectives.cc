// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/planned_collectives.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "experiments/spec/pipeline_plan.h"
#include "models/gpt2/gpt2_tensors.h"
#include "models/gpt2/parameter_table.h"
#include "models/gpt2/sequence_messages.h"
#include "models/gpt2/shard_plan.h"
#include "models/gpt2/stage_plan.h"
#include "models/gpt2/token_cut.h"
#include "models/ops/host_ops.h"

namespace droptest::experiments {
namespace {

using comm::ParallelDimension;
using sim::TrafficClass;

/// Whatever the device, message types and shapes follow from the precision.
std::unique_ptr<models::OpsForm> plain_form(const RunConfig& config) {
  models::HostOpsOptions options;
  options.precision.message = config.training.precision.message;
  return models::host_ops_form(options, config.parallel.tensor);
}

bool has_16_bits(models::Precision precision) { return comm::element_bytes(models::element_type(precision)) == 2; }

/// Blocks that a step computes again, over all micro-batches: a backward pass in two parts does it in each.
std::uint64_t blocks_computed_again(const RunConfig& config) {
  const models::SlotOptions memory = slot_options(config);
  const auto blocks = [&memory](const models::StageRange& stage) {
    std::uint64_t number = 0;
    for (int layer = stage.first; layer < stage.last; ++layer) number += memory.sends_again(layer) ? 1 : 0;
    return number;
  };
  const auto plan = pipeline_plan(config);
  if (plan == nullptr) {
    return blocks(models::StageRange::whole(config.model)) * static_cast<std::uint64_t>(config.training.accumulation);
  }
  std::uint64_t number = 0;
  for (const auto& steps : plan->program.ranks) {
    for (const models::PipelineStep& step : steps) {
      if (step.kind != models::PipelineStep::Kind::kCompute || step.action.is_forward()) continue;
      number += blocks(plan->stages[static_cast<std::size_t>(step.action.stage)]);
    }
  }
  return number;
}

/// Tokens of a micro-batch on each sequence rank.
std::vector<std::uint64_t> tokens_of_ranks(const RunConfig& config) {
  std::vector<std::uint64_t> tokens;
  const models::SequenceParts parts = config.model.attention.sequence.parts(config.training.sequence_tokens);
  for (const std::int64_t length : parts.lengths()) {
    tokens.push_back(static_cast<std::uint64_t>(config.training.batch_sequences * length));
  }
  return tokens;
}

/// The same collective with activations of each sequence rank's tokens, in place of `call.elements` those of one token.
std::vector<PlannedCollective> on_sequence_ranks(const RunConfig& config, const comm::FateSimulation& call,
                                                 std::uint64_t times) {
  std::map<std::uint64_t, std::uint64_t> ranks;  // by tokens
  for (const std::uint64_t tokens : tokens_of_ranks(config)) ++ranks[tokens];
  std::vector<PlannedCollective> collectives;
  for (const auto& [tokens, count] : ranks) {
    if (tokens == 0) continue;
    collectives.push_back({call, times * count});
    collectives.back().call.elements = call.elements * tokens;
  }
  return collectives;
}

std::int64_t rows_of_micro_batch(const RunConfig& config) {
  return std::int64_t{config.training.batch_sequences} * std::int64_t{config.training.sequence_tokens};
}

/// The all-gathers and reduce-scatters of a micro-batch with a cut of tokens, as a dry run of each stage lists them.
std::vector<PlannedCollective> of_cut_tokens(const RunConfig& config, const comm::FateSimulation& call) {
  const std::unique_ptr<models::OpsForm> form = plain_form(config);
  const auto plan = pipeline_plan(config);
  const models::BatchShape batch{config.training.batch_sequences, config.training.sequence_tokens};
  std::vector<PlannedCollective> collectives;
  const auto add_stage = [&](const models::StageRange& range, models::Keep keep) {
    const models::StagePlan stage(config.model, range, config.parallel.tensor, 0, *form, batch, keep, {},
                                  slot_options(config));
    for (const auto* list : {&stage.forward_reductions(), &stage.later_reductions()}) {
      for (const models::PlannedReduction& one : *list) {
        if (one.traffic_class != call.traffic_class) continue;
        PlannedCollective planned{call, static_cast<std::uint64_t>(config.parallel.data)};
        const std::uint64_t per_float = sizeof(float) * one.elems / std::max<std::uint64_t>(1, one.bytes);
        planned.call.collective = one.collective;
        planned.call.elements = one.elems / std::max<std::uint64_t>(1, per_float);
        planned.call.counts = one.counts;
        for (std::uint64_t& count : planned.call.counts) count /= std::max<std::uint64_t>(1, per_float);
        const auto alike = std::find_if(collectives.begin(), collectives.end(), [&](const PlannedCollective& other) {
          return other.call.collective == planned.call.collective && other.call.counts == planned.call.counts;
        });
        if (alike == collectives.end()) {
          collectives.push_back(std::move(planned));
        } else {
          alike->times += planned.times;
        }
      }
    }
  };
  if (plan == nullptr) {
    add_stage(models::StageRange::whole(config.model), models::Keep::kForBackward);
  } else {
    for (int stage = 0; stage < static_cast<int>(plan->stages.size()); ++stage) {
      add_stage(plan->stages[static_cast<std::size_t>(stage)], plan->keep_of(stage));
    }
  }
  return collectives;
}

/// The sums of a step of the gradients that each tensor-parallel rank has from its own tokens.
std::vector<PlannedCollective> of_replicated_gradients(const RunConfig& config, const comm::FateSimulation& call) {
  std::vector<PlannedCollective> collectives;
  const std::uint64_t reductions = config.sharding.reduces_each() ? config.training.accumulation : 1;
  for (int pipeline = 0; pipeline < config.parallel.pipeline; ++pipeline) {
    const models::ParameterTable table(tensors_of_rank(config, pipeline, 0));
    for (const models::ReplicatedRun& run : table.replicated_runs()) {
      PlannedCollective sum{call, static_cast<std::uint64_t>(config.parallel.data) * reductions};
      sum.call.elements = run.count;
      collectives.push_back(std::move(sum));
    }
  }
  return collectives;
}

/// Of each layer, and of the embedding or the LM head: docs/models.md.
std::vector<PlannedCollective> of_activations(const RunConfig& config, comm::FateSimulation call) {
  const bool is_narrow = has_16_bits(config.training.precision.message);
  const std::uint64_t messages = call.traffic_class == TrafficClass::kTpRecomputation
                                     ? 2 * blocks_computed_again(config)
                                     : 2 * static_cast<std::uint64_t>(config.model.layers) + 1;
  if (messages == 0) return {};
  if (config.tensor_sequence) {  // the sums of blocks that are computed again
    call.collective = sim::Collective::kReduceScatter;
    const models::TokenCut cut = models::TokenCut::even(rows_of_micro_batch(config), config.parallel.tensor, 0);
    call.counts = cut.elems(config.model.width);
    for (std::uint64_t& count : call.counts) count /= is_narrow ? 2 : 1;
    call.elements = static_cast<std::uint64_t>(cut.rows * config.model.width) / (is_narrow ? 2 : 1);
    return {{std::move(call), messages * static_cast<std::uint64_t>(config.parallel.data)}};
  }
  call.elements = static_cast<std::uint64_t>(config.model.width);
  std::vector<PlannedCollective> collectives =
      on_sequence_ranks(config, call, messages * static_cast<std::uint64_t>(config.parallel.data));
  for (PlannedCollective& planned : collectives) planned.call.elements /= is_narrow ? 2 : 1;
  return collectives;
}

/// One hop is a broadcast to one rank.
std::vector<PlannedCollective> between_stages(const RunConfig& config, comm::FateSimulation call) {
  const auto plan = pipeline_plan(config);
  const bool forward = call.traffic_class == TrafficClass::kPpActivation;
  std::uint64_t hops = 0;
  for (const auto& steps : plan->program.ranks) {
    hops += static_cast<std::uint64_t>(std::count_if(steps.begin(), steps.end(), [&](const models::PipelineStep& step) {
      return step.kind == models::PipelineStep::Kind::kSend && step.action.is_forward() == forward &&
             step.action.micro_batch == 0;
    }));
  }
  call.ranks = 2;
  call.collective = sim::Collective::kBroadcast;
  call.elements = static_cast<std::uint64_t>(config.model.width);
  const std::uint64_t times = hops * static_cast<std::uint64_t>(config.parallel.data);
  std::vector<PlannedCollective> collectives;
  if (config.tensor_sequence) {  // of the tokens of each tensor-parallel rank
    const auto rows = static_cast<std::uint64_t>(rows_of_micro_batch(config));
    for (const std::uint64_t own : comm::even_counts(rows, config.parallel.tensor)) {
      if (own == 0) continue;
      collectives.push_back({call, times});
      collectives.back().call.elements *= own;
    }
  } else {
    collectives = on_sequence_ranks(config, call, times * static_cast<std::uint64_t>(config.parallel.tensor));
  }
  // Stages send activations as they are in memory.
  const bool is_narrow = has_16_bits(config.training.precision.compute) && config.device == Device::kCuda;
  for (PlannedCollective& planned : collectives) planned.call.elements /= is_narrow ? 2 : 1;
  return collectives;
}

/// Of attention in each block. One hop is a broadcast to one rank.
std::vector<PlannedCollective> between_sequence_ranks(const RunConfig& config, comm::FateSimulation call) {
  call.ranks = 2;
  call.collective = sim::Collective::kBroadcast;
  const auto direction = call.traffic_class == TrafficClass::kSequenceForward ? models::PassDirection::kForward
                                                                              : models::PassDirection::kBackward;
  std::map<std::uint64_t, std::uint64_t> messages;  // by elements
  for (int tensor = 0; tensor < config.parallel.tensor; ++tensor) {
    const auto heads = models::gpt2_part(config.model, config.parallel.tensor, tensor).heads;
    const models::AttentionShape whole{config.training.batch_sequences, config.training.sequence_tokens,
                                       static_cast<std::int64_t>(heads.count), config.model.width / config.model.heads};
    for (const models::SequenceMessage& message :
         models::sequence_messages(config.model.attention, whole, static_cast<std::int64_t>(heads.first), direction)) {
      ++messages[message.elems];
    }
  }
  // Attention sends activations as they are in memory.
  const bool is_narrow = has_16_bits(config.training.precision.compute) && config.device == Device::kCuda;
  std::vector<PlannedCollective> collectives;
  for (const auto& [elems, count] : messages) {
    collectives.push_back({call, count * static_cast<std::uint64_t>(config.model.layers * config.parallel.data)});
    collectives.back().call.elements = is_narrow ? (elems + 1) / 2 : elems;
  }
  return collectives;
}

/// Of the whole run: a sum and a gather in each step, and a gather of the starting weights. None where one rank has the
/// embedding and the LM head.
std::vector<PlannedCollective> of_tied_embedding(const RunConfig& config, comm::FateSimulation call) {
  if (config.model.classifies()) return {};  // whose head has weights of its own
  const auto plan = pipeline_plan(config);
  const int distance = plan->rank_of(static_cast<int>(plan->stages.size()) - 1) - plan->rank_of(0);
  if (distance == 0) return {};
  call.ranks = 2;
  call.rank_stride = std::abs(distance) * config.parallel.stride(ParallelDimension::kPipeline);
  // A frozen one is not sent.
  const auto groups = updates_tied_embedding(config) ? static_cast<std::uint64_t>(config.parallel.gradient_ranks()) : 0;
  std::vector<PlannedCollective> collectives;
  for (int tensor = 0; tensor < config.parallel.tensor; ++tensor) {
    const models::Gpt2Part part = models::gpt2_part(config.model, config.parallel.tensor, tensor);
    call.elements = part.vocabulary.count * static_cast<std::uint64_t>(config.model.width);
    // All of it is the rank's with the head.
    call.counts = {call.elements, 0};
    if (distance > 0) std::swap(call.counts[0], call.counts[1]);
    call.collective = sim::Collective::kReduceScatter;
    collectives.push_back({call, groups * config.training.steps});
    call.collective = sim::Collective::kAllGather;
    collectives.push_back({call, groups * (config.training.steps + 1)});
  }
  return collectives;
}

/// The world ranks whose gradients are averaged with those of rank 0.
std::vector<int> gradient_group(const comm::ParallelLayout& layout) {
  std::vector<int> ranks;
  for (int data = 0; data < layout.data; ++data) {
    for (int sequence = 0; sequence < layout.sequence; ++sequence) ranks.push_back(layout.rank({data, sequence, 0, 0}));
  }
  return ranks;
}

std::vector<PlannedCollective> of_buckets(const RunConfig& config, comm::FateSimulation call) {
  const bool shards = config.sharding.shards_state();
  call.collective = call.traffic_class == TrafficClass::kParameterGather ? sim::Collective::kAllGather
                    : shards                                             ? sim::Collective::kReduceScatter
                                                                         : sim::Collective::kAllReduce;
  std::map<std::vector<std::uint64_t>, std::size_t> known;  // blocks are alike
  std::vector<PlannedCollective> collectives;
  for (int part = 0; part < config.parallel.tensor * config.parallel.pipeline; ++part) {
    const models::ParameterTable table(
        tensors_of_rank(config, part / config.parallel.tensor, part % config.parallel.tensor));
    const models::ShardPlan plan(table, sizeof(float), config.sharding, config.parallel.gradient_ranks(), 0);
    for (const models::Bucket& bucket : plan.buckets()) {
      call.elements = bucket.count;
      if (shards) call.counts = bucket.counts;
      std::vector<std::uint64_t> key = call.counts;
      key.push_back(bucket.count);
      const auto [found, is_new] = known.try_emplace(std::move(key), collectives.size());
      if (is_new) collectives.push_back({call, 0});
      ++collectives[found->second].times;
    }
  }
  return collectives;
}

/// All messages of a run: `times` counts its outer steps, too.
std::vector<PlannedCollective> of_outer_steps(const RunConfig& config, const comm::FateSimulation& call) {
  std::vector<PlannedCollective> collectives;
  for (int part = 0; part < config.parallel.tensor * config.parallel.pipeline; ++part) {
    std::vector<std::uint64_t> sizes;
    for (const models::Gpt2Tensor& tensor :
         tensors_of_rank(config, part / config.parallel.tensor, part % config.parallel.tensor)) {
      if (!tensor.is_copy) sizes.push_back(tensor.slice.local_elems());
    }
    for (const models::OuterFragment& fragment : models::outer_fragments(config.outer, sizes)) {
      PlannedCollective mean{call, 0};
      mean.call.elements = fragment.elems;
      for (std::uint64_t step = 1; step <= config.training.steps; ++step) {
        if (fragment.starts_at(step, config.outer.every_steps)) ++mean.times;
      }
      if (mean.times > 0) collectives.push_back(std::move(mean));
    }
  }
  return collectives;
}

}  // namespace

bool updates_tied_embedding(const RunConfig& config) {
  const std::vector<models::Gpt2Tensor> tensors = models::gpt2_tensors(config.model, 1, 0);
  return !std::ranges::find(tensors, models::kTiedTensor, &models::Gpt2Tensor::name)->is_frozen();
}

std::optional<TrafficClass> scattered_class(const RunConfig& config) {
  if (!config.sharding.shards_state()) return std::nullopt;
  return TrafficClass::kDpGradient;
}

std::optional<TrafficClass> exchanged_class(const RunConfig& config) {
  if (config.parallel.sequence == 1) return std::nullopt;
  return TrafficClass::kSequenceBackward;
}

std::vector<PlannedCollective> planned_collectives(const RunConfig& config, TrafficClass traffic_class) {
  comm::FateSimulation call;
  call.traffic_class = traffic_class;
  const auto of_group = [&](ParallelDimension dimension) {
    call.ranks = config.parallel.of(dimension);
    call.rank_stride = config.parallel.stride(dimension);
    return call.ranks > 1;
  };
  switch (traffic_class) {
    case TrafficClass::kTpForward:
    case TrafficClass::kTpBackward:
    case TrafficClass::kTpRecomputation:
      if (!of_group(ParallelDimension::kTensor)) return {};
      if (config.tensor_sequence && traffic_class != TrafficClass::kTpRecomputation) {
        return of_cut_tokens(config, call);
      }
      return of_activations(config, std::move(call));
    case TrafficClass::kSequenceForward:
    case TrafficClass::kSequenceBackward:
      if (of_group(ParallelDimension::kSequence)) return between_sequence_ranks(config, std::move(call));
      if (traffic_class == TrafficClass::kSequenceForward || !config.tensor_sequence) return {};
      if (!of_group(ParallelDimension::kTensor)) return {};
      return of_replicated_gradients(config, call);
    case TrafficClass::kDpGradient:
    case TrafficClass::kParameterGather:
      call.ranks = config.parallel.gradient_ranks();
      if (call.ranks == 1) return {};
      call.world_ranks = gradient_group(config.parallel);
      if (traffic_class == TrafficClass::kParameterGather && !config.sharding.shards_state()) return {};
      if (config.outer.is_on()) return {};
      return of_buckets(config, std::move(call));
    case TrafficClass::kOuter:
      if (!config.outer.is_on() || !of_group(ParallelDimension::kData)) return {};
      return of_outer_steps(config, call);
    case TrafficClass::kPpActivation:
    case TrafficClass::kPpGradient:
      if (!of_group(ParallelDimension::kPipeline)) return {};
      return between_stages(config, std::move(call));
    case TrafficClass::kEmbeddingGradient:
      if (!of_group(ParallelDimension::kPipeline)) return {};
      return of_tied_embedding(config, call);
    default:
      return {};
  }
}

}  // namespace droptest::experiments
