// SPDX-License-Identifier: Apache-2.0
// droptest fates: the oracle that a user can question.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "comm/spec/loss_from_json.h"
#include "experiments/cli/commands.h"
#include "experiments/cli/known_names.h"
#include "experiments/cli/number_options.h"
#include "experiments/cli/outcome_text.h"
#include "experiments/cli/spec_options.h"
#include "experiments/records/fate_report_json.h"
#include "sim/loss/fate_report.h"
#include "sim/traffic_class.h"

namespace droptest::cli {
namespace {

/// Largest index of a link: larger indices plus --count would no longer be those of one counter.
constexpr std::uint64_t kMostPackets = std::uint64_t{1} << 63;

struct FatesOptions {
  std::string loss;
  std::uint64_t seed = 1;
  std::string traffic_class;
  std::uint16_t source = 0;
  std::uint16_t destination = 1;
  std::string half = "reduce";
  std::uint64_t first = 0;
  std::uint64_t step = 0;
  std::uint64_t message = 0;
  std::uint64_t count = 0;
  std::string format = "runs";
};

/// A fraction with six decimals, or with four digits if it is small: 2e-8 is not zero.
std::string fraction_text(double rate) {
  char text[32];
  std::snprintf(text, sizeof text, rate != 0 && std::abs(rate) < 1e-4 ? "%.4g" : "%.6f", rate);
  return text;
}

int fates(const FatesOptions& options) {
  nlohmann::json loss = comm::parse_json(options.loss, "--loss");
  const std::unique_ptr<sim::LossProcess> configured = comm::loss_from_json(loss, "--loss");
  const sim::LossProcess& process = configured->at_step(options.step);
  sim::Link link;
  link.traffic_class = sim::traffic_class_from_name(options.traffic_class);
  link.half = options.half == "reduce" ? sim::Half::kReduce : sim::Half::kGather;
  link.source = options.source;
  link.destination = options.destination;
  const sim::FateReport report =
      sim::report_fates(process, options.seed, link, {options.first, 0, options.message, std::nullopt}, options.count);
  if (options.format == "json") {
    std::cout << experiments::fate_report_json(process, options.seed, link, report).dump() << "\n";
    return kExitSuccess;
  }
  std::fputs((options.format == "bits" ? sim::render_bits(report) : sim::render_runs(report)).c_str(), stdout);
  std::printf(
      "# %llu of %llu packets lost: rate %s (configured %s, z %+.2f), mean burst %.3f packets (configured %.3f)\n",
      static_cast<unsigned long long>(report.lost), static_cast<unsigned long long>(report.packets),
      fraction_text(report.realised_rate).c_str(), fraction_text(report.configured_rate).c_str(), report.z,
      report.mean_burst_packets, report.configured_mean_burst_packets);
  return kExitSuccess;
}

}  // namespace

void add_fates_command(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("fates", "Print which packets of a link are lost");
  const auto options = std::make_shared<FatesOptions>();  // shared by CLI11's bindings and the action
  command->add_option("--loss", options->loss, "Loss process, as JSON (docs/specs.md)")->required();
  add_integer(*command, "--seed", options->seed, "Seed of the experiment", {})->capture_default_str();
  command->add_option("--class", options->traffic_class, "Traffic class, e.g. tp_forward")->required();
  add_integer(*command, "--src", options->source, "World rank that sends", {0, 65534})->capture_default_str();
  add_integer(*command, "--dst", options->destination, "World rank that receives; 65535: every receiver", {0, 65535})
      ->capture_default_str();
  command->add_option("--half", options->half, "Half of the collective")
      ->check(one_of({"reduce", "gather"}))
      ->capture_default_str();
  add_integer(*command, "--first", options->first, "Index of the first packet", {0, kMostPackets})
      ->capture_default_str();
  add_integer(*command, "--count", options->count, "Number of packets", {0, sim::kMostReportedPackets})->required();
  add_integer(*command, "--step", options->step, "Training step, for losses that change over steps", {0, kMostPackets})
      ->capture_default_str();
  add_integer(*command, "--message", options->message,
              "Number of messages that the link carried before, for losses that change over time", {0, kMostPackets})
      ->capture_default_str();
  command->add_option("--format", options->format, "runs: a line for each burst; bits: a character for each packet")
      ->check(one_of({"runs", "bits", "json"}))
      ->capture_default_str();
  command->footer(
      "Fates are a pure function of (seed, link, packet): a run with this loss and seed loses exactly these "
      "packets.\n\n"
      "Examples:\n"
      "  droptest fates --loss '{\"model\": \"bernoulli\", \"loss_rate\": 0.05}' --seed 7 --class tp_forward --src 0 "
      "\\\n"
      "    --dst 1 --first 0 --count 1000000 --format json\n"
      "  droptest fates --loss '{\"model\": \"gilbert_elliott\", \"loss_rate\": \"5%\", \"mean_burst_packets\": 8}' "
      "\\\n"
      "    --class tp_backward --src 2 --dst 3 --half gather --first 4096 --count 640 --format bits");
  command->callback([options, &chosen] { chosen = [options] { return fates(*options); }; });
}

}  // namespace droptest::cli
