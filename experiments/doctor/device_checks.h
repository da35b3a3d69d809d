// SPDX-License-Identifier: Apache-2.0
// Checks whether the devices of this machine suffice for a run, from the results of a survey.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/device/device_info.h"
#include "comm/rendezvous/launch_environment.h"
#include "experiments/doctor/finding.h"
#include "experiments/spec/resolve.h"
#include "models/kernels/cudnn_attention.h"

namespace droptest::experiments {

/// Number of devices that this process's machine must have for the run, as far as this process knows: 0 if it computes
/// on the CPU; one if ranks are threads, which share it; else one for each rank on the machine.
int wanted_devices(const ResolvedRun& run, const std::optional<comm::LaunchEnvironment>& launch);

/// Whether code compiled for these architectures, as CMake names them ("80-real, 90"), runs on a device of this compute
/// capability: machine code of the same major version, or PTX of the same capability or an older one. True for names
/// without a number ("native", "all").
bool runs_on(std::string_view architectures, int compute_major, int compute_minor);

/// Whether version "12.4" comes before "13.0": by numbers, from left to right.
bool is_older(std::string_view version, std::string_view other);

/// Findings "devices" and "driver" and, if devices are wanted and CUDA is built, "device libraries". `libraries`: their
/// versions.
std::vector<Finding> check_devices(int wanted, const comm::DeviceSurvey& survey,
                                   const std::map<std::string, std::string>& libraries);

/// The finding for a machine on which some run asks for attention by cuDNN.
Finding check_cudnn(const models::CudnnLibrary& library);

}  // namespace droptest::experiments
