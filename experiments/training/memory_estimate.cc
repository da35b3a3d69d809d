// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/memory_estimate.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>

#include "comm/lossy/recovery_rules.h"
#include "experiments/spec/dry_run.h"
#include "experiments/spec/kernels_in_use.h"
#include "experiments/spec/memory_strategy.h"
#include "experiments/spec/model_options.h"
#include "experiments/spec/pipeline_plan.h"
#include "experiments/spec/rank_calls.h"
#include "experiments/training/layer_memory.h"
#include "experiments/training/training_model.h"
#include "models/attention/stateful_attention.h"
#include "models/gpt2/gpt2_tensors.h"
#include "models/gpt2/planned_memory.h"
#include "models/gpt2/shard_plan.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMebi = std::uint64_t{1} << 20U;
constexpr std::uint64_t kProgramBytes = 40 * kMebi;   ///< a process's code, libraries and records
constexpr std::uint64_t kWorkspaceBytes = 6 * kMebi;  ///< a rank's stacks, statistics and small buffers
// A little more than one H100 had in use beyond the model and the loss layer: 600 MB with one rank, 1,014 MB with
// eight.
constexpr std::uint64_t kContextBytes = 600'000'000;    ///< a process's CUDA context, code of kernels and libraries
constexpr std::uint64_t kRankDeviceBytes = 64'000'000;  ///< a rank's 32 MiB of products, statistics and staging
constexpr std::uint64_t kCudnnBytes = 250'000'000;      ///< a process's code of cuDNN: a margin, not measured
constexpr std::uint64_t kBucketsAtOnce = 3;             ///< a rank's copies of gradients or parameters on their way
constexpr std::uint64_t kAbsurdBytes = std::uint64_t{1} << 62U;  ///< the size of a model that no machine holds

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

/// The bytes of a process on a device beyond those of its ranks.
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

/// The largest bucket of any rank. A bucket has at least one chunk, and with zero 3 the size of a gather.
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

/// The bytes of a rank while it takes its first weights: offloaded parameters are in memory then, activations are not.
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
  if (gathers_inputs_again(config) && !why_inputs_differ(config).empty()) return false;
  return !config.memory.place.cut || why_ranks_differ(config).empty();
}

models::AttentionShape attention_shape(const RunConfig& config, const comm::ParallelNumbers& at) {
  return {config.training.batch_sequences, config.training.sequence_tokens,
          static_cast<std::int64_t>(models::gpt2_part(config.model, config.parallel.tensor, at.tensor).heads.count),
          config.model.width / config.model.heads};
}

/// The largest rate of missing packets of a link. Losses that depend on time are not counted.
double largest_rate(const comm::HalfNetwork& half) {
  double rate = comm::residual_rate(half).value_or(half.loss == nullptr ? 0 : half.loss->loss_rate());
  for (const comm::LinkOverride& link : half.links) {
    if (link.loss != nullptr) rate = std::max(rate, link.loss->loss_rate());
  }
  return rate;
}

/// Expected bytes of the ranges of lost elements in `messages` messages of `elems` elements each. 0 for a class with
/// lost elements that have a gradient.
double stopped_bytes(const RunConfig& config, sim::TrafficClass traffic_class, comm::ElementType type,
                     std::uint64_t elems, std::uint64_t messages) {
  const auto& network = config.network.of(traffic_class);
  if (!network || comm::lost_gradient_of(traffic_class, *network) != comm::LostGradient::kZero) return 0;
  const auto packets = static_cast<double>(network->packets(type, elems).packets());
  return largest_rate(network->gather) * packets * static_cast<double>(messages) * sizeof(sim::ElementRange);
}

/// The messages that a sequence rank receives in the forward pass of a block.
struct Received {
  double packets = 0;
  double elems = 0;
};

/// The messages to the rank with these coordinates; absent if no packet is lost.
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

