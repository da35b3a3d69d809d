// SPDX-License-Identifier: Apache-2.0
// The stages and the schedule of a run's pipeline.
#pragma once

#include <memory>
#include <vector>

#include "experiments/spec/run_config.h"
#include "models/gpt2/gpt2.h"
#include "models/pipeline/schedule.h"

namespace droptest::experiments {

/// Throws: ConfigError that begins with the JSON pointer of the member at fault.
models::PipelineSchedule pipeline_schedule(const RunConfig& config);

/// Null for a run without a pipeline. Throws: as pipeline_schedule(), and for layers that its stages cannot have.
std::shared_ptr<const models::PipelinePlan> pipeline_plan(const RunConfig& config);

/// The tensors of a rank with these coordinates; of a run without a pipeline those of the whole model.
std::vector<models::Gpt2Tensor> tensors_of_rank(const RunConfig& config, int pipeline, int tensor);

/// The share of all ranks' mean compute time that one pass of a micro-batch through that stage takes, forward (1 part
/// of 3), by its input and by its weights (1 part each): operations of the products with weight matrices. The stage of
/// the head has the head's.
double compute_share(const RunConfig& config, const models::StageRange& stage, models::Action::Kind kind);

}  // namespace droptest::experiments
