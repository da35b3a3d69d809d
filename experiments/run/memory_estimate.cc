// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/memory_estimate.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>

#include "comm/lossy/recovery_rules.h"
#include "experiments/run/layer_memory.h"
#include "experiments/run/training_model.h"
#include "experiments/spec/dry_run.h"
#include "experiments/spec/model_options.h"
#include "experiments/spec/pipeline_plan.h"
#include "experiments/spec/rank_calls.h"
#include "experiments/spec/resolve_kernels.h"
#include "experiments/spec/resolve_memory.h"
#include "models/gpt2/gpt2_tensors.h"
#include "models/gpt2/shard_plan.h"
#include "models/gpt2/stage_plan.h"
#include "models/ops/offload_file.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMebi = std::uint64_t{1} << 20U;
constexpr std::uint64_t kProgramBytes = 40 * kMebi;   ///< of a process: code, libraries and records
constexpr std::uint64_t kWorkspaceBytes = 6 * kMebi;  ///< of a rank: stacks, statistics, small buffers
constexpr std::uint64_t kExpectedReads = 2;           ///< of an offload file at once
// A little more than one H100 had in use beyond the model and the loss layer: 600 MB with one rank, 1,014 MB with
// eight.
constexpr std::uint64_t kContextBytes = 600'000'000;    ///< of a process: CUDA's context, code of kernels and libraries
constexpr std::uint64_t kRankDeviceBytes = 64'000'000;  ///< of a rank: 32 MiB of products, statistics, staging
constexpr std::uint64_t kCudnnBytes = 250'000'000;      ///< of a process, for code of cuDNN: a margin, not measured
constexpr std::uint64_t kBucketsAtOnce = 3;             ///< of a rank: copies of gradients or parameters on their way
constexpr std::uint64_t kAbsurdBytes = std::uint64_t{1} << 62U;  ///< of a model that no machine holds

/// The data of a process: a mapped file of tokens; for each byte of a text a token of two bytes; for each byte of
/// labelled texts a token of four bytes and the byte itself.
std::uint64_t data_bytes(const DataConfig& data) {
  const auto size_of = [](const std::string& file) -> std::uint64_t {
    std::error_code missing;
    const std::uintmax_t bytes = std::filesystem::file_size(file, missing);
    return missing ? 0 : bytes;
  };
  if (data.examples) return 5 * (size_of(data.examples->training) + size_of(data.examples->validation));
  return data.text.empty() ? size_of(data.tokens) : 2 * size_of(data.text);
}

/// Of a process on a device.
std::uint64_t context_bytes(const RunConfig& config) { return kContextBytes + (uses_cudnn(config) ? kCudnnBytes : 0); }

models::SequenceParts sequence_parts(const RunConfig& config) {
  return config.model.attention.sequence.parts(config.training.sequence_tokens);
}

/// A micro-batch on the ranks of that sequence coordinate.
models::BatchShape shape_on_rank(const RunConfig& config, int sequence) {
  return {config.training.batch_sequences, sequence_parts(config).length_of(sequence)};
}

/// Numbers of the residual stream of a micro-batch on a rank with the most tokens.
std::uint64_t residual_elems(const RunConfig& config) {
  const models::BatchShape shape = shape_on_rank(config, sequence_parts(config).longest_rank());
  return static_cast<std::uint64_t>(shape.rows()) * static_cast<std::uint64_t>(config.model.width);
}

/// Of all ranks: a bucket has at least one chunk, and with zero 3 the size of a gather.
std::uint64_t largest_bucket_bytes(const RunConfig& config) {
  if (config.parallel.gradient_ranks() == 1 || config.outer.is_on()) return 0;
  std::uint64_t elems = 0;
  for (int part = 0; part < config.parallel.tensor * config.parallel.pipeline; ++part) {
    const models::ParameterTable table(
        tensors_of_rank(config, part / config.parallel.tensor, part % config.parallel.tensor));
    const models::ShardPlan plan(table, sizeof(float), config.sharding, config.parallel.gradient_ranks(), 0);
    for (const models::Bucket& bucket : plan.buckets()) elems = std::max<std::uint64_t>(elems, bucket.count);
  }
  return elems * sizeof(float);
}

