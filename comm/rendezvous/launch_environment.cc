// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/launch_environment.h"

#include <ifaddrs.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
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
  std::string_view local_world_size;
  enum class LocalRank : std::uint8_t { kAlwaysSet, kMayBeMissing } local_rank_is;
};

constexpr Launcher kTorchrun{
    "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", Launcher::LocalRank::kMayBeMissing};
constexpr Launcher kOpenMpi{"Open MPI",
                            "OMPI_COMM_WORLD_RANK",
                            "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK",
                            "OMPI_COMM_WORLD_LOCAL_SIZE",
                            Launcher::LocalRank::kAlwaysSet};
constexpr Launcher kPmi{
    "PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", Launcher::LocalRank::kMayBeMissing};
// Slurm gives the number of tasks of all nodes in one list: tasks_of_this_node().
constexpr Launcher kSlurm{
    "Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "", Launcher::LocalRank::kAlwaysSet};

std::optional<int> whole_number(const std::string& text, int low, int high) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || number < low || number > high) return std::nullopt;
  return number;
}

std::string range_text(int low, int high) {
  return "an integer in [" + std::to_string(low) + ", " + std::to_string(high) + "]";
}

class Reader {
 public:
  Reader(const Environment& environment, const Launcher& launcher) : environment_(environment), launcher_(launcher) {}

  bool any_set() const { return has(launcher_.rank) || has(launcher_.world_size); }

  LaunchEnvironment read() const {
    LaunchEnvironment result;
    result.launcher = launcher_.name;
    result.world_size = integer(launcher_.world_size, 1, std::numeric_limits<int>::max());
    result.rank = integer(launcher_.rank, 0, result.world_size - 1);
    int local_most = result.world_size - 1;
    if (!launcher_.local_world_size.empty() && has(launcher_.local_world_size)) {
      result.local_world_size = integer(launcher_.local_world_size, 1, result.world_size);
      local_most = result.local_world_size - 1;
    }
    if (launcher_.local_rank_is == Launcher::LocalRank::kAlwaysSet || has(launcher_.local_rank)) {
      result.local_rank = integer(launcher_.local_rank, 0, local_most);
    }
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
    const std::optional<int> number = whole_number(found->second, low, high);
    if (!number) fail(name, "got \"" + found->second + "\", want " + range_text(low, high));
    return *number;
  }

  [[noreturn]] void fail(std::string_view name, const std::string& what) const {
    throw ConfigError("environment of " + std::string(launcher_.name) + ": " + std::string(name) + ": " + what);
  }

 private:
  const Environment& environment_;
  const Launcher& launcher_;
};

// The ranks of this node from Slurm's list of all nodes: "2(x3),1" is 2, 2, 2, 1. -1 if the step has no list.
int tasks_of_this_node(const Reader& reader, int world_size) {
  constexpr std::string_view kTasks = "SLURM_STEP_TASKS_PER_NODE";
  if (!reader.has(kTasks) || !reader.has("SLURM_NODEID")) return -1;
  int nodes_before = reader.integer("SLURM_NODEID", 0, world_size - 1);
  const std::string text = reader.text(kTasks);
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    const std::string entry = text.substr(start, end - start);
    start = end + 1;
    const std::size_t times = entry.find("(x");
    std::optional<int> nodes = 1;
    if (times != std::string::npos && entry.ends_with(')')) {
      nodes = whole_number(entry.substr(times + 2, entry.size() - times - 3), 1, std::numeric_limits<int>::max());
    }
    const std::optional<int> tasks = whole_number(entry.substr(0, times), 1, world_size);
    if (!nodes || !tasks) break;
    if (nodes_before < *nodes) return *tasks;
    nodes_before -= *nodes;
  }
  reader.fail(kTasks, "got \"" + text + "\", want a list such as 2(x3),1 that has node " + reader.text("SLURM_NODEID"));
}

// Joins the parts that are not empty by '.'; '_' replaces every character that a file name might not allow.
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

// Slurm numbers its own steps from the top: the batch script, the shell of salloc, external processes.
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
    const std::string step = reader.has("SLURM_STEP_ID")
                                 ? reader.text("SLURM_JOB_ID") + "." + reader.text("SLURM_STEP_ID")
                                 : reader.text("PMI_JOBID");
    result.launch_id = launch_id({tagged("pmi", step)});
    return result;
  }
  if (const Reader reader(environment, kSlurm); is_slurm_task(reader)) {
    LaunchEnvironment result = reader.read();
    result.local_world_size = tasks_of_this_node(reader, result.world_size);
    result.launch_id = launch_id({tagged("slurm", reader.text("SLURM_JOB_ID")), reader.text("SLURM_STEP_ID")});
    return result;
  }
  return std::nullopt;
}

std::optional<std::string> master_host(const Environment& environment) {
  const auto found = environment.find("MASTER_ADDR");
  if (found == environment.end()) return std::nullopt;
  if (found->second.empty()) {
    throw ConfigError("environment: MASTER_ADDR: got \"\", want the name or address of rank 0's machine");
  }
  return found->second;
}

std::string gloo_interface(const Environment& environment) {
  const auto given = environment.find("GLOO_SOCKET_IFNAME");
  if (given == environment.end() || given->second.empty()) return {};
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return given->second;  // gloo says what is wrong
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
  std::set<std::string> names;
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) names.emplace(one->ifa_name);
  if (names.contains(given->second)) return given->second;
  std::string known;
  for (const std::string& name : names) known += (known.empty() ? "" : ", ") + name;
  throw ConfigError("environment: GLOO_SOCKET_IFNAME: got \"" + given->second +
                    "\", want the name of one interface of this machine: " + known);
}

std::optional<int> master_port(const Environment& environment) {
  const auto found = environment.find("MASTER_PORT");
  if (found == environment.end()) return std::nullopt;
  const auto agent = environment.find("TORCHELASTIC_USE_AGENT_STORE");
  const bool agent_listens = agent != environment.end() && agent->second == "True";
  const int most = agent_listens ? 65534 : 65535;
  const std::optional<int> port = whole_number(found->second, 1, most);
  if (!port) {
    throw ConfigError("environment: MASTER_PORT: got \"" + found->second + "\", want " + range_text(1, most) +
                      (agent_listens ? ": torchrun's agent listens there, the ranks use the port after it" : ""));
  }
  return *port + (agent_listens ? 1 : 0);
}

}  // namespace droptest::comm
