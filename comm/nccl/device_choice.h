// SPDX-License-Identifier: Apache-2.0
// The device of a rank, among the devices of its host.
#pragma once

namespace droptest::comm {

/// A rank among those of its host, and the devices that it sees.
struct PlaceOnHost {
  int rank = 0;                 ///< rank in the world, for errors
  int local_rank = 0;           ///< rank among the ranks of this host
  int local_world_size = 1;     ///< ranks of this host
  int devices = 0;              ///< devices that this process sees
  bool devices_chosen = false;  ///< whether CUDA_VISIBLE_DEVICES is set: the launcher chooses the visible devices
  bool host_faked = false;      ///< whether NCCL_HOSTID is set: ranks of one device pass for ranks of several hosts
};

/// The local rank's device; the first device if the launcher shows each process only its own. Ranks that pass for ranks
/// of several hosts share the devices in turns. Throws: DeviceError if there is no device; ConfigError if the host has
/// more ranks than devices.
int device_of_rank(const PlaceOnHost& place);

}  // namespace droptest::comm
