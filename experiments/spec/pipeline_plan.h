// SPDX-License-Identifier: Apache-2.0
// The stages and the schedule of a run's pipeline.
#pragma once

#include <memory>
#include <vector>

#include "experiments/spec/run_config.h"
#include "models/gpt2/gpt2.h"
#include "models/pipeline/schedule.h"

namespace droptest::experiments {

/// The schedule of the run's pipeline. Throws: ConfigError that begins with the JSON pointer of the member at fault.
models::PipelineSchedule pipeline_schedule(const RunConfig& config);

/// Null for a run without a pipeline. Throws: as pipeline_schedule(), and for layers that its stages cannot have.
std::shared_ptr<const models::PipelinePlan> pipeline_plan(const RunConfig& config);

/// The tensors of a rank with these coordinates; without a pipeline, the rank has tensors of all layers.
std::vector<models::Gpt2Tensor> tensors_of_rank(const RunConfig& config, int pipeline, int tensor);

/// The compute time of one pass of a micro-batch through that stage, as a share of all ranks' mean compute time. The
/// forward pass, the backward pass by the input and the backward pass by the weights take a third each. The share
/// counts the operations of the products with weight matrices; the last stage's include the head's.
double compute_share(const RunConfig& config, const models::StageRange& stage, models::Action::Kind kind);

}  // namespace droptest::experiments
