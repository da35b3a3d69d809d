// SPDX-License-Identifier: Apache-2.0
// The ranks' agreement on the kernel of attention, before they train.
#pragma once

#include <optional>

#include "comm/communicator.h"
#include "experiments/checkpoint/checkpointer.h"
#include "experiments/records/replaced_kernel.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// Replaces cuDNN's attention by the kernel flash in `config`, if a rank cannot compute the run's passes with cuDNN (no
/// library, an old one, a shape that it refuses), or if flash computed the run's newest checkpoint. Absent: nothing was
/// replaced. Ranks: all.
std::optional<ReplacedKernel> agree_on_attention(RunConfig& config, const std::optional<CheckpointPlace>& place,
                                                 comm::Communicator& group);

}  // namespace droptest::experiments
