// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/attention_agreement.h"

#include <memory>
#include <string>
#include <vector>

#include "comm/device/stream.h"
#include "experiments/run/rank_agreement.h"
#include "experiments/spec/resolve_kernels.h"
#include "models/kernels/attention_kernel.h"
#include "models/ops/kernel_registry.h"
#include "models/precision.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

constexpr const char* kAttention = "attention";

/// Why this rank cannot compute the run's passes with the kernel; empty: it can.
std::string absence_here(const RunConfig& config) {
  const models::KernelChoices kernels = kernels_in_use(config);
  const models::AttentionShape shape{config.training.batch_sequences, config.training.sequence_tokens,
                                     config.model.heads / config.parallel.tensor,
                                     config.model.width / config.model.heads};
  try {
    const comm::Stream on_device(config.device_index);
    models::make_attention(kernels, models::KernelDevice::kCuda)
        ->prepare(shape, models::element_type(config.training.precision.compute));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

std::optional<ReplacedKernel> agree_on_attention(RunConfig& config, comm::Communicator& group) {
  if (!uses_cudnn(config)) return std::nullopt;
  const std::vector<std::string> absences = gather_texts(absence_here(config), group, "kernel of attention");
  for (std::size_t rank = 0; rank < absences.size(); ++rank) {
    if (absences[rank].empty()) continue;
    const std::string where = absences.size() > 1 ? "rank " + std::to_string(rank) + ": " : "";
    const std::string flash = models::kernel_names(kAttention, models::KernelDevice::kCuda).front();
    const std::string wanted = kernels_in_use(config).at(kAttention).name;
    config.kernels[kAttention] = {flash};
    return ReplacedKernel{kAttention, wanted, flash, where + absences[rank]};
  }
  return std::nullopt;
}

}  // namespace droptest::experiments
