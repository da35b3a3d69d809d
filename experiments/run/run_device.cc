// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/run_device.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>
#include <tuple>

#include "comm/device/device_info.h"
#include "experiments/run/core_shares.h"
#include "experiments/run/layer_memory.h"
#include "experiments/run/memory_estimate.h"
#include "experiments/run/training_model.h"
#include "experiments/spec/planned_collectives.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

/// Each run is a process with a CUDA context of its own, and they take turns on the device.
constexpr int kMostJobsOfOneDevice = 8;

constexpr std::uint64_t kMebi = std::uint64_t{1} << 20U;
constexpr std::uint64_t kContextBytes = 768 * kMebi;  ///< of a process: CUDA's context, code of kernels and libraries
constexpr std::uint64_t kRankBytes = 64 * kMebi;      ///< of a rank: the products' workspace, statistics, staging
constexpr std::uint64_t kMessagesAtOnce = 6;          ///< of a rank: copies that a collective works with

std::string gibibytes_text(std::uint64_t bytes) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f GiB", static_cast<double>(bytes) / 0x1p30);
  return text.data();
}

std::uint64_t activation_message_elems(const RunConfig& config) {
  const models::SequenceParts parts = config.model.attention.sequence.parts(config.training.sequence_tokens);
  return static_cast<std::uint64_t>(config.training.batch_sequences * parts.length_of(parts.longest_rank())) *
         static_cast<std::uint64_t>(config.model.width);
}

/// Over the plans of all ranks: a bucket has at least one chunk, and with zero 3 the size of a gather.
std::uint64_t largest_bucket_bytes(const RunConfig& config) {
  std::uint64_t elems = 0;
  for (const PlannedCollective& reduction : planned_collectives(config, sim::TrafficClass::kDpGradient)) {
    elems = std::max(elems, reduction.call.elements);
  }
  return elems * sizeof(float);
}

/// Bytes of a rank's messages and remembered values, apart from the model's own buffers.
std::uint64_t message_bytes(const RunConfig& config) {
  return layer_memory(config).remembered + message_buffer_bytes(config);
}

/// The settings that decide run_device_bytes(): runs of a sweep that differ only in seeds and rates share one key.
auto memory_key(const RunConfig& config) {
  const models::Gpt2Config& m = config.model;
  return std::make_tuple(m.layers, m.width, m.heads, m.context, m.vocabulary, m.attention.is_stateful(),
                         m.attention.within, m.attention.chunk_tokens, m.dropout.residual > 0, config.parallel.sequence,
                         m.attention.sequence.factors.ring, m.attention.sequence.order, config.tensor_sequence,
                         config.training.batch_sequences, config.training.sequence_tokens, config.training.precision,
                         config.parallel.tensor, config.parallel.data, config.training.optimizer.moments(),
                         config.sharding.zero, config.sharding.shards_gradients(), config.sharding.bucket_bytes,
                         config.sharding.gather_bucket_bytes, config.backend.name, config.memory.recompute,
                         config.memory.every, config.memory.place.cut, config.memory.place.offloaded,
                         config.memory.traffic, message_bytes(config));
}

}  // namespace

std::uint64_t message_buffer_bytes(const RunConfig& config) {
  const std::uint64_t of_activations =
      config.parallel.tensor > 1 ? activation_message_elems(config) * sizeof(float) : 0;
  return kMessagesAtOnce * (of_activations + largest_bucket_bytes(config));
}

void require_run_device(const RunConfig& config) {
  if (config.device == Device::kCuda) comm::require_device(config.device_index);
}

std::uint64_t run_device_bytes(const RunConfig& config) {
  const std::unique_ptr<models::OpsForm> form = ops_form(config);
  const models::SequenceParts parts = config.model.attention.sequence.parts(config.training.sequence_tokens);
  std::uint64_t of_all = 0;
  std::uint64_t largest = 0;
  for (int rank = 0; rank < config.parallel.world_size(); ++rank) {
    const comm::ParallelNumbers at = config.parallel.coordinates(rank);
    const std::uint64_t bytes =
        models::Gpt2::planned_bytes(config.model, config.parallel.tensor, at.tensor, *form,
                                    {config.training.batch_sequences, parts.length_of(at.sequence)},
                                    slot_options(config), config.sharding, config.parallel.gradient_ranks(),
                                    config.parallel.gradient_rank(at), config.training.optimizer.moments()) +
        attention_use(config, *form, nullptr, at).memory + kRankBytes + message_bytes(config);
    of_all += bytes;
    largest = std::max(largest, bytes);
  }
  return kContextBytes + (config.backend.name == "local" ? of_all : largest);
}

const RunConfig& most_demanding(std::span<const PlannedRun> runs) {
  std::set<decltype(memory_key(runs.front().run.config))> seen;
  const RunConfig* largest = nullptr;
  std::uint64_t most = 0;
  for (const PlannedRun& planned : runs) {
    const RunConfig& config = planned.run.config;
    if (config.device != Device::kCuda) continue;
    if (largest == nullptr) require_run_device(config);
    if (!seen.insert(memory_key(config)).second) continue;
    const std::uint64_t bytes = run_device_bytes(config);
    if (bytes > most) largest = &config;
    most = std::max(most, bytes);
  }
  return largest == nullptr ? runs.front().run.config : *largest;
}

int runs_that_fit(const RunConfig& config) {
  const std::uint64_t wanted = run_device_bytes(config);
  const int ranks = config.backend.name == "local" ? 1 : config.parallel.world_size();  // that have a device each
  const int devices = std::min(static_cast<int>(comm::survey_devices().devices.size()), config.device_index + ranks);
  std::uint64_t fit = INT32_MAX;
  for (int device = config.device_index; device < devices; ++device) {
    const std::uint64_t free = comm::free_device_bytes(device);
    if (free < wanted) {
      throw ConfigError(
          "device \"cuda\": a run takes about " + gibibytes_text(wanted) + " of a device, and device " +
          std::to_string(device) + " has " + gibibytes_text(free) +
          " free; want a smaller /training/batch_sequences or /model, fewer ranks on the device, or other "
          "programs off it");
    }
    fit = std::min(fit, free / wanted);
  }
  return static_cast<int>(fit);
}

int jobs_at_once(int asked, const RunConfig& config) {
  const int cores = static_cast<int>(allowed_cores().size());
  if (config.device != Device::kCuda) return asked > 0 ? asked : cores;
  const int fit = runs_that_fit(config);
  return asked > 0 ? asked : std::min({cores, kMostJobsOfOneDevice, fit});
}

}  // namespace droptest::experiments
