// SPDX-License-Identifier: Apache-2.0
// The calls of one rank of a run, found by running its model without data.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/dry_communicator.h"
#include "comm/parallel_layout.h"
#include "experiments/spec/run_config.h"
#include "models/gpt2/pipeline_plan.h"

namespace droptest::experiments {

/// The calls of one rank.
struct RankCalls {
  std::vector<comm::DryCall> start;       ///< calls that bring the starting weights to ranks without a copy
  std::vector<comm::DryCall> step;        ///< calls of a training step, update included
  std::vector<comm::DryCall> evaluation;  ///< calls of the evaluation of one batch
  /// A call of the outer steps of one fragment.
  struct OfFragment {
    comm::DryCall call;
    std::uint64_t starts = 0;  ///< calls in the whole run
  };
  std::vector<OfFragment> outer;  ///< calls of the outer steps of the run
};

/// Runs Gpt2 and TrainingStep on the rank with these coordinates, and its outer steps, with operations that compute
/// nothing (models/ops/planner_ops.h) and a communicator that sends nothing. `plan` is pipeline_plan(config). Throws:
/// ConfigError for a config that the model does not take; for a micro-batch of more than kMostRows tokens, or of more
/// bytes of activations than addresses have room for; and for outer steps in more fragments than there are tensors.
RankCalls calls_of_rank(const RunConfig& config, const std::shared_ptr<const models::PipelinePlan>& plan,
                        const comm::ParallelNumbers& at);

inline constexpr std::int64_t kMostRows = std::int64_t{1} << 28;  ///< most tokens of a micro-batch

}  // namespace droptest::experiments
