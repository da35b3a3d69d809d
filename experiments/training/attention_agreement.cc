// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/attention_agreement.h"

#include <memory>
#include <string>
#include <vector>

#include "comm/device/stream.h"
#include "comm/rank_agreement.h"
#include "experiments/spec/kernels_in_use.h"
#include "experiments/spec/run_traffic.h"
#include "models/gpt2/gpt2_tensors.h"
#include "models/kernels/attention_kernel.h"
#include "models/ops/kernel_registry.h"
#include "models/precision.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

/// The shapes of passes that only evaluations have: the last batches of EvaluationBatches. The last batch of labelled
/// examples can have any number of them; only one is tried.
std::vector<models::AttentionShape> evaluation_shapes(const RunConfig& config, const models::AttentionShape& whole) {
  models::AttentionShape shape = whole;
  shape.batch = 1;
  if (config.data.examples) return {shape};
  std::vector<models::AttentionShape> shapes;
  for (const std::uint64_t targets : {validation_targets(config), selection_targets(config)}) {
    const auto count = static_cast<std::int64_t>(targets);
    shape = whole;
    shape.batch = count / whole.length % whole.batch;
    shapes.push_back(shape);
    shape.batch = 1;
    shape.length = count % whole.length;
    shapes.push_back(shape);
  }
  return shapes;
}

/// Why this rank cannot compute the run's passes with the kernel; empty: it can.
std::string absence_here(const RunConfig& config, int rank) {
  using Passes = models::AttentionKernel::Passes;
  const int tensor_rank = config.parallel.coordinates(rank).tensor;
  const models::Gpt2Part part = models::gpt2_part(config.model, config.parallel.tensor, tensor_rank);
  const models::AttentionShape shape{config.training.batch_sequences, config.training.sequence_tokens,
                                     static_cast<std::int64_t>(part.heads.count),
                                     config.model.width / config.model.heads};
  const comm::ElementType type = models::element_type(config.training.precision.compute);
  try {
    const comm::Stream on_device(config.device_index);
    const auto kernel = models::make_attention(kernels_in_use(config), models::KernelDevice::kCuda);
    kernel->prepare(shape, type, Passes::kBoth);
    for (const models::AttentionShape& other : evaluation_shapes(config, shape)) {
      kernel->prepare(other, type, Passes::kForward);
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
      reason = manifest->attention + " computed the checkpoint of step " + std::to_string(manifest->step);
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
