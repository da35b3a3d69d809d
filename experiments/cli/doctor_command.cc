// SPDX-License-Identifier: Apache-2.0
// droptest doctor, and the hidden `doctor-rank`, one of the ranks that it starts.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "experiments/cli/commands.h"
#include "experiments/cli/number_options.h"
#include "experiments/cli/spec_options.h"
#include "experiments/doctor/doctor.h"
#include "experiments/process/child_process.h"
#include "sim/error.h"

namespace droptest::cli {
namespace {

struct DoctorCommandOptions {
  SpecOptions spec;
  std::string out = "results";
  experiments::BandwidthPlan bandwidth;
  bool json = false;
};

struct DoctorRankOptions {
  std::string folder;
  experiments::BandwidthPlan bandwidth;
};

constexpr IntegerRange kMessageBytes = {4, std::uint64_t{16} << 30};

void add_bandwidth_options(CLI::App& command, experiments::BandwidthPlan& plan) {
  add_size(command, "--from-bytes", plan.from_bytes, "Smallest message of the all-reduce (1KiB)", kMessageBytes);
  add_size(command, "--to-bytes", plan.to_bytes, "Largest message; each is four times the one before (64MiB)",
           kMessageBytes);
  add_integer(command, "--repetitions", plan.repetitions,
              "Repetitions of each size; fewer if they take more than a second", {1, 1000000})
      ->capture_default_str();
}

std::vector<std::string> rank_command(const experiments::BandwidthPlan& plan) {
  return {experiments::this_program(),
          "doctor-rank",
          "--from-bytes",
          std::to_string(plan.from_bytes),
          "--to-bytes",
          std::to_string(plan.to_bytes),
          "--repetitions",
          std::to_string(plan.repetitions)};
}

void print_finding(const experiments::Finding& finding) {
  std::printf("%-8s %-17s %s%s\n", std::string(experiments::health_name(finding.health)).c_str(), finding.check.c_str(),
              finding.about.empty() ? "" : (finding.about + ": ").c_str(), finding.seen.c_str());
  if (!finding.advice.empty()) std::printf("%-8s %-17s -> %s\n", "", "", finding.advice.c_str());
}

void print_bandwidth(const experiments::GroupBandwidth& group) {
  std::printf("\nall-reduce of floats over %s, %d ranks\n", group.backend.c_str(), group.ranks);
  std::printf("%12s %12s %14s %16s %12s\n", "bytes", "repetitions", "median us", "algorithm GB/s", "bus GB/s");
  for (const experiments::BandwidthPoint& point : group.points) {
    const double algorithm = experiments::algorithm_bandwidth(point.bytes, point.median_seconds);
    const double bus = experiments::bus_bandwidth(point.bytes, point.median_seconds, group.ranks);
    std::printf("%12llu %12d %14.1f %16.4f %12.4f\n", static_cast<unsigned long long>(point.bytes), point.repetitions,
                point.median_seconds * 1e6, algorithm / 1e9, bus / 1e9);
  }
}

std::string conclusion(const experiments::DoctorReport& report) {
  std::size_t failed = 0;
  std::size_t warnings = 0;
  for (const experiments::Finding& finding : report.findings) {
    failed += finding.health == experiments::Health::kFailed ? 1 : 0;
    warnings += finding.health == experiments::Health::kWarning ? 1 : 0;
  }
  const std::string counts =
      std::to_string(failed) + " failed, " + std::to_string(warnings) + (warnings == 1 ? " warning" : " warnings");
  return failed == 0 ? "ready to run (" + counts + ")" : "not ready to run (" + counts + ")";
}

/// Rank 0 prints for all; another rank prints only if rank 0 does not have its findings.
int doctor(const DoctorCommandOptions& options) {
  if (options.bandwidth.from_bytes > options.bandwidth.to_bytes) {
    throw ConfigError("--from-bytes: got " + std::to_string(options.bandwidth.from_bytes) +
                      ", want at most --to-bytes, " + std::to_string(options.bandwidth.to_bytes));
  }
  const experiments::DoctorReport report = experiments::examine(
      {options.spec.file, options.spec.overrides, options.out, options.bandwidth, rank_command(options.bandwidth)});
  const bool failed = experiments::any_failed(report.findings);
  if (report.rank != 0) {
    if (report.told_rank_0) return kExitSuccess;
    for (const experiments::Finding& finding : report.findings) {
      if (finding.health != experiments::Health::kFailed) continue;
      std::cerr << "droptest: error: rank " << report.rank << ": " << finding.check << ": " << finding.seen << "\n";
    }
    return failed ? kExitFailedRun : kExitSuccess;
  }
  if (options.json) {
    // Paths and messages of the system need not be UTF-8.
    std::cout << experiments::to_json(report).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
              << "\n";
  } else {
    for (const experiments::Finding& finding : report.findings) print_finding(finding);
    for (const experiments::GroupBandwidth& group : report.bandwidths) print_bandwidth(group);
    std::printf("\n%s\n", conclusion(report).c_str());
    std::fflush(stdout);
  }
  return failed ? kExitFailedRun : kExitSuccess;
}

}  // namespace

void add_doctor_command(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("doctor", "Check a machine or an allocation before a run, and measure it");
  const auto options = std::make_shared<DoctorCommandOptions>();  // shared by CLI11's bindings and the action
  add_spec_options(*command, options->spec);
  add_out_option(*command, options->out);
  add_bandwidth_options(*command, options->bandwidth);
  command->add_flag("--json", options->json, "Print JSON");
  command->footer(
      "Prints for each check what was found, and an advice: ok, warning, failed, or skipped if another check failed.\n"
      "The exit code is 1 if a check failed. Under mpirun, srun or torchrun start it as you start the run: rank 0\n"
      "prints the results of all ranks. The all-reduce is that of the spec's backend, without loss.\n\n"
      "Examples:\n"
      "  droptest doctor experiments/specs/gloo.json\n"
      "  mpirun -np 4 droptest doctor spec.json --set /backend/name=gloo --to-bytes 256MiB");
  command->callback([options, &chosen] { chosen = [options] { return doctor(*options); }; });
}

void add_doctor_rank_command(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("doctor-rank", "One rank of droptest doctor")->group("");
  const auto options = std::make_shared<DoctorRankOptions>();  // shared by CLI11's bindings and the action
  command->add_option("FOLDER", options->folder)->required();
  add_bandwidth_options(*command, options->bandwidth);
  command->callback([options, &chosen] {
    chosen = [options] {
      experiments::examine_as_rank(options->folder, options->bandwidth);
      return kExitSuccess;
    };
  });
}

}  // namespace droptest::cli
