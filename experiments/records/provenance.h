// SPDX-License-Identifier: Apache-2.0
// The origin of a record: version, commit, machine, libraries.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// The GPU of rank 0.
struct DeviceProvenance {
  std::string name;                ///< "NVIDIA H100 80GB HBM3"
  std::string compute_capability;  ///< "9.0"
  std::uint64_t memory_bytes = 0;  ///< all of it, free or not
  std::string driver;              ///< "580.95.05"; empty if the system does not tell it
  std::string driver_cuda;         ///< the newest CUDA that the driver serves: "13.0"
};

struct Provenance {
  std::string version;   ///< version of droptest
  std::string commit;    ///< commit of the tree that was built, with "-dirty" if it was changed; "unknown" without git
  std::string host;      ///< this machine's name
  std::string compiler;  ///< e.g. "GNU 12.2.0"
  std::map<std::string, std::string> libraries;  ///< versions of libraries by name
  std::optional<DeviceProvenance> device;        ///< device of a run on CUDA
  std::string started;                           ///< time of the start: ISO 8601, UTC
  std::string finished;
};

/// The provenance without the device and the two times.
Provenance build_provenance();

/// The provenance with the device of the run. The libraries of a run on CUDA are CUDA and cuBLASLt, cuDNN if its spec
/// asks for attention by it, and NCCL over `nccl`; this loads them.
Provenance run_provenance(const RunConfig& config);

/// The driver's version in the text of /proc/driver/nvidia/version; empty if there is none.
std::string nvidia_driver_version(std::string_view text);

/// A time in words: "2025-03-01T12:34:56Z".
std::string utc_text(std::chrono::system_clock::time_point time);

nlohmann::json to_json(const Provenance& provenance);

}  // namespace droptest::experiments
