// SPDX-License-Identifier: Apache-2.0
// droptest collective: an all-reduce under loss without training.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "comm/json/schema.h"
#include "comm/lab/collective_experiment.h"
#include "comm/spec/network_schema.h"
#include "comm/spec/resolve_time.h"
#include "experiments/cli/commands.h"
#include "experiments/cli/known_names.h"
#include "experiments/cli/network_options.h"
#include "experiments/cli/number_options.h"
#include "experiments/cli/outcome_text.h"
#include "experiments/cli/spec_options.h"
#include "sim/error.h"

namespace droptest::cli {
namespace {

using nlohmann::json;

struct CollectiveOptions {
  NetworkOptions network;
  std::uint64_t elements = 65536;
  std::string inputs = "independent";
  std::uint64_t trials = 100;
  std::string time;
  bool dry = false;
};

constexpr int kMostThreads = 1024;

/// The option as the time section of a spec: the schema's rules, with defaults.
json time_section(const std::string& text) {
  const json document = {{"network", json::object()}, {"time", comm::parse_json(text, "--time")}};
  return comm::checked_sections(document, "--time")["time"];
}

/// The clock's rules; the network gets the retransmission of the section.
comm::TimeModel time_model(const json& section, comm::ClassNetwork& network) {
  comm::Network all;
  all.of(sim::TrafficClass::kTpForward) = network;
  const comm::ResolvedTime resolved = comm::resolve_time(section, all, "--time");
  comm::require_none(resolved.errors);
  network = *all.of(sim::TrafficClass::kTpForward);
  return resolved.model;
}

json time_json(const comm::VirtualTime& time) {
  return {{"packets", time.packets},
          {"repeated_packets", time.repeated},
          {"timeouts", time.timeouts},
          {"late_packets", time.late}};
}

int collective(const CollectiveOptions& options) {
  const json section = options.time.empty() ? json() : time_section(options.time);
  const ClassNetworkOption network = class_network(
      options.network, section.is_null() ? comm::NetworkUse::kLossOnly : comm::NetworkUse::kDeadline, section);
  comm::CollectiveExperiment experiment;
  experiment.network = network.network;
  experiment.ranks = options.network.ranks;
  experiment.elements = options.elements;
  experiment.inputs = options.inputs == "identical" ? comm::Inputs::kIdentical : comm::Inputs::kIndependent;
  experiment.trials = options.trials;
  experiment.seed = options.network.seed;
  if (!section.is_null()) experiment.time = time_model(section, experiment.network);
  if (!options.dry && options.network.ranks > kMostThreads) {
    throw ConfigError("--ranks: got " + std::to_string(options.network.ranks) + ", want at most " +
                      std::to_string(kMostThreads) + ", or --dry, which needs no threads");
  }
  // A rank has an input, a result and the messages of one more tensor.
  if (!options.dry) require_memory(options.elements, options.network.ranks, 3);
  const comm::CollectiveExperimentResult result =
      options.dry ? comm::simulate_collective_experiment(experiment) : comm::run_collective_experiment(experiment);
  const comm::LossCounts total = result.statistics.total();
  nlohmann::ordered_json report = {{"ranks", options.network.ranks},
                                   {"elements", options.elements},
                                   {"inputs", options.inputs},
                                   {"trials", options.trials},
                                   {"seed", options.network.seed},
                                   {"dry", options.dry},
                                   {"network", network.resolved},
                                   {"nmse", estimate_json(result.nmse)},
                                   {"peak_error", estimate_json(result.peak_error)},
                                   {"survival", estimate_json(result.survival_reduce)},
                                   {"survival_gather", estimate_json(result.survival_gather)},
                                   {"survival_end_to_end", estimate_json(result.survival)},
                                   {"loss",
                                    {{"packets", total.packets},
                                     {"lost", total.lost_packets},
                                     {"configured_rate", comm::finite_or_null(total.configured_rate())},
                                     {"realised_rate", comm::finite_or_null(total.realised_rate())},
                                     {"repaired", total.repaired_packets},
                                     {"missing", total.residual_packets},
                                     {"resent", total.resent_packets},
                                     {"z", comm::finite_or_null(total.z())},
                                     {"mean_burst_packets", total.mean_burst_packets()}}}};
  if (result.seconds) {
    report["seconds"] = estimate_json(*result.seconds);
    report["time"] = time_json(*result.time);
    report["time"]["model"] = section;
  }
  std::cout << report.dump(2) << "\n";
  return kExitSuccess;
}

}  // namespace

void add_collective_command(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("collective", "Measure an all-reduce under loss, next to theory, as JSON");
  const auto options = std::make_shared<CollectiveOptions>();  // shared by CLI11's bindings and the action
  options->network.command = "collective";
  add_network_options(*command, options->network);
  add_integer(*command, "--elements", options->elements, "Elements (float) of each rank's input", kElements)
      ->capture_default_str();
  command->add_option("--inputs", options->inputs, "Whether the ranks' inputs are equal")
      ->check(one_of({"independent", "identical"}))
      ->capture_default_str();
  add_integer(*command, "--trials", options->trials, "Collectives to run", kTrials)->capture_default_str();
  add_integer(*command, "--seed", options->network.seed, "Seed of fates and inputs", {})->capture_default_str();
  command->add_option("--time", options->time, "Virtual clock, as JSON: the time section of a spec (docs/time.md)");
  command->add_flag("--dry", options->dry,
                    "Fates, survival and time only: no tensors, no threads, any number of ranks");
  command->footer(
      "Prints the error (nmse) and the share of contributions that survive, each with its standard error and, where a\n"
      "closed form exists, the expected value.\n\n"
      "Examples:\n"
      "  droptest collective --dry --path ring --ranks 4096 --trials 1 \\\n"
      "    --loss '{\"model\": \"bernoulli\", \"loss_rate\": \"0.01%\"}'\n"
      "  droptest collective --path direct --ranks 8 --elements 65536 --payload-bytes 1408 \\\n"
      "    --loss '{\"model\": \"bernoulli\", \"loss_rate\": \"5%\"}' --fill zero --inputs independent --trials 100");
  command->callback([options, &chosen] { chosen = [options] { return collective(*options); }; });
}

}  // namespace droptest::cli