/// Working memory of a rank's products on the CPU: oneDNN packs the operand of the widest one, B T 4 C / k floats.
std::uint64_t packed_operand_bytes(const RunConfig& config) {
  const std::int64_t hidden = 4 * config.model.width / config.parallel.tensor;
  const models::BatchShape shape = shape_on_rank(config, sequence_parts(config).longest_rank());
  return static_cast<std::uint64_t>(shape.rows() * hidden) * sizeof(float);
}

/// The whole model on rank 0 when a run writes its weights.
std::uint64_t written_weights_bytes(const RunConfig& config) {
  if (config.record.weights == RecordConfig::Weights::kNone) return 0;
  std::uint64_t elems = 0;
  for (const models::Gpt2Tensor& tensor : models::gpt2_tensors(config.model, 1, 0)) elems += tensor.slice.local_elems();
  return elems * sizeof(float);
}

/// The stages of a rank with their slots.
struct OwnStages {
  std::vector<models::StagePlan> plans;
  std::vector<std::uint64_t> slots;
};

OwnStages stages_of(const RunConfig& config, const models::OpsForm& form, const models::PipelinePlan* plan,
                    const comm::ParallelNumbers& at) {
  const models::SlotOptions options = slot_options(config);
  const models::BatchShape shape = shape_on_rank(config, at.sequence);
  const int tensor = config.parallel.tensor;
  OwnStages own;
  if (plan == nullptr) {
    own.plans.emplace_back(config.model, models::StageRange::whole(config.model), tensor, at.tensor, form, shape,
                           models::Keep::kForBackward, models::SentPast{}, options);
    own.slots.push_back(1);
    return own;
  }
  for (const int stage : plan->stages_of(at.pipeline)) {
    const auto s = static_cast<std::size_t>(stage);
    own.plans.emplace_back(config.model, plan->stages[s], tensor, at.tensor, form, shape, plan->keep_of(stage),
                           plan->sent_past_of(stage), options);
    own.slots.push_back(static_cast<std::uint64_t>(plan->program.slots[s]));
  }
  return own;
}

/// Residual streams of all blocks of these stages that leave the slots, in bytes of one slot; and the largest.
std::pair<std::uint64_t, std::uint64_t> residuals_away(const RunConfig& config, const models::OpsForm& form,
                                                       const comm::ParallelNumbers& at, int stages) {
  const MemoryConfig& memory = config.memory;
  if (!memory.place.offloaded || memory.recompute != models::Recompute::kBlock) return {0, 0};
  auto rows = static_cast<std::uint64_t>(shape_on_rank(config, at.sequence).rows());
  if (config.tensor_sequence) rows = comm::even_counts(rows, config.parallel.tensor).front();
  std::uint64_t bytes =
      rows * static_cast<std::uint64_t>(config.model.width) * comm::element_bytes(form.types().activations);
  if (memory.place.cut)
    bytes = (bytes + config.parallel.tensor - 1) / static_cast<std::uint64_t>(config.parallel.tensor);
  const int blocks = config.model.layers / memory.every / std::max(1, config.parallel.pipeline);
  const int residuals = std::max(0, 2 * blocks - (memory.every == 1 ? stages : 0));
  return {bytes * static_cast<std::uint64_t>(residuals), bytes};
}

/// Of a rank while it takes its first weights: those of offloaded parameters are in memory then, activations are not.
std::uint64_t at_start(const RunConfig& config, const models::MemoryUse& model) {
  if (!config.sharding.offloads_values) return 0;
  const std::uint64_t stored =
      config.sharding.offloads_moments
          ? model.offloaded / (1 + static_cast<std::uint64_t>(config.training.optimizer.moments()))
          : model.offloaded;
  return model.total() - model.activations + stored;
}

