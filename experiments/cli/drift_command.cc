// SPDX-License-Identifier: Apache-2.0
// droptest drift: the drift between replicas of parameters that are updated through lossy collectives.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "comm/lab/drift_experiment.h"
#include "experiments/cli/commands.h"
#include "experiments/cli/network_options.h"
#include "experiments/cli/number_options.h"

namespace droptest::cli {
namespace {

struct DriftOptions {
  NetworkOptions network;
  std::uint64_t elements = 8192;
  std::uint64_t steps = 60;
  std::uint64_t trials = 20;
};

int drift(const DriftOptions& options) {
  const ClassNetworkOption network = class_network(options.network, comm::NetworkUse::kLossOnly);
  // A rank has a gradient, a replica, the part that it owns and the messages of one more tensor.
  require_memory(options.elements, options.network.ranks, 4);
  comm::DriftExperiment experiment;
  experiment.network = network.network;
  experiment.ranks = options.network.ranks;
  experiment.elements = options.elements;
  experiment.steps = options.steps;
  experiment.trials = options.trials;
  experiment.seed = options.network.seed;
  const comm::DriftExperimentResult result = comm::run_drift_experiment(experiment);
  const nlohmann::ordered_json report = {{"ranks", options.network.ranks},
                                         {"elements", options.elements},
                                         {"steps", options.steps},
                                         {"trials", options.trials},
                                         {"seed", options.network.seed},
                                         {"network", network.resolved},
                                         {"drift_between_replicas", estimate_json(result.between_replicas)},
                                         {"drift_from_owner", estimate_json(result.from_owner)},
                                         {"squared_step", estimate_json(result.step)}};
  std::cout << report.dump(2) << "\n";
  return kExitSuccess;
}

}  // namespace

void add_drift_command(CLI::App& app, Action& chosen) {
  CLI::App* command =
      app.add_subcommand("drift", "Measure how far replicas drift apart under lossy updates, next to theory, as JSON");
  const auto options = std::make_shared<DriftOptions>();  // shared by CLI11's bindings and the action
  options->network.command = "drift";
  options->network.reduce_fill = "inverse_probability";
  options->network.gather_fill = "stale";
  add_network_options(*command, options->network);
  add_integer(*command, "--elements", options->elements, "Parameters (float)", kElements)->capture_default_str();
  add_integer(*command, "--steps", options->steps, "Updates in each trial; after the last, drift is measured",
              {1, 1000000000})
      ->capture_default_str();
  add_integer(*command, "--trials", options->trials, "Independent walks", kTrials)->capture_default_str();
  add_integer(*command, "--seed", options->network.seed, "Seed of fates and gradients", {})->capture_default_str();
  command->footer(
      "Each step every rank draws a random gradient; a lossy reduce-scatter gives its mean to the owner of each part,\n"
      "who adds it; a lossy all-gather sends the parts to all. Drift is a mean square in units of one step.\n\n"
      "Example:\n"
      "  droptest drift --ranks 8 --loss '{\"model\": \"bernoulli\", \"loss_rate\": \"10%\"}'");
  command->callback([options, &chosen] { chosen = [options] { return drift(*options); }; });
}

}  // namespace droptest::cli
