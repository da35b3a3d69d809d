// SPDX-License-Identifier: Apache-2.0
// The versions of NVIDIA's libraries on this machine, and the places in which cuDNN is searched.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/device/device_info.h"

namespace droptest::comm {

/// The names under which cuDNN is opened, in their order: the dynamic linker's own choice, the toolkit's folder, and
/// nvidia/cudnn/lib in the packages of the active Python environment (VIRTUAL_ENV, CONDA_PREFIX) and of the system's
/// Python.
std::vector<std::string> cudnn_names();

/// The version ("2.28.9") of "NCCL", "cuBLASLt" or "cuDNN", as the library reports it; absent if it is not found, or if
/// the build has no CUDA code. Loads the library: it stays in the process. Throws: CheckError for other names.
std::optional<std::string> device_library_version(const DeviceSurvey& survey, std::string_view name);

/// The versions of all libraries found, by name.
std::map<std::string, std::string> device_library_versions(const DeviceSurvey& survey);

}  // namespace droptest::comm
