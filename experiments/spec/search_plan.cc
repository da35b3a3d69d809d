// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/search_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "comm/spec/parameters_from_json.h"
#include "experiments/schema/schema_kinds.h"
#include "experiments/spec/resolve.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using comm::quote_json;

SearchSettings read_settings(const nlohmann::json& section, const std::string& where) {
  const sim::Parameters rates = comm::parameters_from_json(section, where + ": /search");
  SearchSettings settings;
  settings.pointer = section.at("pointer").get<std::string>();
  settings.low = rates.probability("low");
  settings.high = rates.probability("high");
  settings.tolerance_percent = section.at("tolerance_percent").get<double>();
  settings.resolution = section.at("resolution").get<double>();
  settings.confidence = section.at("confidence").get<double>();
  settings.seeds = section.at("seeds").get<std::uint64_t>();
  settings.max_seeds =
      section.contains("max_seeds") ? section.at("max_seeds").get<std::uint64_t>() : 3 * settings.seeds;
  settings.max_runs = section.at("max_runs").get<std::uint64_t>();
  return settings;
}

std::vector<comm::Violation> contradictions(const SearchSettings& settings, const nlohmann::json& section) {
  std::vector<comm::Violation> found;
  if (settings.low <= 0) {
    found.push_back({"/search/low", "got " + quote_json(section.at("low")) +
                                        ", want a rate above 0: at 0 nothing is lost, which is the lossless twin"});
  }
  if (settings.high <= settings.low) {
    found.push_back({"/search/high", "got " + quote_json(section.at("high")) + ", want more than low, which is " +
                                         quote_json(section.at("low"))});
  }
  if (settings.max_seeds < settings.seeds) {
    found.push_back({"/search/max_seeds", "got " + std::to_string(settings.max_seeds) + ", want at least seeds, " +
                                              std::to_string(settings.seeds)});
  }
  if (settings.max_runs < 3 * settings.seeds) {
    found.push_back({"/search/max_runs", "got " + std::to_string(settings.max_runs) + ", want at least " +
                                             std::to_string(3 * settings.seeds) +
                                             ": the lossless twin, low and high with each of the seeds"});
  }
  return found;
}

}  // namespace

SearchPlan::SearchPlan(const Spec& spec, FileHashes* files) : where_(spec.where), spec_(spec.document) {
  try {
    read(spec, files);
  } catch (const ConfigError& error) {
    throw ConfigError(spec.origins.with_files(error.what(), where_));
  }
}

void SearchPlan::read(const Spec& spec, FileHashes* files) {
  comm::require_none(violations_of_spec(spec.document), where_);
  base_ = spec.document;
  for (const char* several : {"sweep", "repeat", "search"}) base_.erase(several);
  nlohmann::json asking = spec.document;
  if (!asking.contains("search")) asking["search"] = nlohmann::json::object();
  const nlohmann::json complete = schema_of_spec(asking).with_defaults(asking);
  name_ = complete.at("name").get<std::string>();
  description_ = complete.at("description").get<std::string>();
  settings_ = read_settings(complete.at("search"), where_);
  std::vector<comm::Violation> violations = contradictions(settings_, complete.at("search"));
  if (spec.document.contains("sweep")) {
    violations.push_back(
        {"/sweep", "got a sweep, want a spec of one run to search from; --set /sweep=null removes it"});
  }
  tokens_ = pointer_tokens(settings_.pointer, where_ + ": /search/pointer");
  const std::string reason = schema_of_spec(base_).unknown_pointer(tokens_);
  if (!reason.empty()) {
    violations.push_back({"/search/pointer", reason});
  } else if (tokens_[0] != "network") {
    violations.push_back(
        {"/search/pointer", "got " + quote_json(settings_.pointer) + ", want the place of a rate in /network"});
  }
  comm::require_none(violations, where_);

  nlohmann::json lossless = base_;
  lossless.erase("network");
  if (lossless.contains("command")) lossless["network"] = {{"loss", {{"model", "none"}}}};
  lossless.erase("numerics_version");  // a resolved spec's version depends on the network
  twin_.run = resolve(lossless, where_, files);
  // All runs of a search have the files that it began with.
  if (twin_.run.spec.contains("files")) base_["files"] = twin_.run.spec["files"];
  for (const char* section : {"data", "model"}) {
    if (!twin_.run.spec.contains(section)) continue;
    const nlohmann::json& resolved = twin_.run.spec.at(section);
    for (const char* member : {"sha256", "files", "validation_files"}) {
      if (resolved.contains(member)) base_[section][member] = resolved.at(member);
    }
  }
  twin_.point = {{"/network", nlohmann::json::object()}};
  const Seeds& seeds = twin_.run.config.seeds;
  const std::uint64_t first = std::max({seeds.weights, seeds.data, seeds.network});
  if (first + (settings_.max_seeds - 1) < first) {
    throw ConfigError(where_ + ": /search/max_seeds: got " + std::to_string(settings_.max_seeds) + ", want at most " +
                      std::to_string(std::uint64_t{0} - first) + " from seed " + std::to_string(first));
  }
  const std::string lowest = at(settings_.low, 0).run.run_id;  // compilers differ in which operand they take first
  if (lowest == at(settings_.high, 0).run.run_id) {
    throw ConfigError(where_ + ": /search/pointer: got " + quote_json(settings_.pointer) +
                      ", which changes nothing in this run (another part of /network overrides it, or the run has no "
                      "such traffic), want the place of a rate that is in use");
  }
}

PlannedRun SearchPlan::repeated(PlannedRun run, std::uint64_t repeat) const {
  const Seeds& first = twin_.run.config.seeds;
  run.seeds = {first.weights + repeat, first.data + repeat, first.network + repeat};
  if (repeat > 0) reseed(run.run, run.seeds);
  return run;
}

PlannedRun SearchPlan::at(double rate, std::uint64_t repeat) const {
  PlannedRun planned;
  nlohmann::json document = base_;
  set_member(document, tokens_, rate, where_ + ": " + settings_.pointer);
  try {
    planned.run = resolve(document, where_);
  } catch (const ConfigError& error) {
    throw ConfigError(std::string(error.what()) + " (at " + settings_.pointer + " = " + quote_json(rate) + ")");
  }
  planned.point = {{settings_.pointer, rate}};
  return repeated(std::move(planned), repeat);
}

PlannedRun SearchPlan::lossless(std::uint64_t repeat) const { return repeated(twin_, repeat); }

}  // namespace droptest::experiments