json to_json(const MemoryEstimate& estimate) {
  return {{"parameters", estimate.model.parameters},
          {"gradients", estimate.model.gradients},
          {"optimizer", estimate.model.optimizer},
          {"activations", estimate.model.activations},
          {"slot", estimate.slot},
          {"slots", estimate.slots},
          {"offload_buffers", estimate.offload + estimate.model.offload},
          {"offloaded", estimate.offloaded + estimate.model.offloaded},
          {"collectives", estimate.collectives},
          {"loss_layer", estimate.loss_layer},
          {"outer", estimate.outer},
          {"total", estimate.total()},
          {"context", estimate.context},
          {"process", estimate.of_process}};
}

RunConfig with_strategy(const RunConfig& config, const MemoryStrategy& strategy) {
  RunConfig other = config;
  other.memory = memory_of_strategy(strategy, config);
  return other;
}

/// The last strategy that the run can have, with parameters and optimizer state offloaded, too.
RunConfig with_all_offloaded(const RunConfig& config) {
  const bool recomputes = why_recomputation_differs(config).empty() && why_inputs_differ(config).empty();
  RunConfig other = with_strategy(config, recomputes ? kMemoryStrategies.back() : kMemoryStrategies.front());
  if (!why_ranks_differ(config).empty()) other.memory.place.cut = false;
  other.sharding.offloads_moments = true;
  other.sharding.offloads_values = !models::freezes_any(config.model);
  return other;
}

/// Whether the way to save memory would leave the results as they are.
bool is_possible(const RunConfig& config) {
  if (config.memory.recompute != models::Recompute::kSaveAll && !why_recomputation_differs(config).empty())
    return false;
  if (config.memory.recompute == models::Recompute::kBlock && !why_inputs_differ(config).empty()) return false;
  return !config.memory.place.cut || why_ranks_differ(config).empty();
}

models::AttentionShape attention_shape(const RunConfig& config, const comm::ParallelNumbers& at) {
  return {config.training.batch_sequences, config.training.sequence_tokens,
          static_cast<std::int64_t>(models::gpt2_part(config.model, config.parallel.tensor, at.tensor).heads.count),
          config.model.width / config.model.heads};
}

/// Of an attention with state: one of each block and slot, and one of all evaluations.
std::uint64_t attention_states(const RunConfig& config, const models::PipelinePlan* plan,
                               const comm::ParallelNumbers& at) {
  std::uint64_t states = 1;
  if (plan == nullptr) states += static_cast<std::uint64_t>(config.model.layers);
  for (const int stage : plan == nullptr ? std::vector<int>() : plan->stages_of(at.pipeline)) {
    const auto s = static_cast<std::size_t>(stage);
    states += static_cast<std::uint64_t>(plan->stages[s].count() * plan->program.slots[s]);
  }
  return states;
}

/// The largest rate of missing packets of a link. Losses that depend on time are not counted.
double largest_rate(const comm::HalfNetwork& half) {
  double rate = comm::residual_rate(half).value_or(half.loss == nullptr ? 0 : half.loss->loss_rate());
  for (const comm::LinkOverride& link : half.links) {
    if (link.loss != nullptr) rate = std::max(rate, link.loss->loss_rate());
  }
  return rate;
}

/// Expected bytes of the ranges of lost elements in `messages` messages of so many elements each, of a class whose lost
/// elements have no gradient.
double stopped_bytes(const RunConfig& config, sim::TrafficClass traffic_class, comm::ElementType type,
                     std::uint64_t elems, std::uint64_t messages) {
  const auto& network = config.network.of(traffic_class);
  if (!network || comm::lost_gradient_of(traffic_class, *network) != comm::LostGradient::kZero) return 0;
  const auto packets = static_cast<double>(network->packets(type, elems).packets());
  return largest_rate(network->gather) * packets * static_cast<double>(messages) * sizeof(sim::ElementRange);
}

