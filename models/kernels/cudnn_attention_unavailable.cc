// SPDX-License-Identifier: Apache-2.0
// The twin of cudnn_attention.cc for builds without cuDNN's frontend.
#include "models/kernels/cudnn_attention.h"
#include "sim/error.h"

namespace droptest::models {

CudnnLibrary cudnn_library() { return {.absence = "this build has no attention by cuDNN: " DROPTEST_CUDNN_MISSING}; }

std::string cudnn_objection(const AttentionGraph& /*graph*/, int /*compute_capability*/) {
  throw ConfigError(cudnn_library().absence);
}

std::unique_ptr<AttentionPlanner> make_cudnn_planner() { throw ConfigError(cudnn_library().absence); }

}  // namespace droptest::models
