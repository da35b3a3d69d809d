// SPDX-License-Identifier: Apache-2.0
// The state that the communicators of one rank over NCCL share.
#pragma once

#include <memory>

#include "comm/call.h"
#include "comm/gloo/gloo_mesh.h"
#include "comm/watchdog.h"

namespace droptest::comm {

class NcclHandles;

/// One rank's end of a launch: the mesh for tensors on the host and for failures, NCCL's communicators for tensors on
/// the device, and the watchdog that ends both together.
class NcclWorld {
 public:
  NcclWorld(std::shared_ptr<GlooMesh> mesh, int device, std::chrono::milliseconds timeout);
  ~NcclWorld();
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  GlooMesh& mesh() { return *mesh_; }
  NcclHandles& handles() { return *handles_; }
  Watchdog& watchdog() { return watchdog_; }
  int device() const { return device_; }

  /// Ends the group, unless it has ended, and throws its failure.
  [[noreturn]] void fail(const Failure& found, const Call& call);

 private:
  const std::shared_ptr<GlooMesh> mesh_;        ///< shared with the control communicators and the handles
  const std::shared_ptr<NcclHandles> handles_;  ///< shared with the watchdog's thread
  const int device_;
  Watchdog watchdog_;
};

}  // namespace droptest::comm
