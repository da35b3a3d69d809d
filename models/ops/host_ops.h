// SPDX-License-Identifier: Apache-2.0
// The operations on the processor's cores.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "models/ops/kernel_choice.h"
#include "models/ops/ops.h"
#include "models/phase_times.h"
#include "models/precision.h"

namespace droptest::models {

struct HostOpsOptions {
  comm::ElementType type =
      comm::ElementType::kFloat32;  ///< of activations and parameters: float32, or float64 for tests
  ModelPrecision precision{};
  int threads = 1;
  std::int64_t max_logits = std::int64_t{1} << 24U;  ///< of a chunk. One of GPT-2's vocabulary has 333 rows: the GEMM
                                                     ///< for the embedding's gradient is still bound by arithmetic.
  std::string offload_directory{};  ///< of the file of offload(); empty: the system's for temporary files
  /// GEMMs with 16-bit operands: by the processor's instructions for their type where it has them, or always in
  /// float32.
  enum class NarrowProducts : std::uint8_t { kFastest, kInFloat } narrow_products = NarrowProducts::kFastest;
  KernelChoices kernels{};
};

/// The form of the host's operations on a rank of `world_size`. Throws: ConfigError for 16-bit floats with float64, for
/// TF32, and those of make_attention() and make_matmul().
std::unique_ptr<OpsForm> host_ops_form(const HostOpsOptions& options, int world_size);

/// `group` is borrowed. `times`: gets the time of each phase added, where given. Both outlive the operations.
/// Throws: as host_ops_form().
std::unique_ptr<Ops> make_host_ops(const HostOpsOptions& options, comm::Communicator& group,
                                   PhaseTimes* times = nullptr);

}  // namespace droptest::models
