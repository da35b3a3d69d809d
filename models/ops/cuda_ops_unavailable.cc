// SPDX-License-Identifier: Apache-2.0
// The twin of cuda_ops.cc for builds without CUDA.
#include "models/attention/device_attention.h"
#include "models/kernels/attention_kernel.h"
#include "models/ops/cuda_ops.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

[[noreturn]] void refuse() {
  throw ConfigError("GPT-2 on a CUDA device: this build has no CUDA code; built: cpu (see docs/building.md)");
}

}  // namespace

std::unique_ptr<OpsForm> cuda_ops_form(const CudaOpsOptions& /*options*/, int /*world_size*/) { refuse(); }
std::unique_ptr<Ops> make_cuda_ops(const CudaOpsOptions& /*options*/, comm::Communicator& /*group*/,
                                   comm::StreamTimer* /*timer*/) {
  refuse();
}
std::unique_ptr<StatefulAttention> make_device_attention(const AttentionOptions& /*options*/,
                                                         const SequenceParallel& /*ranks*/, std::int64_t /*first_head*/,
                                                         std::int64_t /*heads*/, Ops& /*ops*/) {
  refuse();
}
std::unique_ptr<AttentionKernel> make_cuda_flash_attention() { refuse(); }
std::unique_ptr<AttentionKernel> make_cuda_plain_attention() { refuse(); }
std::unique_ptr<AttentionKernel> make_cudnn_attention() { refuse(); }
std::unique_ptr<AttentionKernel> make_cudnn_attention_within(std::uint64_t /*most_workspace_bytes*/) { refuse(); }

}  // namespace droptest::models
