// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/resolve_outer.h"

#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "comm/lossy/clock/time_model.h"
#include "comm/lossy/paths/path_registry.h"

namespace droptest::experiments {

using nlohmann::json;

void resolve_outer(json& spec, const std::string& where, RunConfig& config, std::vector<std::string>& errors) {
  if (!spec.contains("outer")) return;
  json& outer = spec["outer"];
  const auto report = [&](const std::string& pointer, const std::string& message) {
    errors.push_back(where + ": " + pointer + ": " + message);
  };
  models::OuterOptions& options = config.outer;
  options.every_steps = outer["every_steps"].get<std::uint64_t>();
  const std::string optimizer = outer["optimizer"];
  options.optimizer = optimizer == "nesterov" ? models::OuterOptimizer::kNesterov
                      : optimizer == "sgd"    ? models::OuterOptimizer::kSgd
                                              : models::OuterOptimizer::kAverage;
  if (options.optimizer == models::OuterOptimizer::kAverage) {
    for (const char* of_optimizer : {"learning_rate", "momentum"}) outer.erase(of_optimizer);
  }
  options.learning_rate = outer.value("learning_rate", options.learning_rate);
  options.momentum = outer.value("momentum", options.momentum);
  options.fragments = outer["fragments"].get<int>();
  options.delay_steps = outer["delay_steps"].get<std::uint64_t>();
  options.own_share = outer["own_share"].get<double>();
  if (options.delay_steps >= options.every_steps) {
    report("/outer/delay_steps", "got " + std::to_string(options.delay_steps) + ", want less than /outer/every_steps " +
                                     std::to_string(options.every_steps));
  }
  const auto fragments = static_cast<std::uint64_t>(options.fragments);
  if (fragments > options.every_steps) {
    report("/outer/fragments", "got " + std::to_string(fragments) + ", want at most /outer/every_steps " +
                                   std::to_string(options.every_steps) + ", one in each step");
  }
  if (config.parallel.data < 2) {
    report("/outer", "got outer steps with /parallel/data " + std::to_string(config.parallel.data) +
                         ", want at least two workers");
  }
  if (config.parallel.sequence > 1) {
    report("/parallel/sequence", "got " + std::to_string(config.parallel.sequence) +
                                     " with /outer, want 1: sequence ranks are no workers, since they average their "
                                     "gradients in each step");
  }
  if (outer.contains("quorum")) {
    const int workers = config.parallel.data;
    if (outer["quorum"].get<int>() > workers) {
      report("/outer/quorum", "got " + outer["quorum"].dump() + ", want at most /parallel/data " +
                                  std::to_string(workers) + ", the number of workers");
    }
    if (!outer.contains("grace_seconds")) outer["grace_seconds"] = 0.0;
  } else if (outer.contains("grace_seconds")) {
    report("/outer/grace_seconds", "got " + outer["grace_seconds"].dump() + " without /outer/quorum, want both");
  }
  if (config.sharding.shards_state()) {
    report("/parallel/zero", "got " + std::to_string(config.sharding.zero) +
                                 " with /outer, want 0: each worker has weights and moments of its own");
  }
  if (spec.contains("elastic")) report("/elastic", "got elastic runs with /outer, want one of them");
  if (spec.contains("failures")) report("/failures", "got failures with /outer, want one of them");
  const json& training = spec["training"];
  if (training.contains("loss_scale")) {
    report("/training/loss_scale",
           "got a loss scale with /outer, where each worker would have a scale of its own; "
           "want precision float32, bfloat16 or tf32 without one");
  }
}

void check_outer_network(const std::string& where, const std::string& pointer, const RunConfig& config,
                         std::vector<std::string>& errors) {
  const auto& network = config.network.of(sim::TrafficClass::kOuter);
  if (!config.outer.is_on() || !network) return;
  const auto refuse = [&](const std::string& got, const std::string& want) {
    errors.push_back(where + ": " + pointer + ": got " + got + " for the class outer, whose workers need to know " +
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

std::optional<sim::TrafficClass> class_with_quorum(const json& spec) {
  if (!spec.contains(json::json_pointer("/outer/quorum"))) return std::nullopt;
  return sim::TrafficClass::kOuter;
}

void resolve_quorum(const json& spec, const std::string& where, RunConfig& config, std::vector<std::string>& errors) {
  const json outer = spec.value("outer", json::object());
  if (!outer.contains("quorum")) return;
  auto& network = config.network.of(sim::TrafficClass::kOuter);
  if (!network) network.emplace();
  network->quorum = {outer["quorum"].get<int>(), outer["grace_seconds"].get<double>()};
  const auto refusal = comm::quorum_refusal(*network, config.time ? &*config.time : nullptr);
  if (refusal) errors.push_back(where + ": /outer/quorum: " + *refusal);
}

}  // namespace droptest::experiments
