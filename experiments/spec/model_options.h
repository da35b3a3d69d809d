// SPDX-License-Identifier: Apache-2.0
// The options with which a run makes its model and operations.
#pragma once

#include <memory>

#include "experiments/spec/run_config.h"
#include "models/gpt2/gpt2_config.h"
#include "models/ops/cuda_ops.h"
#include "models/ops/host_ops.h"
#include "models/ops/ops_form.h"

namespace droptest::experiments {

models::CudaOpsOptions cuda_options(const RunConfig& config);
models::HostOpsOptions host_options(const RunConfig& config);

/// The element types and sizes of the run's device, on a rank of the run. Needs no device. Throws: ConfigError.
std::unique_ptr<models::OpsForm> ops_form(const RunConfig& config);

/// The config of the run's model. Dropout has the seed of the batches.
models::Gpt2Config model_of(const RunConfig& config);

}  // namespace droptest::experiments
