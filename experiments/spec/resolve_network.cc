// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/resolve_network.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>

#include "comm/lossy/path_registry.h"
#include "comm/lossy/recovery_rules.h"
#include "experiments/spec/class_recovery.h"
#include "experiments/spec/json_text.h"
#include "experiments/spec/parameters_from_json.h"
#include "sim/error.h"
#include "sim/loss/loss_registry.h"
#include "sim/recovery/recovery_registry.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

const std::array<std::pair<const char*, bool comm::FillEntry::*>, 2>& halves() {
  static const std::array<std::pair<const char*, bool comm::FillEntry::*>, 2> kHalves = {
      {{"reduce", &comm::FillEntry::reduce_half}, {"gather", &comm::FillEntry::gather_half}}};
  return kHalves;
}

bool is_none(const json& loss) { return loss["model"] == "none"; }

/// Builds the classes one by one; processes that are written alike are made once and shared.
class NetworkResolver {
 public:
  NetworkResolver(const std::string& where, NetworkUse use) : where_(where), use_(use) {}

  void add(sim::TrafficClass traffic_class, const json& all, ResolvedNetwork& result) {
    const std::string name(sim::traffic_class_name(traffic_class));
    json resolved = json::object();
    gather_loss_named_ = false;
    apply(all, "/network", resolved);
    if (all.contains("classes") && all["classes"].contains(name)) {
      apply(all["classes"][name], "/network/classes/" + name, resolved);
    }
    const comm::PathEntry& path = comm::path_entry(resolved["path"].get<std::string>());
    // `loss` of both halves is the reduce half's alone where nothing travels in the other one.
    if (path.shorthand == comm::LossShorthand::kReduceHalf && !gather_loss_named_) {
      resolved["gather"]["loss"] = {{"model", "none"}};
    }
    comm::ClassNetwork network;
    network.path = path.name;
    network.payload_bytes = resolved["payload_bytes"].get<std::uint64_t>();
    network.consistency =
        resolved["consistency"] == "shared" ? comm::Consistency::kShared : comm::Consistency::kPerReceiver;
    network.burst_scope = resolved["burst_scope"] == "message" ? comm::BurstScope::kMessage : comm::BurstScope::kLink;
    network.reduce = make_half(resolved["reduce"], "reduce");
    network.gather = make_half(resolved["gather"], "gather");
    if (use_ == NetworkUse::kLossOnly && !network.reduce.loss && !network.gather.loss) return;
    if (resolved.contains("recovery")) {
      // Only what is sent in the reduce half is sent again with the next message.
      if (!network.reduce.loss && use_ != NetworkUse::kDeadline) resolved["recovery"].erase("error_feedback");
      network.recovery = class_recovery(resolved["recovery"]);
      if (resolved["recovery"].empty()) resolved.erase("recovery");
    }
    for (const comm::RecoveryRefusal& refusal : comm::recovery_refusals(network)) report_recovery(refusal);
    result.network.of(traffic_class) = network;
    result.classes[name] = std::move(resolved);
  }

  std::vector<std::string> take_errors() { return std::move(errors_); }

  /// Lines may come from several classes that share a section; each is said once.
  void report(const std::string& error) {
    if (std::find(errors_.begin(), errors_.end(), error) == errors_.end()) errors_.push_back(error);
  }

 private:
  void apply(const json& layer, const std::string& pointer, json& resolved) {
    for (const char* key : {"path", "payload_bytes", "consistency", "burst_scope"}) {
      if (layer.contains(key)) resolved[key] = layer[key];
    }
    if (layer.contains("recovery")) apply_recovery(layer["recovery"], pointer + "/recovery", resolved);
    for (const auto& [half, has_meaning] : halves()) {
      json& target = resolved[half];
      if (layer.contains("loss")) set_loss(target, layer["loss"], pointer + "/loss", half);
      if (layer.contains("fill")) {
        const bool meant = fill_of(layer["fill"]).*has_meaning;
        target["fill"] = meant ? layer["fill"] : json("zero");
      }
      if (!layer.contains(half)) continue;
      const json& own = layer[half];
      const std::string place = pointer + "/" + half;
      if (own.contains("loss")) set_loss(target, own["loss"], place + "/loss", half);
      if (own.contains("recovery")) {
        target["recovery"] = own["recovery"];
        recovery_places_[half] = place + "/recovery";
      }
      if (own.contains("fill")) {
        target["fill"] = own["fill"];
        if (!(fill_of(own["fill"]).*has_meaning)) report_fill(own["fill"], place + "/fill", has_meaning);
      }
    }
    // What is said of a class speaks of both halves again.
    if (layer.contains("loss")) gather_loss_named_ = false;
    if (layer.contains("gather") && layer["gather"].contains("loss")) gather_loss_named_ = true;
  }

