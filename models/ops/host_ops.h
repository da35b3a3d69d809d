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
      comm::ElementType::kFloat32;  ///< type of activations and parameters: float32, or float64 in tests
  ModelPrecision precision{};
  int threads = 1;
  /// The largest number of logits in a chunk. With GPT-2's vocabulary, a chunk has 333 rows, enough for the GEMM of the
  /// embedding's gradient to be bound by arithmetic.
  std::int64_t max_logits = std::int64_t{1} << 24U;
  std::string offload_directory{};  ///< folder of the files of all storage; empty: the system's temporary folder
  /// GEMMs with 16-bit operands. kFastest: by instructions for their type if the processor has them. kInFloat: always
  /// in float32.
  enum class NarrowProducts : std::uint8_t { kFastest, kInFloat } narrow_products = NarrowProducts::kFastest;
  KernelChoices kernels{};
};

/// The form of the host's operations on one of `world_size` ranks. Throws: ConfigError for 16-bit floats with float64,
/// for TF32, and the errors of make_attention() and make_matmul().
std::unique_ptr<OpsForm> host_ops_form(const HostOpsOptions& options, int world_size);

/// `group` and `times` are borrowed and outlive the operations. `times` accumulates the time of each phase; may be
/// null. Throws: as host_ops_form().
std::unique_ptr<Ops> make_host_ops(const HostOpsOptions& options, comm::Communicator& group,
                                   PhaseTimes* times = nullptr);

}  // namespace droptest::models
