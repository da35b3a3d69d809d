// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/device_choice.h"

#include <gtest/gtest.h>

#include <string>

#include "sim/error.h"

namespace droptest::comm::device_choice_test {
namespace {

std::string error_of(const PlaceOnHost& place) {
  try {
    return "device " + std::to_string(device_of_rank(place));
  } catch (const ConfigError& error) {
    return std::string("ConfigError: ") + error.what();
  } catch (const DeviceError& error) {
    return std::string("DeviceError: ") + error.what();
  }
}

TEST(DeviceChoice, IsTheLocalRank) {
  EXPECT_EQ(error_of({.rank = 9, .local_rank = 1, .local_world_size = 4, .devices = 4}), "device 1");
  EXPECT_EQ(error_of({.rank = 0, .local_rank = 0, .local_world_size = 1, .devices = 8}), "device 0");
}

TEST(DeviceChoice, IsTheFirstWhereTheLauncherShowsEachProcessItsOwn) {
  EXPECT_EQ(error_of({.rank = 3, .local_rank = 3, .local_world_size = 4, .devices = 1, .devices_chosen = true}),
            "device 0");
}

TEST(DeviceChoice, GoesRoundWhereRanksPassForOtherHosts) {
  EXPECT_EQ(error_of({.rank = 3, .local_rank = 3, .local_world_size = 4, .devices = 2, .host_faked = true}),
            "device 1");
}

TEST(DeviceChoice, MoreRanksThanDevicesAreSentToTheLocalBackend) {
  EXPECT_EQ(
      error_of({.rank = 5, .local_rank = 5, .local_world_size = 8, .devices = 4}),
      "ConfigError: nccl: rank 5: local rank 5 of 8 on a host with 4 devices; the backend wants a device for each "
      "rank: start at most 4 on each host, or use backend \"local\", whose ranks share one device");
  // All ranks report the error, not only those that find no device.
  EXPECT_EQ(error_of({.rank = 0, .local_rank = 0, .local_world_size = 2, .devices = 1}).rfind("ConfigError: ", 0), 0U);
  EXPECT_EQ(error_of({.rank = 5, .local_rank = 5, .local_world_size = 8, .devices = 4, .devices_chosen = true})
                .rfind("ConfigError: ", 0),
            0U);
}

TEST(DeviceChoice, NoDeviceIsSaidSo) {
  EXPECT_EQ(error_of({.rank = 2}), "DeviceError: nccl: rank 2: this process sees no CUDA device");
}

}  // namespace
}  // namespace droptest::comm::device_choice_test