/// What a sequence rank receives in the forward pass of a block.
struct Received {
  double packets = 0;
  double elems = 0;
};

/// On the rank with these coordinates; absent where no packet is lost.
std::optional<Received> received_in_block(const RunConfig& config, const LazyDryRun& run,
                                          const comm::ParallelNumbers& at) {
  const auto& network = config.network.of(sim::TrafficClass::kSequenceForward);
  if (config.parallel.sequence == 1 || !network) return std::nullopt;
  Received received;
  for (const comm::DryCall& call : run.get().kind_of(at).attention_forward) {
    for (const std::uint64_t elems : message_elems(call).received) {
      received.packets += static_cast<double>(network->packets(call.type, elems).packets());
      received.elems += static_cast<double>(elems);
    }
  }
  return received;
}

/// Expected bytes of what a rank keeps of its losses from a forward pass to the backward pass: the ranges of lost
/// elements, and on a ring the values in their place. Upper ends: a range may be of several packets, and each rank is
/// counted as the one with the worst links.
std::uint64_t lost_element_bytes(const RunConfig& config, const models::OpsForm& form, const models::PipelinePlan* plan,
                                 const comm::ParallelNumbers& at, const std::optional<Received>& received) {
  const comm::ElementType type = form.types().activations;
  const std::uint64_t states = attention_states(config, plan, at);
  double kept = 0;
  if (plan != nullptr) {
    std::uint64_t slots = 0;
    for (const int stage : plan->stages_of(at.pipeline)) {
      slots += static_cast<std::uint64_t>(plan->program.slots[static_cast<std::size_t>(stage)]);
    }
    kept += stopped_bytes(config, sim::TrafficClass::kPpActivation, type, residual_elems(config), slots);
  }
  // The inputs of both sublayers; that of the head is one of them at most.
  if (config.tensor_sequence) {
    kept += stopped_bytes(config, sim::TrafficClass::kTpForward, type, residual_elems(config), 2 * states);
  }
  if (!received) return static_cast<std::uint64_t>(kept);
  const auto& network = config.network.of(sim::TrafficClass::kSequenceForward);
  const models::AttentionOptions& attention = config.model.attention;
  const bool is_ring = attention.branches.empty() && attention.sequence.factors.ring > 1;
  const bool keeps_values = is_ring && network->gather.rule().source != comm::FillRule::Source::kAbsent;
  const bool stops = comm::lost_gradient_of(sim::TrafficClass::kSequenceForward, *network) == comm::LostGradient::kZero;
  double of_state = 0;
  if (stops || keeps_values) of_state += received->packets * sizeof(sim::ElementRange);
  if (keeps_values) of_state += received->elems * static_cast<double>(comm::element_bytes(type));
  return static_cast<std::uint64_t>(kept + largest_rate(network->gather) * of_state * static_cast<double>(states));
}

/// Computes the bytes of activations of single ranks. The model's own are equal on ranks with the same part of the
/// model and equally many tokens, and are planned once.
class Activations {
 public:
  Activations(const RunConfig& config, const models::OpsForm& form, const models::PipelinePlan* plan,
              const LazyDryRun& run)
      : config_(config), form_(form), plan_(plan), run_(run) {}

  /// The bytes on the rank with these coordinates; at least kAbsurdBytes for a model that no machine holds.
  std::uint64_t of(const comm::ParallelNumbers& at) const {
    const models::BatchShape shape = shape_on_rank(config_, at.sequence);
    const auto [planned, is_new] = planned_.try_emplace({at.pipeline, at.tensor, shape.length});
    if (is_new) planned->second = of_model(at, shape);
    if (planned->second >= kAbsurdBytes) return planned->second;
    return planned->second + attention_use(config_, form_, plan_, at).memory +
           lost_element_bytes(config_, form_, plan_, at, received_in_block(config_, run_, at));
  }

