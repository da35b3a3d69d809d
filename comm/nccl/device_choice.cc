// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/device_choice.h"

#include <string>

#include "sim/error.h"

namespace droptest::comm {

int device_of_rank(const PlaceOnHost& place) {
  const std::string here = "nccl: rank " + std::to_string(place.rank) + ": ";
  if (place.devices < 1) throw DeviceError(here + "this process sees no CUDA device");
  if (place.host_faked) return place.local_rank % place.devices;
  if (place.local_world_size <= place.devices && place.local_rank < place.devices) return place.local_rank;
  if (place.devices == 1 && place.devices_chosen) return 0;
  const std::string devices = std::to_string(place.devices) + (place.devices == 1 ? " device" : " devices");
  throw ConfigError(here + "local rank " + std::to_string(place.local_rank) + " of " +
                    std::to_string(place.local_world_size) + " on a host with " + devices +
                    "; the backend wants a device for each rank: start at most " + std::to_string(place.devices) +
                    " on each host, or use backend \"local\", whose ranks share one device");
}

}  // namespace droptest::comm
