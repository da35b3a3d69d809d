// SPDX-License-Identifier: Apache-2.0
#include "experiments/doctor/examined_ranks.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <exception>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "comm/backend_registry.h"
#include "comm/json/read_file.h"
#include "comm/run_ranks.h"
#include "experiments/doctor/doctor.h"
#include "experiments/files/atomic_file.h"
#include "experiments/process/rank_processes.h"
#include "experiments/run/choose_rendezvous.h"
#include "experiments/run/hold_points.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

/// A folder of only this process, which is removed with the object unless it is kept.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    path_ = (std::filesystem::temp_directory_path() / "droptest-doctor-XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr) comm::fail_on_file("create", path_, errno);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!kept_) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  void keep() { kept_ = true; }

 private:
  std::string path_;
  bool kept_ = false;
};

std::string spec_copy(const std::string& folder) { return folder + "/spec.json"; }
std::string group_report_file(const std::string& folder) { return folder + "/group.json"; }

/// The plan with messages in the memory of the run's device.
BandwidthPlan plan_for(const RunConfig& config, BandwidthPlan plan) {
  if (config.device == Device::kCuda) plan.memory = BandwidthPlan::Memory::kDevice;
  return plan;
}

/// Joins the group of a launch. `id` tells it from other groups that meet in the same place.
std::unique_ptr<comm::Communicator> join(const RunConfig& config, const comm::LaunchEnvironment& launch,
                                         const comm::Rendezvous& rendezvous, const std::string& id) {
  comm::ProcessGroupOptions options;
  options.rank = launch.rank;
  options.world_size = launch.world_size;
  options.timeout = config.backend.timeout;
  options.rendezvous = rendezvous;
  options.rendezvous.launch_id = id + (launch.launch_id.empty() ? "" : "." + launch.launch_id);
  return comm::backend_entry(config.backend.name).connect(options);
}

}  // namespace

GroupReport examine_joined(const RunConfig& config, const comm::LaunchEnvironment& launch,
                           const comm::Rendezvous& rendezvous, const std::string& id, const RankFacts& own,
                           const BandwidthPlan& plan) {
  const std::unique_ptr<comm::Communicator> group = join(config, launch, rendezvous, id);
  try {
    if (const auto holds = HoldPoints::of(comm::process_environment())) holds->wait_before_all_reduce(launch.rank);
    return examine_group(*group, own, plan_for(config, plan));
  } catch (const std::exception& error) {
    group->abort(error.what());
    throw;
  }
}

GroupReport examine_threads(const RunConfig& config, const RankFacts& own, const BandwidthPlan& plan) {
  struct Shared {  // shared by the caller and the rank threads, one of which may be left behind
    RankFacts own;
    BandwidthPlan plan;
    GroupReport report;
  };
  const auto shared = std::make_shared<Shared>();
  shared->own = own;
  shared->plan = plan_for(config, plan);
  comm::run_ranks(config.parallel.world_size(), config.backend.timeout, [shared](comm::Communicator& group) {
    GroupReport report = examine_group(group, shared->own, shared->plan);
    if (group.rank() == 0) shared->report = std::move(report);
  });
  return shared->report;
}

GroupReport examine_processes(const ResolvedRun& run, const comm::Rendezvous& rendezvous,
                              const std::vector<std::string>& rank_command) {
  TemporaryFolder folder;
  nlohmann::json spec = run.spec;
  // The place where the run would meet does not follow from the folder of the ranks' spec.
  if (rendezvous.kind == comm::Rendezvous::Kind::kFile) {
    spec["backend"]["rendezvous"] = {{"kind", "file"},
                                     {"directory", std::filesystem::absolute(rendezvous.directory).string()}};
  } else if (rendezvous.kind == comm::Rendezvous::Kind::kTcp) {
    spec["backend"]["rendezvous"] = {{"kind", "tcp"}, {"host", rendezvous.host}, {"port", rendezvous.port}};
  }
  write_file_atomically(spec_copy(folder.path()), spec.dump());
  RankProcessesOptions ranks;
  ranks.command = rank_command;
  ranks.command.push_back(folder.path());
  ranks.world_size = run.config.parallel.world_size();
  ranks.log_directory = folder.path() + "/ranks";
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  ranks.launch_id = std::to_string(::getpid()) + "-" + std::to_string(now);
  try {
    run_rank_processes(ranks);
  } catch (const CommError&) {
    folder.keep();  // the error names the logs in it
    throw;
  }
  return group_report_from_json(comm::load_json(group_report_file(folder.path())));
}

void examine_as_rank(const std::string& folder, const BandwidthPlan& plan) {
  const ResolvedRun run = resolve(comm::load_json(spec_copy(folder)), spec_copy(folder));
  const std::optional<comm::LaunchEnvironment> launch = comm::launch_environment(comm::process_environment());
  if (!launch) throw ConfigError("this command is started by droptest doctor");
  const comm::Rendezvous rendezvous =
      choose_rendezvous(run.config.backend.rendezvous, comm::process_environment(), folder + "/rendezvous");
  const GroupReport report = examine_joined(run.config, *launch, rendezvous, "doctor." + run.run_id, own_facts(), plan);
  if (launch->rank == 0) write_file_atomically(group_report_file(folder), to_json(report).dump());
}

}  // namespace droptest::experiments
