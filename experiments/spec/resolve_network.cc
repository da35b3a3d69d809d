// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/json/json_text.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/spec/resolve_network.h"
#include "comm/spec/resolve_time.h"
#include "experiments/spec/choose_paths.h"
#include "experiments/spec/dry_run.h"
#include "experiments/spec/index_space.h"
#include "experiments/spec/section_members.h"
#include "experiments/spec/section_resolvers.h"
#include "experiments/spec/value_classes.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using comm::quote_json;
using nlohmann::json;

/// Whether a rank can lose its own part of a gather.
bool loses_own_parts(const comm::ClassNetwork& network, comm::NetworkUse use) {
  const bool can_lose =
      network.gather.loss != nullptr || !network.gather.links.empty() || use == comm::NetworkUse::kDeadline;
  const bool by_sized_path = std::any_of(network.sized_paths.begin(), network.sized_paths.end(),
                                         [](const comm::SizedPath& sized) { return sized.path == "contribution"; });
  return can_lose &&
         (network.consistency == comm::Consistency::kShared || network.path == "contribution" || by_sized_path);
}

std::vector<sim::TrafficClass> named_classes(const json& network) {
  std::vector<sim::TrafficClass> named;
  for (const sim::TrafficClass of : sim::kAllTrafficClasses) {
    if (network.value("classes", json::object()).contains(sim::traffic_class_name(of))) named.push_back(of);
  }
  return named;
}

/// The class with messages that can arrive late, after a quorum of others.
std::optional<sim::TrafficClass> class_with_quorum(const json& spec) {
  if (!spec.contains(json::json_pointer("/outer/quorum"))) return std::nullopt;
  return sim::TrafficClass::kOuter;
}

/// The pointer of the member that decides for a class: the first member of these names that the class's section has, or
/// else that the network has.
std::string pointer_in_network(const Resolution& resolution, const std::string& class_name,
                               const std::vector<std::string>& members) {
  for (const std::string& section : {"/network/classes/" + class_name, std::string("/network")}) {
    for (const std::string& member : members) {
      std::string pointer = section + "/" + member;
      if (resolution.given.contains(json::json_pointer(pointer))) return pointer;
    }
  }
  return "/network";
}

/// Null for a config that cannot be run dry, with the reason among the errors.
std::shared_ptr<const DryRun> dry_run(Resolution& resolution) {
  try {
    return shared_dry_run(resolution.spec, resolution.config);
  } catch (const ConfigError& error) {
    resolution.errors.push_back(resolution.where + ": " + error.what());
    return nullptr;
  }
}

/// Workers need to know which weights have arrived.
void check_outer_network(Resolution& resolution, const std::string& pointer) {
  const RunConfig& config = resolution.config;
  const auto& network = config.network.of(sim::TrafficClass::kOuter);
  if (!config.outer.is_on() || !network) return;
  const auto refuse = [&](const std::string& got, const std::string& want) {
    resolution.report(pointer, "got " + got + " for the class outer, whose workers need to know " +
                                   "which elements of their own weights have arrived; want " + want);
  };
  const auto aggregates = [](std::string_view path) {
    return comm::path_entry(path).route == comm::Route::kAggregated;
  };
  bool all_aggregate = aggregates(network->path);
  for (const comm::SizedPath& small : network->sized_paths) all_aggregate = all_aggregate && aggregates(small.path);
  if (!all_aggregate) return refuse("the path " + std::string(network->path), "the path contribution");
  if (network->compression.kind != comm::CompressionKind::kNone) {
    refuse("a compression of sums", "no compression");
  } else if (network->recovery.hadamard_block_elems > 0 || network->recovery.interleave_packets > 1) {
    refuse("recovery hadamard or interleave", "neither of them");
  } else if (network->recovery.error_feedback != comm::ClassRecovery::ErrorFeedback::kOff) {
    refuse("recovery error_feedback", "none: what a worker has not delivered stays in its next difference");
  }
}

