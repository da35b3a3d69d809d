// SPDX-License-Identifier: Apache-2.0
// cuDNN, which prepares and runs graphs of attention. It is opened at the first use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/device/stream.h"
#include "models/kernels/attention_graph.h"

namespace droptest::models {

/// The cuDNN library of this machine.
struct CudnnLibrary {
  std::string path{};     ///< the opened file; empty: no file was opened
  std::string version{};  ///< "9.19.0"
  std::string absence{};  ///< the reason why attention by cuDNN is unavailable; empty: it is available
};

/// Opens the library by comm::cudnn_names(). Needs no device. Thread safety: any thread may call it.
CudnnLibrary cudnn_library();

/// The reason why cuDNN's frontend refuses the graph on devices of that compute capability (90 for 9.0); empty: it
/// accepts the graph. The library itself may still refuse it. Needs no device. Throws: ConfigError if the library is
/// absent.
std::string cudnn_objection(const AttentionGraph& graph, int compute_capability);

/// A prepared pass. Owner: one rank, for work on one stream at a time.
class AttentionPlan {
 public:
  virtual ~AttentionPlan() = default;

  virtual std::uint64_t workspace_bytes() const = 0;
  /// Puts the pass on the stream, for the graph's number of sequences from sequence `first_sequence` of the arrays on.
  /// The workspace begins at a multiple of 256 bytes. Throws: DeviceError.
  virtual void run(const AttentionArrays& arrays, std::int64_t first_sequence, std::byte* workspace,
                   comm::Stream& stream) = 0;
};

/// Makes plans for the calling thread's current device, and outlives them. Owner: one rank.
class AttentionPlanner {
 public:
  virtual ~AttentionPlanner() = default;

  /// Throws: ConfigError with the library's message if it refuses the graph.
  virtual std::unique_ptr<AttentionPlan> plan(const AttentionGraph& graph) = 0;
};

/// Throws: ConfigError with the reason if cuDNN is absent, too old, or cannot use the device.
std::unique_ptr<AttentionPlanner> make_cudnn_planner();

}  // namespace droptest::models
