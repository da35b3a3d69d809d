// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/choose_paths.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "comm/lab/time_simulation.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/spec/resolve_network.h"
#include "comm/spec/resolve_time.h"
#include "experiments/spec/dry_run.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

/// Enough for a mean under stragglers and retransmission; equal networks of all paths get equal draws.
constexpr std::uint64_t kTrials = 8;

/// A path that a class can take.
struct Candidate {
  std::string_view path;
  json meaning;  ///< the class's resolved section without its path
  comm::ClassNetwork network;
  comm::TimeModel time;
};

/// The pointer of the member that gives the class its path.
std::string pointer_of(const json& network, const std::string& name) {
  const json::json_pointer own("/classes/" + name + "/path");
  return network.contains(own) ? "/network" + own.to_string() : "/network/path";
}

/// The paths that the class can take, in the order of the registry. If there are none, `errors` gets the reasons
/// against the first path.
std::vector<Candidate> candidates_of(const json& network, sim::TrafficClass traffic_class, const RunConfig& config,
                                     const comm::ClassRoles& roles, const json& time, const std::string& where,
                                     std::vector<std::string>& errors) {
  const std::string name(sim::traffic_class_name(traffic_class));
  std::vector<Candidate> candidates;
  std::vector<std::string> refusals;
  for (const comm::PathEntry& path : comm::paths()) {
    if (path.schedule == nullptr) continue;
    json tried = network;
    tried["classes"][name]["path"] = path.name;
    comm::ResolvedNetwork resolved =
        comm::resolve_network(tried, {traffic_class}, config.seeds.network, where, config.parallel.world_size(),
                              comm::network_use(time), time, roles);
    if (resolved.errors.empty()) {
      comm::ResolvedTime timed = comm::resolve_time(time, resolved.network, where);
      resolved.errors = std::move(timed.errors);
      if (resolved.errors.empty()) {
        timed.model.compute_seconds = 0;
        json meaning = resolved.classes.at(name);
        for (const char* of_path : {"path", "group_ranks"}) meaning.erase(of_path);
        candidates.push_back({path.name, std::move(meaning), *resolved.network.of(traffic_class), timed.model});
      }
    }
    if (refusals.empty()) refusals = std::move(resolved.errors);
  }
  if (candidates.empty()) errors.insert(errors.end(), refusals.begin(), refusals.end());
  return candidates;
}

double mean_seconds(const Candidate& candidate, const PlannedCollective& collective, std::uint64_t seed) {
  comm::FateSimulation simulation = collective.call;
  simulation.network = candidate.network;
  simulation.seed = seed;
  simulation.trials = kTrials;
  const std::vector<double> seconds = comm::simulate_time(simulation, candidate.time).seconds;
  return std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size());
}

/// The candidate with the least mean time; the first one of equally fast candidates.
const Candidate& fastest(const std::vector<Candidate>& candidates, const PlannedCollective& collective,
                         std::uint64_t seed) {
  const Candidate* best = nullptr;
  double least = 0;
  for (const Candidate& candidate : candidates) {
    const double seconds = mean_seconds(candidate, collective, seed);
    if (best == nullptr || seconds < least) {
      best = &candidate;
      least = seconds;
    }
  }
  return *best;
}

void choose_for(json& section, std::vector<Candidate> candidates, std::vector<PlannedCollective> collectives,
                std::uint64_t seed) {
  std::ranges::stable_sort(collectives, [](const PlannedCollective& a, const PlannedCollective& b) {
    return std::pair(b.call.elements, a.call.collective) < std::pair(a.call.elements, b.call.collective);
  });
  const Candidate first = fastest(candidates, collectives.front(), seed);
  std::erase_if(candidates, [&first](const Candidate& one) { return one.meaning != first.meaning; });
  section["path"] = first.path;
  json small = json::array();  // from the largest down
  std::string_view above = first.path;
  for (const PlannedCollective& collective : collectives) {
    const std::string_view path = fastest(candidates, collective, seed).path;
    // Collectives of one size have one path.
    const bool has_path = !small.empty() && small.back()["up_to_elements"] == collective.call.elements;
    if (path == above || has_path) continue;
    above = path;
    small.push_back({{"up_to_elements", collective.call.elements}, {"path", path}});
  }
  std::reverse(small.begin(), small.end());
  if (small.empty()) {
    section.erase("sized_paths");
  } else {
    section["sized_paths"] = std::move(small);
  }
}

}  // namespace

void choose_paths(json& network, const std::vector<sim::TrafficClass>& in_use, const DryRun& run,
                  const comm::ClassRoles& roles, const RunConfig& config, const json& time, const std::string& where,
                  std::vector<std::string>& errors) {
  json chosen = network;
  for (const sim::TrafficClass traffic_class : in_use) {
    const std::string name(sim::traffic_class_name(traffic_class));
    // A class that repeats another one shares its section.
    if (sim::repeated_class(traffic_class) && !network.contains(json::json_pointer("/classes/" + name))) continue;
    const std::string pointer = pointer_of(network, name);
    if (json({{"network", network}}).at(json::json_pointer(pointer)) != comm::kChosenPath) continue;
    if (time.is_null()) {
      errors.push_back(where + ": " + pointer +
                       ": got \"auto\" without a time section, want one (/time), or the name of a path");
      return;
    }
    std::vector<Candidate> candidates = candidates_of(network, traffic_class, config, roles, time, where, errors);
    if (candidates.empty()) continue;
    if (run.of(traffic_class).empty()) {  // the class of a frozen embedding
      chosen["classes"][name]["path"] = "direct";
      continue;
    }
    choose_for(chosen["classes"][name], std::move(candidates), run.of(traffic_class), config.seeds.network);
  }
  if (chosen["path"] == comm::kChosenPath) chosen["path"] = "direct";  // the path of classes without traffic
  network = std::move(chosen);
}

}  // namespace droptest::experiments
