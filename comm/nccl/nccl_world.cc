// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_world.h"

#include <utility>

#include "comm/nccl/nccl_handles.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

// The delay until the end of an operation is noticed; no thread waits for it, so it can be long.
constexpr std::chrono::milliseconds kPoll{20};
constexpr std::chrono::seconds kEndMost{10};

}  // namespace

NcclWorld::NcclWorld(std::shared_ptr<GlooMesh> mesh, int device, std::chrono::milliseconds timeout)
    : mesh_(std::move(mesh)),
      handles_(std::make_shared<NcclHandles>(mesh_, device, timeout)),
      device_(device),
      watchdog_(handles_, timeout, kPoll, kEndMost, mesh_->clock()) {
  mesh_->report_activity([this] { return watchdog_.activity(); });
}

NcclWorld::~NcclWorld() { mesh_->report_activity({}); }

void NcclWorld::fail(const Failure& found, const Call& call) {
  watchdog_.end(found);
  throw CommError(failure_text(mesh_->failure().value_or(found), call, mesh_->rank(), mesh_->size()));
}

}  // namespace droptest::comm