/// Expected bytes that a rank saves about its losses from a forward pass to the backward pass: the ranges of lost
/// elements, and on a ring the values in their place. Upper bounds: a range may be of several packets, and each rank is
/// counted as the one with the worst links.
std::uint64_t lost_element_bytes(const RunConfig& config, comm::ElementType type, const models::PassUse& passes,
                                 const std::optional<Received>& received) {
  const std::uint64_t states = passes.states + 1;  // one more for all evaluations
  double kept = 0;
  if (config.parallel.pipeline > 1) {
    kept += stopped_bytes(config, sim::TrafficClass::kPpActivation, type, residual_elems(config), passes.slots);
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

/// The memory of passes on single ranks. The model's own part is equal on ranks with the same part of the model and
/// equally many tokens, and is planned once.
class PassUses {
 public:
  PassUses(const RunConfig& config, const models::OpsForm& form, const models::PipelinePlan* plan,
           const LazyDryRun& run)
      : config_(config), form_(form), plan_(plan), run_(run) {}

  /// The use of the rank with these coordinates. Its memory is at least kAbsurdBytes for a model that no machine holds.
  models::PassUse of(const comm::ParallelNumbers& at) const {
    const models::BatchShape shape = shape_on_rank(config_, at.sequence);
    const auto [model, is_new] = of_model_.try_emplace({at.pipeline, at.tensor, shape.length});
    if (is_new) {
      model->second = models::pass_use(config_.model, {config_.parallel.tensor, at.tensor, plan_, at.pipeline}, form_,
                                       shape, slot_options(config_));
    }
    models::PassUse use = model->second;
    if (use.memory >= kAbsurdBytes) return use;
    const models::StatefulAttentionUse attention = of_attention(at, use.states);
    use.memory += attention.memory +
                  lost_element_bytes(config_, form_.types().activations, use, received_in_block(config_, run_, at));
    use.stored += attention.stored;
    return use;
  }

 private:
  models::StatefulAttentionUse of_attention(const comm::ParallelNumbers& at, std::uint64_t states) const {
    const auto [attention, is_new] = of_attention_.try_emplace({at.pipeline, at.tensor, at.sequence});
    if (is_new) {
      attention->second = models::stateful_attention_use(config_.model.attention, at.sequence,
                                                         attention_shape(config_, at), states, form_);
    }
    return attention->second;
  }

  const RunConfig& config_;
  const models::OpsForm& form_;
  const models::PipelinePlan* plan_;
  const LazyDryRun& run_;
  // Results that later calls reuse.
  mutable std::map<std::tuple<int, int, std::int64_t>, models::PassUse> of_model_;
  mutable std::map<std::tuple<int, int, int>, models::StatefulAttentionUse> of_attention_;
};

/// Makes the estimates of single ranks, without of_process.
class RankEstimates {
 public:
  explicit RankEstimates(const RunConfig& config)
      : config_(config),
        form_(ops_form(config)),
        plan_(pipeline_plan(config)),
        run_(config),
        passes_(config, *form_, plan_.get(), run_) {}

  MemoryEstimate of(const comm::ParallelNumbers& at) const {
    MemoryEstimate own;
    const std::vector<models::Gpt2Tensor> tensors = tensors_of_rank(config_, at.pipeline, at.tensor);
    own.model = models::state_use(tensors, *form_, config_.sharding, config_.parallel.gradient_ranks(),
                                  config_.parallel.gradient_rank(at), config_.training.optimizer);
    const models::PassUse passes = passes_.of(at);
    own.model.activations = passes.memory;
    if (own.model.activations >= kAbsurdBytes) return own;
    own.slot = passes.largest_slot;
    own.slots = passes.slots;
    own.offloaded = passes.stored;
    own.offload = passes.passing;
    own.loss_layer = layer().remembered;
    own.collectives = layer().messages;
    std::uint64_t elems = 0;
    for (const models::Gpt2Tensor& tensor : tensors) elems += tensor.is_copy ? 0 : tensor.slice.local_elems();
    own.outer = models::outer_bytes(config_.outer, elems);
    return own;
  }

  /// The sequence ranks with that pipeline coordinate by kind: a rank of each kind, and the number of such ranks. Those
  /// with as many tokens and activations are of one kind.
  std::vector<std::pair<comm::ParallelNumbers, int>> kinds_of_sequence_ranks(int pipeline_rank) const {
    std::map<std::pair<std::int64_t, std::uint64_t>, std::pair<comm::ParallelNumbers, int>> kinds;
    comm::ParallelNumbers at{.data = 0, .sequence = 0, .pipeline = pipeline_rank, .tensor = 0};
    for (; at.sequence < config_.parallel.sequence; ++at.sequence) {
      ++kinds.try_emplace({shape_on_rank(config_, at.sequence).length, passes_.of(at).memory}, at, 0)
            .first->second.second;
    }
    std::vector<std::pair<comm::ParallelNumbers, int>> all;
    for (const auto& [key, kind] : kinds) all.push_back(kind);
    return all;
  }

  /// The bytes of the device for a rank with these coordinates.
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
  mutable std::optional<LayerMemory> layer_;  ///< absent until layer() is called
  PassUses passes_;
};

}  // namespace

std::uint64_t largest_activation_bytes(const RunConfig& config, const models::OpsForm& form,
                                       const models::PipelinePlan* plan, const LazyDryRun& run, int pipeline_rank) {
  const PassUses passes(config, form, plan, run);
  std::uint64_t most = 0;
  for (int sequence = 0; sequence < config.parallel.sequence; ++sequence) {
    most = std::max(most, passes.of({.data = 0, .sequence = sequence, .pipeline = pipeline_rank, .tensor = 0}).memory);
  }
  return most;
}

std::uint64_t message_buffer_bytes(const RunConfig& config) {
  const std::uint64_t residual_bytes = residual_elems(config) * sizeof(float);
  std::uint64_t bytes = kBucketsAtOnce * largest_bucket_bytes(config);
  if (config.parallel.tensor > 1) bytes += residual_bytes;
  // Keys, values and their gradients travel.
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
      MemoryEstimate own = estimates.of(at);
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
  const auto memory_of = [&](std::int64_t sequences) {
    RunConfig other = config;
    other.training.batch_sequences = static_cast<int>(sequences);
    return static_cast<double>(estimate_memory(other).of_process);
  };
  const auto limit = static_cast<double>(bytes);
  constexpr std::int64_t kMost = std::int64_t{1} << 20;
  std::int64_t below = 0;  // this batch fits
  std::int64_t above = std::min(kMost, kMostRows / config.training.sequence_tokens + 1);
  double of_one = 0;
  double slope = 0;
  // Memory is nearly linear in the batch: a line through one sequence and the last guess leads to the next one.
  constexpr int kMostLines = 12;
  for (int guesses = 0; above - below > 1; ++guesses) {
    std::int64_t guess = below + (above - below) / 2;
    if (guesses < 2) {
      guess = below + 1;
    } else if (guesses < kMostLines && slope > 0) {
      const double at = std::min(1 + (limit - of_one) / slope, static_cast<double>(kMost));
      guess = std::clamp(static_cast<std::int64_t>(at), below + 1, above - 1);
    }
    const double memory = memory_of(guess);
    (memory <= limit ? below : above) = guess;
    if (guess == 1) of_one = memory;
    if (guess > 1) slope = (memory - of_one) / static_cast<double>(guess - 1);
  }
  return static_cast<int>(below);
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
    const models::MemoryUse use = models::state_use(tensors_of_rank(config, p, 0), *form, config.sharding,
                                                    config.parallel.gradient_ranks(), 0, config.training.optimizer);
    bytes += use.parameters + use.gradients + use.optimizer;
  }
  return bytes * static_cast<std::uint64_t>(config.parallel.tensor) *
         static_cast<std::uint64_t>(config.parallel.gradient_ranks());
}

std::string memory_that_fits(const RunConfig& config, std::uint64_t bytes) {
  const auto fits = [bytes](const RunConfig& other) {
    // If the state is too large by itself, activations need no plan.
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