 private:
  std::uint64_t of_model(const comm::ParallelNumbers& at, const models::BatchShape& shape) const {
    const models::SlotOptions options = slot_options(config_);
    const int tensor = config_.parallel.tensor;
    return plan_ == nullptr ? models::Gpt2::activation_bytes(config_.model, tensor, at.tensor, form_, shape, options)
                            : models::Gpt2::stage_activation_bytes(config_.model, tensor, at.tensor, form_, shape,
                                                                   *plan_, at.pipeline, options);
  }

  const RunConfig& config_;
  const models::OpsForm& form_;
  const models::PipelinePlan* plan_;
  const LazyDryRun& run_;
  /// Results that later calls reuse: by pipeline coordinate, tensor coordinate and number of tokens.
  mutable std::map<std::tuple<int, int, std::int64_t>, std::uint64_t> planned_;
};

/// Makes the estimates of single ranks, without of_process.
class RankEstimates {
 public:
  explicit RankEstimates(const RunConfig& config)
      : config_(config),
        form_(ops_form(config)),
        plan_(pipeline_plan(config)),
        run_(config),
        activations_(config, *form_, plan_.get(), run_) {}

  MemoryEstimate of(const comm::ParallelNumbers& at) const {
    MemoryEstimate own;
    const std::vector<models::Gpt2Tensor> tensors = tensors_of_rank(config_, at.pipeline, at.tensor);
    own.model =
        models::ParameterStore::memory_use(tensors, *form_, config_.sharding, config_.parallel.gradient_ranks(),
                                           config_.parallel.gradient_rank(at), config_.training.optimizer.moments());
    own.model.activations = activations_.of(at);
    if (own.model.activations >= kAbsurdBytes) return own;
    own.offload =
        (models::OffloadFile::kMostWrites + kExpectedReads) * residuals_away(config_, *form_, at, /*stages=*/1).second;
    own.loss_layer = layer().remembered;
    own.collectives = layer().messages;
    std::uint64_t elems = 0;
    for (const models::Gpt2Tensor& tensor : tensors) elems += tensor.is_copy ? 0 : tensor.slice.local_elems();
    own.outer = models::outer_bytes(config_.outer, elems);
    return own;
  }

  /// That of of(), with the slots of its stages and what leaves them.
  MemoryEstimate with_slots(const comm::ParallelNumbers& at) const {
    MemoryEstimate own = of(at);
    if (own.model.activations >= kAbsurdBytes) return own;
    const OwnStages stages = stages_of(config_, *form_, plan_.get(), at);
    own.slots = 0;
    for (std::size_t i = 0; i < stages.plans.size(); ++i) {
      own.slot = std::max(own.slot, stages.plans[i].saved().bytes());
      own.slots += stages.slots[i];
    }
    const std::uint64_t away = residuals_away(config_, *form_, at, static_cast<int>(stages.plans.size())).first;
    own.offloaded = away * own.slots / stages.plans.size() + attention_use(config_, *form_, plan_.get(), at).stored;
    return own;
  }

  /// The sequence ranks with that pipeline coordinate by kind: a rank of each kind, and the number of such ranks. Those
  /// with as many tokens and activations are of one kind.
  std::vector<std::pair<comm::ParallelNumbers, int>> kinds_of_sequence_ranks(int pipeline_rank) const {
    std::map<std::pair<std::int64_t, std::uint64_t>, std::pair<comm::ParallelNumbers, int>> kinds;
    comm::ParallelNumbers at{.data = 0, .sequence = 0, .pipeline = pipeline_rank, .tensor = 0};
    for (; at.sequence < config_.parallel.sequence; ++at.sequence) {
      ++kinds.try_emplace({shape_on_rank(config_, at.sequence).length, activations_.of(at)}, at, 0)
            .first->second.second;
    }
    std::vector<std::pair<comm::ParallelNumbers, int>> all;
    for (const auto& [key, kind] : kinds) all.push_back(kind);
    return all;
  }

