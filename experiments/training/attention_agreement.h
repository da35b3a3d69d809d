// SPDX-License-Identifier: Apache-2.0
// The ranks' agreement on the kernel of attention, before they train.
#pragma once

#include <optional>

#include "comm/communicator.h"
#include "experiments/checkpoint/checkpointer.h"
#include "experiments/records/replaced_kernel.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// Gives `config` the kernel flash where its attention is cuDNN's and a rank cannot compute the passes of the run with
/// it (no library, an old one, a shape that it refuses), or where flash computed the run's newest checkpoint. Absent:
/// nothing was replaced. Ranks: all.
std::optional<ReplacedKernel> agree_on_attention(RunConfig& config, const std::optional<CheckpointPlace>& place,
                                                 comm::Communicator& group);

}  // namespace droptest::experiments
