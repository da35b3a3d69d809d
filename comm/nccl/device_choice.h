// SPDX-License-Identifier: Apache-2.0
// Which of a host's devices a rank takes.
#pragma once

namespace droptest::comm {

/// A rank among those of its host, and what it sees there.
struct PlaceOnHost {
  int rank = 0;                 ///< in the world, for errors
  int local_rank = 0;           ///< among the ranks of this host
  int local_world_size = 1;     ///< ranks of this host
  int devices = 0;              ///< that this process sees
  bool devices_chosen = false;  ///< the launcher says which ones it may see: CUDA_VISIBLE_DEVICES is set
  bool host_faked = false;      ///< NCCL_HOSTID is set: ranks of one device pass for ranks of several hosts
};

/// The local rank's device; the first one where the launcher shows each process its own. Ranks that pass for ranks of
/// several hosts share the devices in turns.
/// Throws: DeviceError where there is no device; ConfigError where the host has more ranks than devices.
int device_of_rank(const PlaceOnHost& place);

}  // namespace droptest::comm
