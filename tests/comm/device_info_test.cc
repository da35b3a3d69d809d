// SPDX-License-Identifier: Apache-2.0
#include "comm/device/device_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/device/device_libraries.h"
#include "sim/error.h"

namespace droptest::comm::device_info_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

DeviceSurvey survey_of_two() {
  DeviceSurvey survey;
  survey.built = true;
  survey.runtime_version = "13.0";
  survey.driver_version = "13.0";
  survey.devices.push_back({0, "Card", 9, 0, std::uint64_t{80} << 30, 132, "0000:3b:00.0", ""});
  survey.devices.push_back({1, "", 0, 0, 0, 0, "", "cudaGetDeviceProperties: unknown error (cudaErrorUnknown)"});
  return survey;
}

template <class Error>
std::string error_of(const DeviceSurvey& survey, int index) {
  try {
    require_device(survey, index);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(DeviceInfo, SurveyHasDevicesOrTheReasonWhyNot) {
  const DeviceSurvey survey = survey_devices();
  EXPECT_EQ(survey.devices.empty(), !survey.absence.empty()) << survey.absence;
  EXPECT_EQ(survey.built, !survey.runtime_version.empty());
  EXPECT_EQ(survey.built, !survey.architectures.empty());
  if (survey.built) {
    EXPECT_THAT(survey.runtime_version, MatchesRegex("[0-9]+\\.[0-9]+"));
    if (survey.driver_version.empty()) {
      EXPECT_THAT(survey.absence, AllOf(HasSubstr("no NVIDIA driver"), HasSubstr("cudaGetDeviceCount")));
    }
  } else {
    EXPECT_THAT(survey.absence, HasSubstr("DROPTEST_WITH_CUDA"));
  }
  for (std::size_t i = 0; i < survey.devices.size(); ++i) {
    const DeviceInfo& device = survey.devices[i];
    EXPECT_EQ(device.index, static_cast<int>(i));
    if (device.trouble.empty()) {
      EXPECT_GT(device.total_bytes, 0u);
      EXPECT_LE(free_device_bytes(device.index), device.total_bytes);
    }
  }
}

TEST(DeviceInfo, WhereNoDeviceAnswersTheErrorSaysWhy) {
  const DeviceSurvey survey = survey_devices();
  if (survey.absence.empty()) GTEST_SKIP() << "this machine has a device: " << describe(survey.devices.front());
  EXPECT_THROW(require_device(0), DeviceError);
  EXPECT_THAT(error_of<DeviceError>(survey, 0),
              AllOf(HasSubstr("device \"cuda\": " + survey.absence), HasSubstr("\"device\": \"cpu\"")));
  EXPECT_THROW(free_device_bytes(0), DeviceError);
}

TEST(DeviceInfo, ADeviceThatIsThereIsAccepted) { EXPECT_NO_THROW(require_device(survey_of_two(), 0)); }

TEST(DeviceInfo, AnIndexBeyondTheDevicesIsAConfigErrorThatListsThem) {
  for (const int index : {-1, 2, 3}) {
    EXPECT_THAT(error_of<ConfigError>(survey_of_two(), index),
                AllOf(HasSubstr("wanted device " + std::to_string(index) + ", this machine has 2"),
                      HasSubstr("0: Card (compute capability 9.0, 80.0 GiB, 132 multiprocessors, 0000:3b:00.0)"),
                      HasSubstr("1: cudaGetDeviceProperties: unknown error")));
  }
}

TEST(DeviceInfo, ADeviceInTroubleIsADeviceError) {
  EXPECT_THAT(error_of<DeviceError>(survey_of_two(), 1), HasSubstr("device 1: cudaGetDeviceProperties"));
}

TEST(DeviceLibraries, ABuildWithoutCudaLoadsNone) { EXPECT_TRUE(device_library_versions(DeviceSurvey{}).empty()); }

TEST(DeviceLibraries, VersionsAreThreeNumbers) {
  for (const auto& [name, version] : device_library_versions(survey_devices())) {
    EXPECT_THAT(version, MatchesRegex("[1-9][0-9]?\\.[0-9]+\\.[0-9]+")) << name;
  }
}

}  // namespace
}  // namespace droptest::comm::device_info_test