  /// Of the device, for a rank with these coordinates.
  std::uint64_t on_device(const comm::ParallelNumbers& at) const {
    const MemoryEstimate own = of(at);
    if (own.model.activations >= kAbsurdBytes) return kAbsurdBytes;
    return own.total() - own.outer - layer().on_host + kRankDeviceBytes;
  }

 private:
  const LayerMemory& layer() const {
    if (!layer_) layer_ = layer_memory(config_, run_);
    return *layer_;
  }

  const RunConfig& config_;
  std::unique_ptr<models::OpsForm> form_;
  std::shared_ptr<const models::PipelinePlan> plan_;
  LazyDryRun run_;
  mutable std::optional<LayerMemory> layer_;  ///< from when it is first asked for
  Activations activations_;
};

}  // namespace

models::StatefulAttentionUse attention_use(const RunConfig& config, const models::OpsForm& form,
                                           const models::PipelinePlan* plan, const comm::ParallelNumbers& at) {
  const models::AttentionOptions& attention = config.model.attention;
  if (!attention.is_stateful()) return {};
  return models::stateful_attention_use(
      attention, at.sequence, attention_shape(config, at), form.types().activations, attention_states(config, plan, at),
      {config.device == Device::kCuda ? models::KernelDevice::kCuda : models::KernelDevice::kHost,
       config.backend.threads_per_rank});
}

std::uint64_t largest_activation_bytes(const RunConfig& config, const models::OpsForm& form,
                                       const models::PipelinePlan* plan, const LazyDryRun& run, int pipeline_rank) {
  const Activations activations(config, form, plan, run);
  std::uint64_t most = 0;
  for (int sequence = 0; sequence < config.parallel.sequence; ++sequence) {
    most = std::max(most, activations.of({.data = 0, .sequence = sequence, .pipeline = pipeline_rank, .tensor = 0}));
  }
  return most;
}

std::uint64_t message_buffer_bytes(const RunConfig& config) {
  const std::uint64_t residual_bytes = residual_elems(config) * sizeof(float);
  std::uint64_t bytes = kBucketsAtOnce * largest_bucket_bytes(config);
  if (config.parallel.tensor > 1) bytes += residual_bytes;
  // Keys, values and their gradients that travel.
  if (config.parallel.sequence > 1) bytes += 4 * residual_bytes / static_cast<std::uint64_t>(config.parallel.tensor);
  return bytes;
}

std::uint64_t run_device_bytes(const RunConfig& config) {
  const RankEstimates estimates(config);
  const std::uint64_t messages = message_buffer_bytes(config);
  // Ranks with the same part of the model and of the sequences are alike.
  std::map<std::tuple<int, int, int>, std::uint64_t> known;
  std::uint64_t of_all = 0;
  std::uint64_t largest = 0;
  for (int rank = 0; rank < config.parallel.world_size(); ++rank) {
    const comm::ParallelNumbers at = config.parallel.coordinates(rank);
    const int shard = config.sharding.shards_state() ? config.parallel.gradient_rank(at) : 0;
    std::uint64_t& bytes = known[{at.tensor, at.sequence, shard}];
    if (bytes == 0) bytes = estimates.on_device(at) + messages;
    largest = std::max(largest, bytes);
    of_all += bytes;
    if (of_all >= kAbsurdBytes) return kAbsurdBytes;
  }
  return context_bytes(config) + (config.backend.name == "local" ? of_all : largest);
}

