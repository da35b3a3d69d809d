// SPDX-License-Identifier: Apache-2.0
// In place of gpt2_cuda.cc where CUDA code is not built.
#include "models/gpt2/gpt2_cuda.h"
#include "sim/error.h"

namespace droptest::models {

class Gpt2Cuda::Impl {};

namespace {

[[noreturn]] void refuse() {
  throw ConfigError("GPT-2 on a CUDA device: this build has no CUDA code; built: cpu (see docs/building.md)");
}

}  // namespace

Gpt2Cuda::Gpt2Cuda(const Gpt2Config& /*config*/, comm::Communicator& /*tensor_group*/, const Options& /*options*/) {
  refuse();
}
Gpt2Cuda::~Gpt2Cuda() = default;
const Gpt2Config& Gpt2Cuda::config() const { refuse(); }
double Gpt2Cuda::evaluate(std::span<const std::int32_t> /*tokens*/, std::span<const std::int32_t> /*targets*/,
                          int /*batch*/, int /*length*/) {
  refuse();
}
void Gpt2Cuda::zero_gradients() { refuse(); }
void Gpt2Cuda::forward_backward(std::span<const std::int32_t> /*tokens*/, std::span<const std::int32_t> /*targets*/,
                                int /*batch*/, int /*length*/, double /*scale*/) {
  refuse();
}
Gpt2Cuda::StepSums Gpt2Cuda::step_sums() { refuse(); }
void Gpt2Cuda::step(double /*learning_rate*/, double /*gradient_scale*/) { refuse(); }
std::span<Parameter<float>> Gpt2Cuda::host_parameters() { refuse(); }
void Gpt2Cuda::download(Fields /*fields*/) { refuse(); }
void Gpt2Cuda::upload_values() { refuse(); }
std::uint64_t Gpt2Cuda::device_bytes() const { refuse(); }
std::uint64_t Gpt2Cuda::planned_bytes(const Gpt2Config& /*config*/, int /*world_size*/, int /*rank*/,
                                      const Options& /*options*/, int /*batch*/, int /*length*/) {
  refuse();
}

}  // namespace droptest::models
