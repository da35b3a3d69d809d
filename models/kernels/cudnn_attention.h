// SPDX-License-Identifier: Apache-2.0
// cuDNN as a library that prepares and runs graphs of attention. It is opened when it is first asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/device/stream.h"
#include "models/kernels/attention_graph.h"

namespace droptest::models {

/// What this machine has of cuDNN.
struct CudnnLibrary {
  std::string path{};     ///< the opened file; empty: no file was opened
  std::string version{};  ///< "9.19.0"
  std::string absence{};  ///< why attention by cuDNN is not there, in words; empty: it is
};

/// Opens the library by comm::cudnn_names(); needs no device. Thread safety: any.
CudnnLibrary cudnn_library();

/// What cuDNN's frontend has against the graph on devices of that compute capability (90 of 9.0); empty: nothing. The
/// library itself may still refuse it. Needs no device. Throws: ConfigError where the library is absent.
std::string cudnn_objection(const AttentionGraph& graph, int compute_capability);

/// A pass that is ready to run. Owner: one rank, for work on one stream at a time.
class AttentionPlan {
 public:
  virtual ~AttentionPlan() = default;

  virtual std::uint64_t workspace_bytes() const = 0;
  /// Puts the pass over the graph's sequences from number `first_sequence` of the arrays on the stream. The workspace
  /// begins at a multiple of 256. Throws: DeviceError.
  virtual void run(const AttentionArrays& arrays, std::int64_t first_sequence, std::byte* workspace,
                   comm::Stream& stream) = 0;
};

/// Makes plans for the calling thread's current device; outlives them. Owner: one rank.
class AttentionPlanner {
 public:
  virtual ~AttentionPlanner() = default;

  /// Throws: ConfigError with the library's words where it refuses the graph.
  virtual std::unique_ptr<AttentionPlan> plan(const AttentionGraph& graph) = 0;
};

/// Throws: ConfigError with the reason where cuDNN is absent, too old, or cannot use the device.
std::unique_ptr<AttentionPlanner> make_cudnn_planner();

}  // namespace droptest::models
