// SPDX-License-Identifier: Apache-2.0
// Which of NVIDIA's libraries the dynamic linker finds on this machine.
#pragma once

#include <map>
#include <string>

#include "comm/device/device_info.h"

namespace droptest::comm {

/// Name ("NCCL", "cuBLASLt", "cuDNN") -> version ("2.28.9"), as each library says it of itself. One that is not found
/// is absent, and all are where the build has no CUDA code. Loads the libraries: they stay in the process.
std::map<std::string, std::string> device_library_versions(const DeviceSurvey& survey);

}  // namespace droptest::comm
