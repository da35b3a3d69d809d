// SPDX-License-Identifier: Apache-2.0
// droptest collective: an all-reduce under loss without training.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "comm/lossy/collective_experiment.h"
#include "comm/lossy/path_registry.h"
#include "experiments/cli/commands.h"
#include "experiments/cli/outcome_text.h"
#include "experiments/cli/spec_options.h"
#include "experiments/spec/json_text.h"
#include "experiments/spec/loss_from_json.h"
#include "experiments/spec/resolve_network.h"
#include "experiments/spec/resolve_time.h"
#include "experiments/spec/schema.h"
#include "sim/error.h"

namespace droptest::cli {
namespace {

using nlohmann::json;

struct CollectiveOptions {
  std::string path = "direct";
  int ranks = 8;
  int group_ranks = 0;
  std::uint64_t elements = 65536;
  std::uint64_t payload_bytes = 1408;
  std::string loss;
  std::string links;
  std::string reduce_loss;
  std::string gather_loss;
  std::string fill = "zero";
  std::string reduce_fill;
  std::string gather_fill;
  std::string consistency = "per_receiver";
  std::string burst_scope = "link";
  std::string recovery;
  std::string inputs = "independent";
  std::uint64_t trials = 100;
  std::uint64_t seed = 1;
  std::string time;
  bool dry = false;
};

constexpr int kMostThreads = 1024;

/// A loss process, checked here so that messages name the option.
json loss_option(const std::string& text, const std::string& option) {
  json loss = parse_json_option(text, option);
  json resolved = loss;
  experiments::loss_from_json(resolved, option);
  return loss;
}

/// Overrides of links, by the rules of a spec's network section.
json links_option(const std::string& text) {
  json links = parse_json_option(text, "--links");
  const json spec = {{"name", "collective"}, {"data", {{"text", "none"}}}, {"network", {{"links", links}}}};
  experiments::require_valid(experiments::SchemaKind::kSpec, spec, "--links");
  return experiments::schema_of(experiments::SchemaKind::kSpec).with_defaults(spec)["network"]["links"];
}

/// The options as the network section of a spec, so that they mean the same here and there.
json network_section(const CollectiveOptions& options) {
  json network = {{"path", options.path},
                  {"payload_bytes", options.payload_bytes},
                  {"consistency", options.consistency},
                  {"burst_scope", options.burst_scope},
                  {"loss", options.loss.empty() ? json{{"model", "none"}} : loss_option(options.loss, "--loss")},
                  {"fill", options.fill}};
  if (!options.links.empty()) network["links"] = links_option(options.links);
  if (options.group_ranks > 0) network["group_ranks"] = options.group_ranks;
  if (!options.reduce_loss.empty()) network["reduce"]["loss"] = loss_option(options.reduce_loss, "--reduce-loss");
  if (!options.gather_loss.empty()) network["gather"]["loss"] = loss_option(options.gather_loss, "--gather-loss");
  if (!options.reduce_fill.empty()) network["reduce"]["fill"] = options.reduce_fill;
  if (!options.gather_fill.empty()) network["gather"]["fill"] = options.gather_fill;
  if (!options.recovery.empty()) {
    network["recovery"] = parse_json_option(options.recovery, "--recovery");
    // The rules of a spec, in the smallest one that has this network.
    const json spec = {
        {"name", "collective"}, {"data", {{"text", "-"}}}, {"network", {{"recovery", network["recovery"]}}}};
    experiments::require_valid(experiments::SchemaKind::kSpec, spec, "--recovery");
    network["recovery"] =
        experiments::schema_of(experiments::SchemaKind::kSpec).with_defaults(spec).at("network").at("recovery");
  }
  return network;
}

/// One class with that network, lossless where nothing can be lost.
comm::ClassNetwork class_network(const CollectiveOptions& options, json& resolved) {
  constexpr sim::TrafficClass kClass = sim::TrafficClass::kTpForward;
  const experiments::ResolvedNetwork network = experiments::resolve_network(
      network_section(options), {kClass}, options.seed, "collective", options.ranks,
      options.time.empty() ? experiments::NetworkUse::kLossOnly : experiments::NetworkUse::kDeadline);
  std::string errors;
  for (const std::string& error : network.errors) errors += (errors.empty() ? "" : "\n") + error;
  if (!errors.empty()) throw ConfigError(errors);
  if (network.network.of(kClass)) {
    resolved = network.classes.at(std::string(sim::traffic_class_name(kClass)));
    return *network.network.of(kClass);
  }
  comm::ClassNetwork lossless;
  lossless.path = comm::path_entry(options.path).name;
  lossless.payload_bytes = options.payload_bytes;
  lossless.group_ranks = options.group_ranks;
  resolved = network_section(options);
  return lossless;
}

/// The option as the time section of a spec: the schema's rules, with defaults.
json time_section(const std::string& text) {
  const json spec = {{"name", "collective"}, {"data", {{"text", "none"}}}, {"time", parse_json_option(text, "--time")}};
  experiments::require_valid(experiments::SchemaKind::kSpec, spec, "--time");
  return experiments::schema_of(experiments::SchemaKind::kSpec).with_defaults(spec)["time"];
}

comm::TimeModel time_model(const json& section, const comm::ClassNetwork& network) {
  comm::Network all;
  all.of(sim::TrafficClass::kTpForward) = network;
  const experiments::ResolvedTime resolved = experiments::resolve_time(section, all, "--time");
  std::string errors;
  for (const std::string& error : resolved.errors) errors += (errors.empty() ? "" : "\n") + error;
  if (!errors.empty()) throw ConfigError(errors);
  return resolved.model;
}

json time_json(const comm::VirtualTime& time) {
  return {{"packets", time.packets},
          {"repeated_packets", time.repeated},
          {"timeouts", time.timeouts},
          {"late_packets", time.late}};
}

json estimate_json(const comm::Estimate& estimate) {
  return {{"measured", experiments::finite_or_null(estimate.measured)},
          {"standard_error", experiments::finite_or_null(estimate.standard_error)},
          {"expected", estimate.expected ? experiments::finite_or_null(*estimate.expected) : json()}};
}

int collective(const CollectiveOptions& options) {
  json resolved;
  comm::CollectiveExperiment experiment;
  experiment.network = class_network(options, resolved);
  experiment.ranks = options.ranks;
  experiment.elements = options.elements;
  experiment.inputs = options.inputs == "identical" ? comm::Inputs::kIdentical : comm::Inputs::kIndependent;
  experiment.trials = options.trials;
  experiment.seed = options.seed;
  json section;
  if (!options.time.empty()) {
    section = time_section(options.time);
    experiment.time = time_model(section, experiment.network);
  }
  if (!options.dry && options.ranks > kMostThreads) {
    throw ConfigError("--ranks: got " + std::to_string(options.ranks) + ", want at most " +
                      std::to_string(kMostThreads) + ", or --dry, which needs no threads");
  }
  if (options.dry && experiment.time)
    throw ConfigError("--time: got it with --dry, which has no clocks; want one of the two");
  const comm::CollectiveExperimentResult result =
      options.dry ? comm::simulate_collective_experiment(experiment) : comm::run_collective_experiment(experiment);
  const comm::LossCounts total = result.statistics.total();
  nlohmann::ordered_json report = {{"ranks", options.ranks},
                                   {"elements", options.elements},
                                   {"inputs", options.inputs},
                                   {"trials", options.trials},
                                   {"seed", options.seed},
                                   {"dry", options.dry},
                                   {"network", resolved},
                                   {"nmse", estimate_json(result.nmse)},
                                   {"survival", estimate_json(result.survival_reduce)},
                                   {"survival_gather", estimate_json(result.survival_gather)},
                                   {"survival_end_to_end", estimate_json(result.survival)},
                                   {"loss",
                                    {{"packets", total.packets},
                                     {"lost", total.lost_packets},
                                     {"configured_rate", total.configured_rate()},
                                     {"realised_rate", total.realised_rate()},
                                     {"repaired", total.repaired_packets},
                                     {"missing", total.residual_packets},
                                     {"resent", total.resent_packets},
                                     {"z", experiments::finite_or_null(total.z())},
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
  CLI::App* command = app.add_subcommand("collective", "Measure an all-reduce under loss, beside theory, as JSON");
  const auto options = std::make_shared<CollectiveOptions>();  // shared by CLI11's bindings and the action
  command->add_option("--path", options->path, "What physically travels; see droptest list")->capture_default_str();
  command->add_option("--ranks", options->ranks, "Ranks; without --dry at most 1024")
      ->check(CLI::Range(1, 65534))
      ->capture_default_str();
  command->add_option("--group-ranks", options->group_ranks, "Ranks of a group, on path hierarchical")
      ->check(CLI::Range(1, 65534));
  command->add_option("--elements", options->elements, "Elements (float) of each rank's input")->capture_default_str();
  command->add_option("--payload-bytes", options->payload_bytes, "Payload of a packet")->capture_default_str();
  command->add_option("--loss", options->loss, "Loss process, as JSON (docs/specs.md); default none");
  command->add_option("--links", options->links, "Links with a loss of their own, as JSON (docs/specs.md)");
  command->add_option("--reduce-loss", options->reduce_loss, "Of the reduce half alone");
  command->add_option("--gather-loss", options->gather_loss, "Of the gather half alone");
  command->add_option("--fill", options->fill, "What receivers put where nothing arrived")->capture_default_str();
  command->add_option("--reduce-fill", options->reduce_fill, "Of the reduce half alone");
  command->add_option("--gather-fill", options->gather_fill, "Of the gather half alone");
  command->add_option("--consistency", options->consistency, "Whether receivers of the gather half share fates")
      ->check(CLI::IsMember({"per_receiver", "shared"}))
      ->capture_default_str();
  command->add_option("--burst-scope", options->burst_scope, "Whether packet indices run on or start anew")
      ->check(CLI::IsMember({"link", "message"}))
      ->capture_default_str();
  command->add_option("--recovery", options->recovery, "What is done about losses, as JSON (docs/recovery.md)");
  command->add_option("--inputs", options->inputs, "Whether the ranks' inputs are equal")
      ->check(CLI::IsMember({"independent", "identical"}))
      ->capture_default_str();
  command->add_option("--trials", options->trials, "Collectives to run")->capture_default_str();
  command->add_option("--seed", options->seed, "Seed of fates and inputs")->capture_default_str();
  command->add_option("--time", options->time, "Virtual clock, as JSON: the time section of a spec (docs/time.md)");
  command->add_flag("--dry", options->dry, "Fates and survival only: no tensors, no threads, any number of ranks");
  command->footer(
      "Prints the error (nmse) and the share of contributions that survive, each with its standard error and, where a\n"
      "closed form exists, what it ought to be.\n\n"
      "Examples:\n"
      "  droptest collective --dry --path ring --ranks 4096 --trials 1 \\\n"
      "    --loss '{\"model\": \"bernoulli\", \"loss_rate\": \"0.01%\"}'\n"
      "  droptest collective --path direct --ranks 8 --elements 65536 --payload-bytes 1408 \\\n"
      "    --loss '{\"model\": \"bernoulli\", \"loss_rate\": \"5%\"}' --fill zero --inputs independent --trials 100");
  command->callback([options, &chosen] { chosen = [options] { return collective(*options); }; });
}

}  // namespace droptest::cli
