// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/model_options.h"

#include "experiments/spec/kernels_in_use.h"

namespace droptest::experiments {

models::CudaOpsOptions cuda_options(const RunConfig& config) {
  models::CudaOpsOptions options;
  options.precision = config.training.precision;
  options.device = config.device_index;
  options.kernels = kernels_in_use(config);
  return options;
}

models::HostOpsOptions host_options(const RunConfig& config) {
  models::HostOpsOptions options;
  options.precision = config.training.precision;
  options.threads = config.backend.threads_per_rank;
  options.offload_directory = config.memory.directory;
  options.kernels = config.kernels;
  return options;
}

std::unique_ptr<models::OpsForm> ops_form(const RunConfig& config) {
  if (config.device == Device::kCuda) return models::cuda_ops_form(cuda_options(config), config.parallel.tensor);
  return models::host_ops_form(host_options(config), config.parallel.tensor);
}

models::Gpt2Config model_of(const RunConfig& config) {
  models::Gpt2Config model = config.model;
  model.dropout.seed = config.seeds.data;
  return model;
}

}  // namespace droptest::experiments
