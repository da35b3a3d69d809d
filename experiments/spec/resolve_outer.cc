// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/section_resolvers.h"

#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "comm/lossy/clock/time_model.h"
#include "experiments/spec/section_members.h"

namespace droptest::experiments {

using nlohmann::json;

void resolve_outer(Resolution& resolution) {
  json& spec = resolution.spec;
  if (!spec.contains("outer")) return;
  RunConfig& config = resolution.config;
  json& outer = spec["outer"];
  const auto report = [&](const std::string& pointer, const std::string& message) {
    resolution.report(pointer, message);
  };
  models::OuterOptions& options = config.outer;
  if (outer["optimizer"] == "average") {
    for (const char* of_optimizer : {"learning_rate", "momentum"}) outer.erase(of_optimizer);
  }
  read_members(outer, options);
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

void resolve_quorum(Resolution& resolution) {
  RunConfig& config = resolution.config;
  const json outer = resolution.spec.value("outer", json::object());
  if (!outer.contains("quorum")) return;
  auto& network = config.network.of(sim::TrafficClass::kOuter);
  if (!network) network.emplace();
  network->quorum = {outer["quorum"].get<int>(), outer["grace_seconds"].get<double>()};
  const auto refusal = comm::quorum_refusal(*network, config.time ? &*config.time : nullptr);
  if (refusal) resolution.report("/outer/quorum", *refusal);
}

}  // namespace droptest::experiments
