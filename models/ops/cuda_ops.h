// SPDX-License-Identifier: Apache-2.0
// The operations on a CUDA device.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/communicator.h"
#include "comm/device/stream_timer.h"
#include "models/ops/kernel_choice.h"
#include "models/ops/ops.h"
#include "models/precision.h"

namespace droptest::models {

/// Parameters, gradients and moments are float; activations and the operands of GEMMs have the type precision.compute.
struct CudaOpsOptions {
  ModelPrecision precision{};
  int device = 0;                                        ///< number of the device in the CUDA runtime
  std::uint64_t logits_bytes = std::uint64_t{1} << 30U;  ///< memory limit for the logits of a chunk
  KernelChoices kernels{};
};

/// The form of a device's operations on one of `world_size` ranks; needs no device. Throws: ConfigError if this build
/// has no CUDA, and for kernels that the registry does not have.
std::unique_ptr<OpsForm> cuda_ops_form(const CudaOpsOptions& options, int world_size);

/// `group` is borrowed, outlives the operations, and accepts tensors of that device. Operations are put on one stream,
/// sums and gathers of the group on a second one (on the first one if the group has a single rank), collectives over
/// data-parallel ranks on the stream of begin_traffic(), and the copies of each offload on its own stream. Each stream
/// is in program order. `timer` is borrowed and may be null. If it is on, it measures the phases of the computations
/// (numbers of models::Phase). A GEMM with GELU counts as a GEMM; the communicator measures collectives. Throws:
/// ConfigError if this build has no CUDA; DeviceError.
std::unique_ptr<Ops> make_cuda_ops(const CudaOpsOptions& options, comm::Communicator& group,
                                   comm::StreamTimer* timer = nullptr);

}  // namespace droptest::models
