// SPDX-License-Identifier: Apache-2.0
// The entry of the `nccl` backend. Ranks are processes with a GPU each: docs/backends.md.
#pragma once

#include <memory>

#include "comm/backend_registry.h"
#include "comm/communicator.h"

namespace droptest::comm {

/// Whether this build has the backend.
extern const bool kNcclBuilt;

/// Joins the group that the rendezvous names, as connect_gloo() does, and makes this rank's device the calling thread's
/// current one. Tensors in its memory go through NCCL, tensors on the host over TCP. Returns when all ranks' devices
/// reach each other. Throws: the errors of connect_gloo(); DeviceError if this process sees no device; ConfigError if a
/// host has more ranks than devices; CommError for errors of NCCL. A build without the backend throws ConfigError that
/// lists the built ones.
std::unique_ptr<Communicator> connect_nccl(const ProcessGroupOptions& options);

/// The device of a rank that connect_nccl() has joined; its tensors must be there. 0 for other communicators.
int nccl_device(const Communicator& communicator);

}  // namespace droptest::comm