/// A rank's own parameters lie among those that it gathers, except with ZeRO 3.
void check_owner(Resolution& resolution, sim::TrafficClass of, comm::NetworkUse use) {
  const auto& network = resolution.config.network.of(of);
  const bool is_sharded = of == sim::TrafficClass::kParameterGather;
  if (!network || (is_sharded && resolution.config.sharding.shards_values())) return;
  if (!loses_own_parts(*network, use) || network->gather.rule().keeps_own()) return;
  const std::string name(sim::traffic_class_name(of));
  resolution.report(
      network->consistency == comm::Consistency::kShared
          ? pointer_in_network(resolution, name, {"consistency"})
          : pointer_in_network(resolution, name, {network->path == "contribution" ? "path" : "sized_paths"}),
      "got a network on which an owner loses its own parameters with the others (path \"contribution\", or "
      "consistency \"shared\"), want another one, " +
          std::string(is_sharded ? "gather fill \"own\", or /parallel/zero 3, where owners keep their parameters "
                                   "apart"
                                 : "or gather fill \"own\""));
}

}  // namespace

void resolve_network(Resolution& resolution) {
  json& network = resolution.spec["network"];
  const json time = resolution.spec.value("time", json());
  // The messages of a run are not known if its spec has other errors: then only the sections of the classes that it
  // names are checked.
  std::vector<sim::TrafficClass> sent = named_classes(network);
  comm::ClassRoles roles{
      {}, {}, class_with_quorum(resolution.spec), value_classes(resolution.config), resolution.config.tensor_sequence};
  int world_size = 1;
  if (!resolution.has_errors()) {
    read_members(resolution.spec["training"], resolution.config.training);
    const std::shared_ptr<const DryRun> run = dry_run(resolution);
    if (run == nullptr) return;
    sent = classes_with_network(*run, resolution.config);
    roles.scattered = run->scattered_class();
    roles.exchanged = run->exchanged_class();
    choose_paths(network, sent, *run, roles, resolution.config, time, resolution.where, resolution.errors);
    if (resolution.has_errors()) return;
    world_size = resolution.config.parallel.world_size();
  }
  comm::ResolvedNetwork resolved =
      comm::resolve_network(network, sent, resolution.config.seeds.network, resolution.where, world_size,
                            comm::network_use(time), time, roles);
  resolution.errors.insert(resolution.errors.end(), resolved.errors.begin(), resolved.errors.end());
  for (const comm::ReplacedFill& replaced : resolved.replaced_fills) {
    std::string classes;
    for (const sim::TrafficClass of : replaced.classes) {
      classes.append(classes.empty() ? "" : ", ").append(sim::traffic_class_name(of));
    }
    const bool of_all = replaced.pointer == "/network/fill";
    resolution.warnings.push_back({replaced.pointer,
                                   "got " + quote_json(replaced.fill) + ", which has no meaning for the losses of " +
                                       classes + R"(, so "zero" takes its place there; want another fill)" +
                                       (of_all ? ", or one in the section of the class" : " or path") +
                                       (replaced.fill == "skip"     ? " (skip is for messages between pipeline stages)"
                                        : replaced.fill == "absent" ? " (absent is for sequence_forward)"
                                                                    : ""),
                                   Warning::About::kRun});
  }
  network = {{"classes", std::move(resolved.classes)}};
  resolution.config.network = std::move(resolved.network);
  if (!resolution.has_errors()) {
    const std::vector<std::string> members = {"path", "compression", "recovery"};
    check_outer_network(resolution, pointer_in_network(resolution, "outer", members));
  }
  const auto& gather = resolution.config.network.of(sim::TrafficClass::kParameterGather);
  if (gather && resolution.config.sharding.shards_values() && gather->gather.rule().keeps_own()) {
    resolution.report(pointer_in_network(resolution, "parameter_gather", {"gather/fill", "fill"}),
                      "got " + quote_json(network["classes"]["parameter_gather"]["gather"]["fill"]) +
                          R"(, want "stale" or "zero" with /parallel/zero 3, where a rank keeps no other parameters)");
  }
  for (const sim::TrafficClass of : {sim::TrafficClass::kTpForward, sim::TrafficClass::kTpBackward}) {
    const auto& layers = resolution.config.network.of(of);
    if (!resolution.config.tensor_sequence || !layers || !layers->gather.rule().keeps_own()) continue;
    const std::string name(sim::traffic_class_name(of));
    resolution.report(
        pointer_in_network(resolution, name, {"gather/fill", "fill"}),
        "got " + quote_json(network["classes"][name]["gather"]["fill"]) +
            R"(, want "zero" or "stale" with /parallel/tensor_sequence true, where a rank has no values of the )"
            "tokens that it gathers");
  }
  // What is remembered of gradients is multiplied when the loss scale changes. The class also gathers activations here.
  const auto& backward = resolution.config.network.of(sim::TrafficClass::kTpBackward);
  if (resolution.config.tensor_sequence && backward && backward->gather.rule().remembers() &&
      resolution.config.training.loss_scale.kind == models::LossScaleConfig::Kind::kDynamic) {
    resolution.report(pointer_in_network(resolution, "tp_backward", {"gather/fill", "fill"}),
                      "got \"stale\" with a dynamic /training/loss_scale and /parallel/tensor_sequence true, want "
                      "\"zero\", or a static scale: gradients and activations have one memory, and only gradients "
                      "follow the scale");
  }
  for (const comm::ValueClass& values : value_classes(resolution.config))
    check_owner(resolution, values.of, comm::network_use(time));
}