  /// A section's recovery replaces what was said of it before; what acts on links is spelled out for both halves.
  void apply_recovery(const json& recovery, const std::string& pointer, json& resolved) {
    json of_class = recovery;
    json of_links = json::object();
    for (const char* name : {"parity", "retransmit"}) {
      if (!recovery.contains(name)) continue;
      of_links[name] = recovery[name];
      of_class.erase(name);
    }
    resolved["recovery"] = normal_recovery(std::move(of_class));
    recovery_places_[""] = pointer;
    for (const auto& [half, has_meaning] : halves()) {
      resolved[half]["recovery"] = of_links;
      recovery_places_[half] = pointer;
    }
  }

  void report_recovery(const comm::RecoveryRefusal& refusal) {
    // "/reduce/recovery/parity" -> half "reduce", "/parity"; "/recovery/hadamard" -> no half, "/hadamard".
    const std::string key = "/recovery";
    const std::size_t at = refusal.pointer.find(key);
    const std::string half = at == 0 ? "" : refusal.pointer.substr(1, at - 1);
    report(where_ + ": " + recovery_places_[half] + refusal.pointer.substr(at + key.size()) + ": " + refusal.reason);
  }

  void set_loss(json& half, const json& loss, const std::string& pointer, const char* name) {
    half["loss"] = with_fractions(loss, pointer);
    loss_places_[name] = pointer;
  }

  /// The process with every probability as a fraction, whichever way it was written.
  json with_fractions(const json& loss, const std::string& pointer) {
    json result = loss;
    const sim::Parameters parameters = parameters_from_json(loss, where_ + ": " + pointer);
    for (auto& [name, value] : result.items()) {
      if (name == "model" || !value.is_string()) continue;
      try {
        value = parameters.probability(name);
      } catch (const ConfigError& error) {
        report(error.what());
      }
    }
    return result;
  }

  comm::HalfNetwork make_half(json& half, const std::string& name) {
    comm::HalfNetwork network;
    if (is_none(half["loss"])) {
      // Nothing is ever missing: a fill that cannot act is not part of the run's identity.
      if (use_ != NetworkUse::kDeadline) half["fill"] = "zero";
      half.erase("recovery");
      network.fill = comm::fill_from_name(half["fill"].get<std::string>());
      return network;
    }
    network.fill = comm::fill_from_name(half["fill"].get<std::string>());
    std::shared_ptr<const sim::LossProcess>& process = processes_[canonical_json(half["loss"])];
    if (!process) {
      try {
        process = sim::make_loss_process(parameters_from_json(half["loss"], where_ + ": " + loss_places_[name]));
      } catch (const ConfigError& error) {
        report(error.what());
      }
    }
    network.loss = process;
    network.recovery = make_recovery(half, name);
    return network;
  }

  std::shared_ptr<const sim::LinkRecovery> make_recovery(json& half, const std::string& name) {
    if (!half.contains("recovery")) return nullptr;
    if (half["recovery"].empty()) {
      half.erase("recovery");
      return nullptr;
    }
    try {
      return sim::make_link_recovery(parameters_from_json(half["recovery"], where_ + ": " + recovery_places_[name]));
    } catch (const ConfigError& error) {
      report(error.what());
      return nullptr;
    }
  }

  static const comm::FillEntry& fill_of(const json& name) {
    return comm::fill_entry(comm::fill_from_name(name.get<std::string>()));
  }

  void report_fill(const json& got, const std::string& pointer, bool comm::FillEntry::*has_meaning) {
    std::string known;
    for (const comm::FillEntry& entry : comm::fills()) {
      if (entry.*has_meaning) known += (known.empty() ? "" : ", ") + quote_json(std::string(entry.name));
    }
    report(where_ + ": " + pointer + ": got " + quote_json(got) + ", which has no meaning in this half, want one of " +
           known);
  }

  const std::string& where_;
  NetworkUse use_;
  std::vector<std::string> errors_;
  std::map<std::string, std::shared_ptr<const sim::LossProcess>> processes_;
  std::map<std::string, std::string> loss_places_;      ///< where the loss of each half was written
  std::map<std::string, std::string> recovery_places_;  ///< likewise; "": of the class
  bool gather_loss_named_ = false;
};

}  // namespace

ResolvedNetwork resolve_network(const json& network, const std::vector<sim::TrafficClass>& in_use, std::uint64_t seed,
                                const std::string& where, NetworkUse use) {
  ResolvedNetwork result;
  result.classes = json::object();
  result.network.seed = seed;
  NetworkResolver resolver(where, use);
  for (const sim::TrafficClass traffic_class : in_use) resolver.add(traffic_class, network, result);
  result.errors = resolver.take_errors();
  return result;
}

}  // namespace droptest::experiments
