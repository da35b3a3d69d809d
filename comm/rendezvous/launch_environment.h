// SPDX-License-Identifier: Apache-2.0
// The rank of this process, from the launcher's environment variables.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

namespace droptest::comm {

using Environment = std::map<std::string, std::string, std::less<>>;

/// The rank, world size and launch id that a launcher gives one of its processes.
struct LaunchEnvironment {
  std::string launcher;  ///< "torchrun", "Open MPI", "PMI" or "Slurm"
  int rank = 0;
  int world_size = 1;
  int local_rank = -1;        ///< rank on this node; -1 if the launcher does not give it
  int local_world_size = -1;  ///< ranks on this node; -1 if the launcher does not give it
  std::string launch_id;      ///< a text for file names that is equal on all ranks; empty if the launcher gives none
};

/// The variables of this process.
Environment process_environment();

/// The first of RANK (torchrun), OMPI_COMM_WORLD_RANK (mpirun), PMI_RANK and SLURM_PROCID that is set; absent if the
/// process was not launched as one of several. A shell of sbatch or salloc has Slurm's variables but no step of its
/// own, and is no rank. Open MPI and Slurm must give a local rank, because their launchers always set it; a user who
/// sets RANK by hand may leave LOCAL_RANK out. Throws: ConfigError that names the variable that is missing, is not a
/// number, or is out of range.
std::optional<LaunchEnvironment> launch_environment(const Environment& environment);

/// MASTER_ADDR: the machine of rank 0. Throws: ConfigError if it is set, but empty.
std::optional<std::string> master_host(const Environment& environment);

/// The port of rank 0's machine that belongs to this launch: MASTER_PORT, or the next port if torchrun's agent itself
/// listens at MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE=True). Throws: ConfigError if it is no port.
std::optional<int> master_port(const Environment& environment);

/// GLOO_SOCKET_IFNAME: the interface with the address that a rank tells its peers; empty if it is not set. Throws:
/// ConfigError if this machine has no interface of that name, and for a list of them.
std::string gloo_interface(const Environment& environment);

}  // namespace droptest::comm
