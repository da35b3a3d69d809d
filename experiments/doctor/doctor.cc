// SPDX-License-Identifier: Apache-2.0
#include "experiments/doctor/doctor.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>

#include "comm/backend_registry.h"
#include "comm/device/device_info.h"
#include "comm/device/device_libraries.h"
#include "comm/json/json_text.h"
#include "comm/rendezvous/launch_environment.h"
#include "comm/rendezvous/rendezvous_probe.h"
#include "comm/rendezvous/tcp_connection.h"
#include "experiments/doctor/device_checks.h"
#include "experiments/doctor/examined_ranks.h"
#include "experiments/doctor/group_checks.h"
#include "experiments/doctor/launch_checks.h"
#include "experiments/doctor/machine_checks.h"
#include "experiments/records/run_records.h"
#include "experiments/run/choose_rendezvous.h"
#include "experiments/spec/kernels_in_use.h"
#include "experiments/spec/sweep_plan.h"
#include "models/kernels/cudnn_attention.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

/// Folders that checks had to make: removed after all checks, unless they have content by then.
class MadeFolders {
 public:
  MadeFolders() = default;
  ~MadeFolders() {
    // The innermost folder comes first: of nested folders, the one with the longest path.
    std::sort(missing_.begin(), missing_.end(),
              [](const auto& a, const auto& b) { return a.native().size() > b.native().size(); });
    std::error_code ignored;
    for (const std::filesystem::path& place : missing_) std::filesystem::remove(place, ignored);
  }
  MadeFolders(const MadeFolders&) = delete;
  MadeFolders& operator=(const MadeFolders&) = delete;

  /// Stores the folders that are missing on the way to this one.
  void will_make(const std::string& folder) {
    std::error_code ignored;
    for (std::filesystem::path place = std::filesystem::absolute(folder, ignored);
         !std::filesystem::exists(place, ignored) && place.has_relative_path(); place = place.parent_path()) {
      missing_.push_back(place);
    }
  }

 private:
  std::vector<std::filesystem::path> missing_;
};

/// The checks of the doctor for all runs of a plan, group by group.
class Examination {
 public:
  explicit Examination(const DoctorOptions& options)
      : options_(options), launched_(read_launch(comm::process_environment())), survey_(comm::survey_devices()) {
    if (launched_.launch) report_.rank = launched_.launch->rank;
  }

  DoctorReport run() {
    std::optional<SweepPlan> plan;
    try {
      plan = plan_sweep(read_spec(options_.spec_file, options_.overrides));
      add({"spec", "", Health::kOk,
           options_.spec_file + ": " + std::to_string(plan->runs.size()) + (plan->runs.size() == 1 ? " run" : " runs"),
           ""});
    } catch (const ConfigError& error) {
      add({"spec", "", Health::kFailed, error.what(), "docs/specs.md says what a spec may hold"});
    }
    for (const Finding& finding : launched_.findings) add(finding);
    made_.will_make(options_.out);
    if (!plan) return without_spec();
    if (plan->runs.front().run.config.command) {
      add({"program", "", Health::kWarning, "/command: what a program of your own needs is not known here",
           "the other checks are those without a spec"});
      return without_spec();
    }
    check_machine(*plan);
    for (const PlannedRun* run : groups(*plan)) check_group(*run);
    return std::move(report_);
  }

 private:
  bool launched() const { return launched_.launch.has_value(); }
  bool is_rank_0() const { return report_.rank == 0; }

  void add(const Finding& finding) { report_.findings.push_back(finding); }

  /// Adds a finding unless it is there: the runs of a sweep have much in common.
  void add_new(const Finding& finding) {
    const bool known = std::any_of(report_.findings.begin(), report_.findings.end(), [&finding](const Finding& other) {
      return other.check == finding.check && other.health == finding.health && other.seen == finding.seen;
    });
    if (!known) add(finding);
  }

  DoctorReport without_spec() {
    add(check_results(options_.out));
    for (const Finding& finding : check_devices(0, survey_, {})) add(finding);
    report_.told_rank_0 = false;
    return std::move(report_);
  }

