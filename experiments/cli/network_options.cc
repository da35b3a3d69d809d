// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/network_options.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "comm/json/schema.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/spec/loss_from_json.h"
#include "comm/spec/network_schema.h"
#include "experiments/cli/known_names.h"
#include "experiments/cli/number_options.h"
#include "experiments/cli/spec_options.h"
#include "experiments/doctor/machine_checks.h"
#include "sim/error.h"

namespace droptest::cli {
namespace {

using nlohmann::json;

/// A loss process, checked here so that messages name the option.
json loss_option(const std::string& text, const std::string& option) {
  json loss = comm::parse_json(text, option);
  if (loss.is_object() && loss.value("model", json()) == "timed_gilbert_elliott") return loss;  // a clock may say more
  json resolved = loss;
  comm::loss_from_json(resolved, option);
  return loss;
}

/// Overrides of links, by the rules of a spec's network section.
json links_option(const std::string& text) {
  json links = comm::parse_json(text, "--links");
  return comm::checked_sections({{"network", {{"links", std::move(links)}}}}, "--links")["network"]["links"];
}

/// The options as the network section of a spec, so that they have the same meaning in both.
json network_section(const NetworkOptions& options) {
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
    const json recovery = comm::parse_json(options.recovery, "--recovery");
    network["recovery"] =
        comm::checked_sections({{"network", {{"recovery", recovery}}}}, "--recovery")["network"]["recovery"];
  }
  return network;
}

}  // namespace

ClassNetworkOption class_network(const NetworkOptions& options, comm::NetworkUse use, const json& time) {
  constexpr sim::TrafficClass kClass = sim::TrafficClass::kTpForward;
  const comm::ResolvedNetwork network = comm::resolve_network(network_section(options), {kClass}, options.seed,
                                                              options.command, options.ranks, use, time);
  comm::require_none(network.errors);
  if (network.network.of(kClass)) {
    return {*network.network.of(kClass), network.classes.at(std::string(sim::traffic_class_name(kClass)))};
  }
  comm::ClassNetwork lossless;
  lossless.path = comm::path_entry(options.path).name;
  lossless.payload_bytes = options.payload_bytes;
  lossless.group_ranks = options.group_ranks;
  return {lossless, network_section(options)};
}

void require_memory(std::uint64_t elements, int ranks, int copies) {
  const std::optional<std::uint64_t> free = experiments::available_memory_bytes();
  const double bytes = static_cast<double>(elements) * sizeof(float) * ranks * copies;
  if (!free || bytes <= static_cast<double>(*free)) return;
  throw ConfigError("--elements: got " + std::to_string(elements) + ", which take " +
                    std::to_string(static_cast<std::uint64_t>(bytes / (1 << 30))) + " GiB on " + std::to_string(ranks) +
                    " ranks; want as few as fit into the " + std::to_string(*free >> 30) + " GiB that are free");
}

json estimate_json(const comm::Estimate& estimate) {
  return {{"measured", comm::finite_or_null(estimate.measured)},
          {"standard_error", comm::finite_or_null(estimate.standard_error)},
          {"expected", estimate.expected ? comm::finite_or_null(*estimate.expected) : json()}};
}

void add_network_options(CLI::App& command, NetworkOptions& options) {
  command.add_option("--path", options.path, "What physically travels; see droptest list")->capture_default_str();
  add_integer(command, "--ranks", options.ranks, "Ranks", {1, 65534})->capture_default_str();
  add_integer(command, "--group-ranks", options.group_ranks, "Ranks of a group, on path hierarchical", {1, 65534});
  add_integer(command, "--payload-bytes", options.payload_bytes, "Payload of a packet", {8, std::uint64_t{1} << 30})
      ->capture_default_str();
  command.add_option("--loss", options.loss, "Loss process, as JSON (docs/specs.md); default none");
  command.add_option("--links", options.links, "Links with a loss of their own, as JSON (docs/specs.md)");
  command.add_option("--reduce-loss", options.reduce_loss, "Of the reduce half alone");
  command.add_option("--gather-loss", options.gather_loss, "Of the gather half alone");
  command.add_option("--fill", options.fill, "What receivers put where nothing arrived")->capture_default_str();
  command.add_option("--reduce-fill", options.reduce_fill, "Of the reduce half alone");
  command.add_option("--gather-fill", options.gather_fill, "Of the gather half alone");
  command.add_option("--consistency", options.consistency, "Whether receivers of the gather half share fates")
      ->check(one_of({"per_receiver", "shared"}))
      ->capture_default_str();
  command.add_option("--burst-scope", options.burst_scope, "Whether packet indices run on or start anew")
      ->check(one_of({"link", "message"}))
      ->capture_default_str();
  command.add_option("--recovery", options.recovery, "What is done about losses, as JSON (docs/recovery.md)");
}

}  // namespace droptest::cli