void check_repetitions(Resolution& resolution) {
  if (resolution.config.network.is_empty()) return;
  const std::shared_ptr<const DryRun> run = dry_run(resolution);
  if (run == nullptr) return;
  for (const sim::TrafficClass traffic_class : run->classes()) {
    for (const PlannedCollective& planned : run->of(traffic_class)) {
      // Uneven parts are judged as if all were as large as the largest.
      const auto& counts = planned.call.counts;
      const auto ranks = static_cast<std::uint64_t>(planned.call.ranks);
      const std::uint64_t even =
          counts.empty() ? planned.call.elements : ranks * *std::max_element(counts.begin(), counts.end());
      // The whole of a message between two ranks is as large as a part of an all-reduce of twice its size.
      const std::uint64_t whole = even * (planned.call.collective == sim::Collective::kBroadcast ? ranks : 1);
      const comm::AllReduceSize size{planned.call.ranks, whole * sizeof(float) / comm::element_bytes(planned.type),
                                     planned.type};
      resolution.errors = comm::endless_repetitions(resolution.config.network, size,
                                                    resolution.spec.value("time", json()), resolution.where);
      if (resolution.has_errors()) return;
    }
  }
}

void resolve_time(Resolution& resolution) {
  if (!resolution.spec.contains("time")) return;
  comm::ResolvedTime resolved =
      comm::resolve_time(resolution.spec["time"], resolution.config.network, resolution.where);
  resolution.errors.insert(resolution.errors.end(), resolved.errors.begin(), resolved.errors.end());
  resolution.config.time = std::move(resolved.model);
}

void check_indices(Resolution& resolution) {
  const std::shared_ptr<const DryRun> run = resolution.config.network.is_empty() ? nullptr : dry_run(resolution);
  if (run == nullptr) return;
  for (const IndexRefusal& refusal : index_refusals(resolution.config, *run)) {
    const std::string name(sim::traffic_class_name(refusal.of));
    resolution.report(
        refusal.member.empty() ? "/training/steps" : pointer_in_network(resolution, name, {refusal.member}),
        refusal.reason);
  }
}

}  // namespace droptest::experiments
