// SPDX-License-Identifier: Apache-2.0
// The `nccl` backend's way in. Ranks are processes with a GPU each: docs/backends.md.
#pragma once

#include <memory>

#include "comm/backend_registry.h"
#include "comm/communicator.h"

namespace droptest::comm {

/// Whether this build has it.
extern const bool kNcclBuilt;

/// Joins the group that the rendezvous names, as connect_gloo() does, and makes this rank's device the calling thread's
/// current one; tensors in its memory go through NCCL, and those on the host over TCP. Returns when all ranks' devices
/// reach each other. Throws: what connect_gloo() throws; DeviceError where this process sees no device; ConfigError
/// where a host has more ranks than devices; CommError for what NCCL says. Without the backend: ConfigError that says
/// what is built.
std::unique_ptr<Communicator> connect_nccl(const ProcessGroupOptions& options);

/// The device of a rank that connect_nccl() has joined, in whose memory its tensors must be; 0 for other communicators.
int nccl_device(const Communicator& communicator);

}  // namespace droptest::comm