MemoryEstimate estimate_memory(const RunConfig& config) {
  const RankEstimates estimates(config);
  MemoryEstimate most;
  std::uint64_t of_all = 0;
  for (int p = 0; p < config.parallel.pipeline; ++p) {
    for (const auto& [at, ranks] : estimates.kinds_of_sequence_ranks(p)) {
      MemoryEstimate own = estimates.with_slots(at);
      if (own.model.activations >= kAbsurdBytes) {
        own.of_process = own.model.activations;
        return own;
      }
      of_all += static_cast<std::uint64_t>(ranks) * std::max(own.total(), at_start(config, own.model));
      if (own.total() >= most.total()) most = own;
    }
  }
  const auto alike =
      static_cast<std::uint64_t>(config.parallel.tensor) * static_cast<std::uint64_t>(config.parallel.data);
  const bool is_local = config.backend.name == "local";
  const auto ranks = static_cast<std::uint64_t>(is_local ? config.parallel.world_size() : 1);
  if (config.device == Device::kCuda) most.context = context_bytes(config);
  most.of_process = config.device == Device::kCuda
                        ? run_device_bytes(config)
                        : (is_local ? alike * of_all : most.total()) +
                              ranks * (kWorkspaceBytes + packed_operand_bytes(config)) + written_weights_bytes(config) +
                              kProgramBytes + data_bytes(config.data);
  return most;
}

int largest_micro_batch(const RunConfig& config, std::uint64_t bytes) {
  const auto fits = [&](int sequences) {
    if (std::int64_t{sequences} * std::int64_t{config.training.sequence_tokens} > kMostRows) return false;
    RunConfig other = config;
    other.training.batch_sequences = sequences;
    return estimate_memory(other).of_process <= bytes;
  };
  constexpr int kMost = 1 << 20;
  int below = 0;
  int above = 1;
  while (above < kMost && fits(above)) below = std::exchange(above, 2 * above);
  while (above - below > 1) {
    const int middle = below + (above - below) / 2;
    (fits(middle) ? below : above) = middle;
  }
  return below;
}

json memory_plan_json(const RunConfig& config, std::optional<std::uint64_t> bytes) {
  const auto plan_of = [&](const RunConfig& one) {
    json members = to_json(estimate_memory(one));
    if (bytes) members["largest_micro_batch"] = largest_micro_batch(one, *bytes);
    return members;
  };
  json out = plan_of(config);
  for (const MemoryStrategy& strategy : kMemoryStrategies) {
    const RunConfig other = with_strategy(config, strategy);
    if (is_possible(other)) out["strategies"][std::string(strategy.name)] = plan_of(other);
  }
  out["all_offloaded"] = plan_of(with_all_offloaded(config));
  return out;
}

std::uint64_t state_bytes(const RunConfig& config) {
  const std::unique_ptr<models::OpsForm> form = ops_form(config);
  std::uint64_t bytes = 0;
  for (int p = 0; p < config.parallel.pipeline; ++p) {
    const auto use =
        models::ParameterStore::memory_use(tensors_of_rank(config, p, 0), *form, config.sharding,
                                           config.parallel.gradient_ranks(), 0, config.training.optimizer.moments());
    bytes += use.parameters + use.gradients + use.optimizer;
  }
  return bytes * static_cast<std::uint64_t>(config.parallel.tensor) *
         static_cast<std::uint64_t>(config.parallel.gradient_ranks());
}

std::string memory_that_fits(const RunConfig& config, std::uint64_t bytes) {
  const auto fits = [bytes](const RunConfig& other) {
    // Activations of models whose state alone is too large need no plan.
    return state_bytes(other) <= bytes && estimate_memory(other).of_process <= bytes;
  };
  for (const MemoryStrategy& strategy : kMemoryStrategies) {
    const RunConfig other = with_strategy(config, strategy);
    if (is_possible(other) && fits(other)) return json(strategy.name).dump();
  }
  const RunConfig offloaded = with_all_offloaded(config);
  if (!fits(offloaded)) return "";
  const bool recomputes = offloaded.memory.recompute != models::Recompute::kSaveAll;
  const MemoryStrategy& strategy = recomputes ? kMemoryStrategies.back() : kMemoryStrategies.front();
  json section = {{"strategy", strategy.name}, {"offload_optimizer", true}};
  if (offloaded.sharding.offloads_values) section["offload_parameters"] = true;
  if (strategy.cut && !why_ranks_differ(config).empty()) section["cut"] = false;
  return section.dump();
}

}  // namespace droptest::experiments