  void check_machine(const SweepPlan& plan) {
    std::uint64_t all_records = 0;
    const PlannedRun* largest = &plan.runs.front();
    std::set<std::string> corpora;
    for (std::size_t i = 0; i < plan.runs.size(); ++i) {
      const PlannedRun& planned = plan.runs[i];
      if (planned.same_as != i) continue;
      all_records += record_bytes(planned.run.config);
      if (least_memory(planned) > least_memory(*largest)) largest = &planned;
      add_new(check_backend(planned.run.config.backend.name));
      const nlohmann::json& spec = planned.run.spec;
      const nlohmann::json key = {spec.at("data"), spec.at("model"), spec.at("training"), spec.at("validation")};
      if (!corpora.insert(key.dump()).second) continue;
      add_new(check_corpus(planned.run.config));
      if (const std::optional<Finding> weights = check_initial_weights(planned.run.config)) add_new(*weights);
    }
    if (is_rank_0()) {  // rank 0 writes the records
      add(check_results(options_.out));
      add(check_disk(options_.out, all_records));
    }
    add(check_memory(least_memory(*largest), available_memory_bytes()));
    int wanted = 0;
    for (const PlannedRun& planned : plan.runs)
      wanted = std::max(wanted, wanted_devices(planned.run, launched_.launch));
    if (wanted > 0) libraries_ = comm::device_library_versions(survey_);
    for (const Finding& finding : check_devices(wanted, survey_, libraries_)) add(finding);
    if (std::ranges::any_of(plan.runs, [](const PlannedRun& planned) { return uses_cudnn(planned.run.config); })) {
      add(check_cudnn(models::cudnn_library()));
    }
  }

  std::uint64_t least_memory(const PlannedRun& planned) const {
    const RunConfig& config = planned.run.config;
    if (comm::backend_entry(config.backend.name).rank_kind == comm::RankKind::kThreads) {
      return least_memory_bytes(config, {config.parallel.world_size(), 1});
    }
    const int here = launched() ? 1 : config.parallel.world_size();
    return least_memory_bytes(config, {here, here});
  }

  /// The first run of each backend and number of ranks.
  static std::vector<const PlannedRun*> groups(const SweepPlan& plan) {
    std::vector<const PlannedRun*> first;
    std::set<std::string> known;
    for (const PlannedRun& planned : plan.runs) {
      const nlohmann::json key = {planned.run.spec.at("backend"), planned.run.config.parallel.world_size()};
      if (known.insert(key.dump()).second) first.push_back(&planned);
    }
    return first;
  }

  void check_group(const PlannedRun& planned) {
    const RunConfig& config = planned.run.config;
    const comm::BackendEntry& backend = comm::backend_entry(config.backend.name);
    about_ = config.backend.name + ", " + std::to_string(config.parallel.world_size()) +
             (config.parallel.world_size() == 1 ? " rank" : " ranks");
    if (launched()) {
      const Finding launch = check_launch(*launched_.launch, backend.rank_kind, config.parallel.world_size());
      add_about(launch);
      if (launch.health == Health::kFailed) return skip("the launch is wrong");
    }
    if (!backend.built) return skip("the backend is not built");
    if (backend.rank_kind == comm::RankKind::kThreads) {
      if (is_rank_0()) measure([&] { return examine_threads(config, facts(), options_.bandwidth); }, planned.run);
      return;
    }
    if (any_failed(launched_.findings)) return skip("the launcher's variables are wrong");
    add_new(check_host_name(launched() ? OtherMachines::kMaybe : OtherMachines::kNone));
    const RunDirectory directory = run_directory(options_.out, config.name, planned.run.run_id);
    const comm::Rendezvous rendezvous = meeting_place(config, directory.path + "/rendezvous");
    if (rendezvous.kind == comm::Rendezvous::Kind::kFile) made_.will_make(rendezvous.directory);
    if (!probe(rendezvous, config.backend.timeout)) return skip("the ranks cannot meet");
    measure(
        [&] {
          if (!launched()) return examine_processes(planned.run, rendezvous, options_.rank_command);
          return examine_joined(config, *launched_.launch, rendezvous, "doctor." + planned.run.run_id, facts(),
                                options_.bandwidth);
        },
        planned.run);
  }

  /// Ranks of one machine reach each other at any address of the host name.
  void accept_host_name() {
    for (Finding& finding : report_.findings) {
      if (finding.check == kHostNameCheck) finding = check_host_name(OtherMachines::kNone);
    }
  }

  /// The place where the ranks of a run would meet.
  comm::Rendezvous meeting_place(const RunConfig& config, const std::string& folder) const {
    comm::Environment environment = comm::process_environment();
    const std::optional<comm::Rendezvous>& named = config.backend.rendezvous;
    if (!launched() && named && named->kind == comm::Rendezvous::Kind::kTcp) {
      if (named->host.empty()) environment["MASTER_ADDR"] = "127.0.0.1";
      if (named->port == 0) environment["MASTER_PORT"] = std::to_string(comm::unused_port());
    }
    return choose_rendezvous(named, environment, folder);
  }

