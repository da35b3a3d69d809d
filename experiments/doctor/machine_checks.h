// SPDX-License-Identifier: Apache-2.0
// Checks whether this machine meets a run's needs other than devices and peers: files, disk, memory, a host name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "experiments/doctor/finding.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// Finding "backend": whether this build has the backend.
Finding check_backend(const std::string& name);

/// Finding "corpus": reads and splits the data as a run does.
Finding check_corpus(const RunConfig& config);

/// Finding "initial weights"; nothing if they are random.
std::optional<Finding> check_initial_weights(const RunConfig& config);

/// Finding "results": whether files can be made in the folder. Leaves no file behind, but the folder.
Finding check_results(const std::string& directory);

/// Estimated bytes of a run's records: the final weights, and a line for each step that is logged.
std::uint64_t record_bytes(const RunConfig& config);
/// Bytes of only the final weights.
std::uint64_t kept_weights_bytes(const RunConfig& config);

/// Finding "disk": the free bytes in the folder of the results, compared with the bytes that the results take.
Finding check_disk(const std::string& directory, std::uint64_t wanted_bytes);

/// The part of a run that this machine has, as far as this process knows.
struct RanksHere {
  int ranks = 1;
  int processes = 1;
};

/// Bytes of weights, gradients and Adam's two moments of these ranks, of the activations and logits of a micro-batch if
/// they are on the host, and of each process's data: the least that a run holds.
std::uint64_t least_memory_bytes(const RunConfig& config, const RanksHere& here);

/// Finding "memory". `available`: absent if the system does not tell it.
Finding check_memory(std::uint64_t least_bytes, std::optional<std::uint64_t> available);

/// The value of `key`, such as "MemAvailable:", in a text like /proc/meminfo. Units: bytes.
std::optional<std::uint64_t> meminfo_bytes(std::string_view meminfo, std::string_view key);
/// The smallest memory limit of the control groups that a text like /proc/self/cgroup names, in the tree at `root`, and
/// of the groups around them; absent if there is none. Source: Linux, admin-guide/cgroup-v2 (and v1/memory).
std::optional<std::uint64_t> memory_limit_bytes(std::string_view cgroups, const std::string& root);

/// The free memory of this machine, at most the limit of the job or container.
std::optional<std::uint64_t> available_memory_bytes();
/// The memory of this machine, at most the limit of the job or container.
std::optional<std::uint64_t> total_memory_bytes();

/// Whether a run may have ranks on other machines.
enum class OtherMachines : std::uint8_t { kNone, kMaybe };

inline constexpr std::string_view kHostNameCheck = "host name";

/// Finding "host name": whether it resolves to an address that other machines can reach.
Finding check_host_name(OtherMachines others);

/// A size in words: "1.5 GiB", "512 bytes".
std::string bytes_text(std::uint64_t bytes);

}  // namespace droptest::experiments
