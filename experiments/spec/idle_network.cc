// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/idle_network.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "comm/spec/network_schema.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

/// Whether a section names losses, and whether one of them can lose packets.
enum class Said : std::uint8_t { kNothing, kNone, kLoss };

Said said_by(const json& section) {
  Said said = Said::kNothing;
  const auto hear = [&said](const json& loss) {
    said = std::max(said, loss["model"] == "none" ? Said::kNone : Said::kLoss);
  };
  if (section.contains("loss")) hear(section["loss"]);
  if (section.contains("links")) said = std::max(said, Said::kNone);  // an empty list says that no link has any
  for (const json& link : section.value("links", json::array())) hear(link["loss"]);
  for (const char* half : {"reduce", "gather"}) {
    if (section.contains(half)) said = std::max(said, said_by(section[half]));
  }
  return said;
}

/// The change of a spec that gives its run packets of the class: "want /parallel/tensor 2 or more".
std::string wanted_for(const std::string& class_name) {
  static const json document = comm::network_schema_document();
  return "want " + document["properties"]["network"]["properties"]["classes"]["properties"][class_name]["x-sent-with"]
                       .get<std::string>();
}

}  // namespace

std::vector<Warning> idle_network(const json& network, const std::vector<sim::TrafficClass>& in_use,
                                  comm::NetworkUse use) {
  std::vector<Warning> warnings;
  const json classes = network.value("classes", json::object());
  const Said of_all = said_by(network);
  if (in_use.empty()) {
    const std::string nothing = "no packet is sent, so none is lost";
    if (of_all == Said::kLoss) {
      warnings.push_back({"/network",
                          nothing +
                              ": with /parallel/data, /parallel/tensor, /parallel/sequence and /parallel/pipeline 1 "
                              "no traffic class has traffic; want 2 or more in one of them",
                          Warning::About::kRun});
    }
    for (const auto& [name, section] : classes.items()) {
      if (said_by(section) == Said::kNone) continue;
      warnings.push_back({"/network/classes/" + name, nothing + "; " + wanted_for(name), Warning::About::kOneClass});
    }
    return warnings;
  }
  std::string used;
  json classes_in_use = json::object();
  for (const sim::TrafficClass traffic_class : in_use) {
    const std::string name(sim::traffic_class_name(traffic_class));
    used += (used.empty() ? "" : ", ") + name;
    if (classes.contains(name)) classes_in_use[name] = classes[name];
  }
  for (const auto& [name, section] : classes.items()) {
    if (classes_in_use.contains(name) || said_by(section) == Said::kNone) continue;
    warnings.push_back({"/network/classes/" + name,
                        "no packet of this class is sent, so none is lost; the classes with traffic are " + used +
                            "; " + wanted_for(name),
                        Warning::About::kOneClass});
  }
  if (use != comm::NetworkUse::kLossOnly || of_all != Said::kNothing) return warnings;
  const std::string want = R"(; want a loss, or {"model": "none"} where none is meant)";
  bool some_class_says = false;
  for (const auto& [name, section] : classes_in_use.items()) {
    if (said_by(section) != Said::kNothing) {
      some_class_says = true;
    } else if (!section.empty()) {
      warnings.push_back({"/network/classes/" + name,
                          "no packet is lost: neither this class nor /network has a loss" + want,
                          Warning::About::kOneClass});
    }
  }
  const bool says_more = network.size() > (network.contains("classes") ? 1U : 0U);
  if (says_more && !some_class_says) {
    warnings.push_back({"/network", "no packet is lost: the network has no loss" + want, Warning::About::kRun});
  }
  return warnings;
}

}  // namespace droptest::experiments
