// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/attention_agreement.h"

#include <memory>
#include <string>
#include <vector>

#include "comm/device/stream.h"
#include "experiments/run/rank_agreement.h"
#include "experiments/spec/resolve_kernels.h"
#include "models/gpt2/gpt2_tensors.h"
#include "models/kernels/attention_kernel.h"
#include "models/ops/kernel_registry.h"
#include "models/precision.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

constexpr const char* kAttention = "attention";

/// Why this rank cannot compute the run's passes with the kernel; empty: it can. They have a micro-batch of sequences;
/// the last one of an evaluation may have fewer.
std::string absence_here(const RunConfig& config, int rank) {
  const int tensor_rank = config.parallel.coordinates(rank).tensor;
  const models::Gpt2Part part = models::gpt2_part(config.model, config.parallel.tensor, tensor_rank);
  models::AttentionShape shape{config.training.batch_sequences, config.training.sequence_tokens,
                               static_cast<std::int64_t>(part.heads.count), config.model.width / config.model.heads};
  try {
    const comm::Stream on_device(config.device_index);
    const auto kernel = models::make_attention(kernels_in_use(config), models::KernelDevice::kCuda);
    for (const std::int64_t sequences : {shape.batch, std::int64_t{1}}) {
      shape.batch = sequences;
      kernel->prepare(shape, models::element_type(config.training.precision.compute));
    }
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

/// The reason to take flash that the run's newest checkpoint gives; empty: it gives none. Ranks: all.
std::string flash_of_checkpoint(const RunConfig& config, const std::optional<CheckpointPlace>& place,
                                comm::Communicator& group) {
  std::string reason;
  if (group.rank() == 0) {
    const std::optional<Manifest> manifest = newest_checkpoint(place, config);
    if (manifest && !manifest->attention.empty() && manifest->attention != recorded_attention(config)) {
      reason = "it computed the checkpoint of step " + std::to_string(manifest->step);
    }
  }
  return text_of_root(reason, group, "kernel of the checkpoint's attention");
}

}  // namespace

std::optional<ReplacedKernel> agree_on_attention(RunConfig& config, const std::optional<CheckpointPlace>& place,
                                                 comm::Communicator& group) {
  if (!uses_cudnn(config)) return std::nullopt;
  std::vector<std::string> absences(1, flash_of_checkpoint(config, place, group));
  if (absences[0].empty()) {
    absences = gather_texts(absence_here(config, group.rank()), group, "kernel of attention");
  }
  for (std::size_t rank = 0; rank < absences.size(); ++rank) {
    if (absences[rank].empty()) continue;
    const std::string where = absences.size() > 1 ? "rank " + std::to_string(rank) + ": " : "";
    const std::string flash = models::kernel_names(kAttention, models::KernelDevice::kCuda).front();
    const std::string wanted = kernels_in_use(config).at(kAttention).name;
    config.kernels[kAttention] = {flash};
    config.attention_is_replaced = true;
    return ReplacedKernel{kAttention, wanted, flash, where + absences[rank]};
  }
  return std::nullopt;
}

}  // namespace droptest::experiments
