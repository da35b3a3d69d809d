// SPDX-License-Identifier: Apache-2.0
// Where a record comes from: version, commit, machine, libraries.
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
  std::string driver;              ///< "580.95.05"; empty where the system does not say
  std::string driver_cuda;         ///< the newest CUDA that the driver serves: "13.0"
};

struct Provenance {
  std::string version;   ///< of droptest
  std::string commit;    ///< of the tree that was built, "-dirty" appended where it was changed; "unknown" without git
  std::string host;      ///< this machine's name
  std::string compiler;  ///< e.g. "GNU 12.2.0"
  std::map<std::string, std::string> libraries;  ///< name -> version
  std::optional<DeviceProvenance> device;        ///< of a run on CUDA
  std::string started;                           ///< ISO 8601, UTC
  std::string finished;
};

/// All but the device and the two times.
Provenance build_provenance();

/// The same with the device of the run: a run on CUDA has CUDA and cuBLASLt among its
/// libraries, cuDNN if its spec asks for attention by it, and NCCL over `nccl`.
/// Loads those libraries.
Provenance run_provenance(const RunConfig& config);

/// The driver's version in the text of /proc/driver/nvidia/version; empty where there is none.
std::string nvidia_driver_version(std::string_view text);

/// "2025-03-01T12:34:56Z".
std::string utc_text(std::chrono::system_clock::time_point time);

nlohmann::json to_json(const Provenance& provenance);

}  // namespace droptest::experiments
