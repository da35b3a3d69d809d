// SPDX-License-Identifier: Apache-2.0
#include "comm/launch_environment.h"

#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "sim/error.h"

namespace droptest::comm {
namespace {

/// One launcher's variables. An empty name: the launcher has none.
struct Launcher {
  std::string_view name;
  std::string_view rank;
  std::string_view world_size;
  std::string_view local_rank;
};

constexpr Launcher kTorchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"};
constexpr Launcher kOpenMpi{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"};
constexpr Launcher kPmi{"PMI", "PMI_RANK", "PMI_SIZE", ""};
constexpr Launcher kSlurm{"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"};

class Reader {
 public:
  Reader(const Environment& environment, const Launcher& launcher) : environment_(environment), launcher_(launcher) {}

  bool any_set() const { return has(launcher_.rank) || has(launcher_.world_size); }

  LaunchEnvironment read() const {
    LaunchEnvironment result;
    result.launcher = launcher_.name;
    result.world_size = integer(launcher_.world_size, 1, std::numeric_limits<int>::max());
    result.rank = integer(launcher_.rank, 0, result.world_size - 1);
    if (!launcher_.local_rank.empty()) result.local_rank = integer(launcher_.local_rank, 0, result.world_size - 1);
    return result;
  }

  bool has(std::string_view name) const { return environment_.find(name) != environment_.end(); }

  std::string text(std::string_view name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() ? "" : found->second;
  }

  int integer(std::string_view name, int low, int high) const {
    const auto found = environment_.find(name);
    if (found == environment_.end()) {
      const std::string_view other = name == launcher_.rank ? launcher_.world_size : launcher_.rank;
      fail(name, "is not set, although " + std::string(other) + " is");
    }
    const std::string& value = found->second;
    int number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size() || number < low || number > high) {
      fail(name,
           "got \"" + value + "\", want an integer in [" + std::to_string(low) + ", " + std::to_string(high) + "]");
    }
    return number;
  }

 private:
  [[noreturn]] void fail(std::string_view name, const std::string& what) const {
    throw ConfigError("environment of " + std::string(launcher_.name) + ": " + std::string(name) + ": " + what);
  }

  const Environment& environment_;
  const Launcher& launcher_;
};

// Joins what is not empty by '.', with everything that a file name might not take replaced.
std::string launch_id(const std::vector<std::string>& parts) {
  std::string id;
  for (const std::string& part : parts) {
    if (part.empty()) continue;
    if (!id.empty()) id += '.';
    for (const char c : part) {
      const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
      id += plain ? c : '_';
    }
  }
  return id;
}

std::string tagged(std::string_view tag, const std::string& value) {
  return value.empty() ? "" : std::string(tag) + "-" + value;
}

// Steps that Slurm numbers from the top are its own: the batch script, the shell of salloc, external processes.
bool is_slurm_task(const Reader& reader) {
  if (!reader.has("SLURM_STEP_ID")) return false;
  const std::string step = reader.text("SLURM_STEP_ID");
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(step.data(), step.data() + step.size(), number);
  return error == std::errc() && end == step.data() + step.size() && number < 0xfffffff0U;
}

}  // namespace

Environment process_environment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos) environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

std::optional<LaunchEnvironment> launch_environment(const Environment& environment) {
  if (const Reader reader(environment, kTorchrun); reader.any_set()) {
    LaunchEnvironment result = reader.read();
    // The run id is "none" unless a user gives one, and stays the same over restarts.
    result.launch_id =
        launch_id({tagged("torchrun", reader.text("TORCHELASTIC_RUN_ID")), reader.text("MASTER_ADDR"),
                   reader.text("MASTER_PORT"), tagged("restart", reader.text("TORCHELASTIC_RESTART_COUNT"))});
    return result;
  }
  if (const Reader reader(environment, kOpenMpi); reader.any_set()) {
    LaunchEnvironment result = reader.read();
    const std::string job =
        reader.has("PMIX_NAMESPACE") ? reader.text("PMIX_NAMESPACE") : reader.text("OMPI_MCA_ess_base_jobid");
    result.launch_id = launch_id({tagged("openmpi", job)});
    return result;
  }
  if (const Reader reader(environment, kPmi); reader.any_set()) {
    LaunchEnvironment result = reader.read();
    if (reader.has("MPI_LOCALRANKID")) result.local_rank = reader.integer("MPI_LOCALRANKID", 0, result.world_size - 1);
    const std::string step = reader.has("SLURM_STEP_ID")
                                 ? reader.text("SLURM_JOB_ID") + "." + reader.text("SLURM_STEP_ID")
                                 : reader.text("PMI_JOBID");
    result.launch_id = launch_id({tagged("pmi", step)});
    return result;
  }
  if (const Reader reader(environment, kSlurm); is_slurm_task(reader)) {
    LaunchEnvironment result = reader.read();
    result.launch_id = launch_id({tagged("slurm", reader.text("SLURM_JOB_ID")), reader.text("SLURM_STEP_ID")});
    return result;
  }
  return std::nullopt;
}

}  // namespace droptest::comm
