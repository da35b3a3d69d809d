// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/numerics_version.h"

#include <algorithm>
#include <array>

#include "comm/lossy/clock/group_timeline.h"
#include "comm/lossy/fill/reduction_fill.h"
#include "comm/lossy/paths/path_registry.h"
#include "experiments/spec/dry_run.h"
#include "experiments/spec/kernels_in_use.h"
#include "models/gpt2/gpt2_tensors.h"
#include "models/kernels/weight_layout.h"

namespace droptest::experiments {
namespace {

struct Change {
  int version;
  std::string_view what;
  bool (*concerns)(const RunConfig& config);
};

bool loses_between_stages(const RunConfig& config) {
  constexpr std::array kBetweenStages = {sim::TrafficClass::kPpActivation, sim::TrafficClass::kPpGradient};
  return config.parallel.pipeline > 1 && std::ranges::any_of(kBetweenStages, [&config](sim::TrafficClass of) {
           const auto& network = config.network.of(of);
           return network && comm::can_lose(network->gather);
         });
}

/// Rings without Ulysses, and so dilated attention, lose only keys and values, which `absent` leaves out of the
/// softmax: they have no gradient anyway.
bool loses_in_sequences(const RunConfig& config) {
  const auto& network = config.network.of(sim::TrafficClass::kSequenceForward);
  if (config.parallel.sequence == 1 || !network || !comm::can_lose(network->gather)) return false;
  if (comm::lost_gradient_of(sim::TrafficClass::kSequenceForward, *network) == comm::LostGradient::kStraightThrough) {
    return false;
  }
  const bool loses_keys_alone = config.model.attention.sequence.factors.ulysses == 1;
  return network->gather.rule().source != comm::FillRule::Source::kAbsent || !loses_keys_alone;
}

/// Whether a sum without elements takes time, as an aggregation does.
bool times_empty_sums(const RunConfig& config, sim::TrafficClass of) {
  const auto& network = config.network.of(of);
  return config.time && network && comm::path_entry(network->path_of(0)).route == comm::Route::kAggregated;
}

/// Whether losses or times depend on the stage that owns the tied embedding; the first stage only has a copy of it. A
/// frozen embedding sends nothing to the other stage (in version 1: sums without elements), and the copy is no part of
/// outer steps either.
bool shows_owner_of_tied_embedding(const RunConfig& config) {
  if (!shares_tied_embedding(config)) return false;
  if (config.outer.fragments > 1 || config.network.of(sim::TrafficClass::kOuter)) return true;
  if (!updates_tied_embedding(config)) return times_empty_sums(config, sim::TrafficClass::kEmbeddingGradient);
  constexpr std::array kOfParameters = {sim::TrafficClass::kDpGradient, sim::TrafficClass::kParameterGather,
                                        sim::TrafficClass::kEmbeddingGradient};
  return config.training.flag_loss_rate > 0 ||
         std::ranges::any_of(kOfParameters, [&](sim::TrafficClass of) { return config.network.of(of).has_value(); });
}

/// Whether the head has outputs that have a product of their own on a device.
bool cuts_head(const RunConfig& config) {
  if (config.device != Device::kCuda || config.model.classifies() || !updates_tied_embedding(config) ||
      comm::element_bytes(models::element_type(config.training.precision.compute)) != 2) {
    return false;
  }
  for (int rank = 0; rank < config.parallel.tensor; ++rank) {
    const std::uint64_t outputs = models::gpt2_part(config.model, config.parallel.tensor, rank).vocabulary.count;
    if (models::left_over_outputs(static_cast<std::int64_t>(outputs)) != 0) return true;
  }
  return false;
}

// The changes, newest first. docs/results_changes.md has their effects.
constexpr Change kChanges[] = {
    {3, "attention by cuDNN", uses_cudnn},
    {3, "the gradient of a head with many 16-bit outputs that are no multiple of 8", cuts_head},
    {2, "loss between sequence-parallel ranks, whose backward pass is the gradient of the forward pass with its losses",
     loses_in_sequences},
    {2, "the loss scale of float16 on CUDA",
     [](const RunConfig& config) {
       return config.device == Device::kCuda &&
              models::element_type(config.training.precision.compute) == comm::ElementType::kFloat16;
     }},
    {2,
     "a pipeline whose tied embedding has one owner: with a network for dp_gradient, embedding_gradient, "
     "parameter_gather or outer, a clock, fragments of outer steps, or lost flags of overflows",
     shows_owner_of_tied_embedding},
    {2, "loss of messages between the stages of a pipeline", loses_between_stages},
    {2, "fates that depend on virtual time",
     [](const RunConfig& config) { return config.time && comm::time_feeds_fates(config.network, *config.time); }},
    {2, "stragglers of transfers",
     [](const RunConfig& config) { return config.time && config.time->transfer_p99_over_p50 != 1; }},
};

}  // namespace

Numerics numerics_of(const RunConfig& config) {
  for (const Change& change : kChanges) {
    if (change.concerns(config)) return {change.version, change.what};
  }
  return {};
}

}  // namespace droptest::experiments