  /// Writes to and reads from the rendezvous before the ranks use it.
  bool probe(const comm::Rendezvous& rendezvous, std::chrono::milliseconds timeout) {
    // The port is one of rank 0's machine; the others see it when they meet.
    if (rendezvous.kind == comm::Rendezvous::Kind::kTcp && !is_rank_0()) return true;
    try {
      add_new({"rendezvous", "", Health::kOk, comm::probe_rendezvous(rendezvous, timeout) + ": written and read", ""});
      return true;
    } catch (const std::exception& error) {
      const bool file = rendezvous.kind == comm::Rendezvous::Kind::kFile;
      add_about({"rendezvous", "", Health::kFailed, error.what(),
                 file ? "name a directory that all ranks see and can write: /backend/rendezvous/directory"
                      : "start the server, open its port, or mend /backend/rendezvous, MASTER_ADDR or MASTER_PORT"});
      return false;
    }
  }

  void add_about(Finding finding) {
    finding.about = about_;
    add(finding);
  }

  void skip(const std::string& reason) {
    add_about({"all-reduce", "", Health::kSkipped, "not measured: " + reason, ""});
    if (launched()) report_.told_rank_0 = false;
  }

  /// The facts of this rank, with its findings so far.
  RankFacts facts() const {
    RankFacts facts = own_facts();
    for (const auto& [name, version] : libraries_) facts.build += ", " + name + " " + version;
    for (const Finding& finding : report_.findings) {
      if (finding.health != Health::kOk) facts.findings.push_back(finding);
    }
    return facts;
  }

  template <class Examine>
  void measure(const Examine& examine_ranks, const ResolvedRun& run) {
    try {
      const GroupReport group = examine_ranks();
      if (on_one_host(group)) accept_host_name();
      for (Finding& finding : group_findings(group, run.config.backend.threads_per_rank)) {
        if (finding.about.empty()) finding.about = about_;
        add_new(finding);
      }
      if (!group.points.empty()) {
        report_.bandwidths.push_back({run.config.backend.name, run.config.parallel.world_size(), group.points});
      }
    } catch (const std::exception& error) {
      const std::optional<comm::Rendezvous>& named = run.config.backend.rendezvous;
      const bool by_file = !named || named->kind == comm::Rendezvous::Kind::kFile;
      add_about({"all-reduce", "", Health::kFailed, error.what(),
                 std::string("see that every rank is started, that machines reach each other, ") +
                     (launched() && by_file ? "that the rendezvous directory is the same one on all of them, " : "") +
                     "and that the launch has an id of its own; the timeout is /backend/timeout_seconds"});
      report_.told_rank_0 = false;
    }
  }

  const DoctorOptions& options_;
  const LaunchChecks launched_;
  const comm::DeviceSurvey survey_;
  std::map<std::string, std::string> libraries_;  ///< versions of NVIDIA's libraries, if devices are wanted
  MadeFolders made_;
  DoctorReport report_;
  std::string about_;  ///< the group under examination
};

}  // namespace

DoctorReport examine(const DoctorOptions& options) { return Examination(options).run(); }

nlohmann::ordered_json to_json(const DoctorReport& report) {
  nlohmann::ordered_json record;
  record["ok"] = !any_failed(report.findings);
  record["checks"] = nlohmann::ordered_json::array();
  for (const Finding& finding : report.findings) record["checks"].push_back(to_json(finding));
  record["all_reduce"] = nlohmann::ordered_json::array();
  for (const GroupBandwidth& group : report.bandwidths) {
    nlohmann::ordered_json points = nlohmann::ordered_json::array();
    for (const BandwidthPoint& point : group.points) {
      points.push_back({{"bytes", point.bytes},
                        {"repetitions", point.repetitions},
                        {"median_seconds", point.median_seconds},
                        {"algorithm_bytes_per_second", algorithm_bandwidth(point.bytes, point.median_seconds)},
                        {"bus_bytes_per_second", bus_bandwidth(point.bytes, point.median_seconds, group.ranks)},
                        {"wrong_elements", point.wrong_elements}});
    }
    record["all_reduce"].push_back({{"backend", group.backend}, {"ranks", group.ranks}, {"points", points}});
  }
  return record;
}

}  // namespace droptest::experiments
