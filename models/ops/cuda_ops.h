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

/// Parameters, gradients and moments are float; activations and the operands of GEMMs are of precision.compute.
struct CudaOpsOptions {
  ModelPrecision precision{};
  int device = 0;                                        ///< as the CUDA runtime numbers it
  std::uint64_t logits_bytes = std::uint64_t{1} << 30U;  ///< most memory for logits: rows come in chunks
  KernelChoices kernels{};
};

/// The form of a device's operations on a rank of `world_size`; needs no device. Throws: ConfigError where this build
/// has no CUDA, and for kernels that the registry does not have.
std::unique_ptr<OpsForm> cuda_ops_form(const CudaOpsOptions& options, int world_size);

/// `group` is borrowed, outlives the operations, and takes tensors of that device. All operations are put on one
/// stream, collectives on another, in program order; a lone rank has one. Throws: ConfigError where this build has no
/// CUDA, DeviceError.
/// `timer`: borrowed; where it is given and on, it gets the phases of the computations (the numbers of models::Phase).
/// A product with GELU counts as a product, and collectives are the communicator's.
std::unique_ptr<Ops> make_cuda_ops(const CudaOpsOptions& options, comm::Communicator& group,
                                   comm::StreamTimer* timer = nullptr);

}  // namespace droptest::models
