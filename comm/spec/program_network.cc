// SPDX-License-Identifier: Apache-2.0
#include "comm/spec/program_network.h"

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "comm/json/json_text.h"
#include "comm/json/schema.h"
#include "comm/lossy/fill/fills.h"
#include "comm/spec/embedded_schemas.h"
#include "comm/spec/network_schema.h"
#include "comm/spec/resolve_network.h"
#include "comm/spec/sha256.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

using nlohmann::json;

constexpr const char* kPath = "contribution";

// The rules of this folder's file, with the network section, the seed and the definitions of a network's own file.
const Schema& program_schema() {
  static const Schema kSchema = [] {
    const std::string file(embedded_schemas().at(1).first);
    json document = program_schema_document();
    const json network = network_schema_document();
    for (const char* member : {"network", "seed"}) document["properties"][member] = network["properties"][member];
    document["$defs"] = network["$defs"];
    const std::vector<std::pair<std::string, json>> files = {{file, std::move(document)}};
    return Schema(std::make_shared<const SchemaFiles>(files), file);
  }();
  return kSchema;
}

// Members of a class's network that only a communicator of droptest's own follows.
class Refusals {
 public:
  Refusals(const json& network, const std::string& where) : network_(network), where_(where) {}

  void check(const std::string& name, const ClassNetwork& network) {
    const auto refuse = [&](bool is_there, const std::string& member, const std::string& want) {
      if (is_there) add(name, member, want);
    };
    refuse(network.path != kPath, "path", "\"contribution\": the sums are those of another library");
    refuse(!network.sized_paths.empty(), "sized_paths", "it absent: every message takes the path contribution");
    const bool leaves_out = network.reduce.rule().source == FillRule::Source::kZero;
    refuse(!leaves_out, own_or_shared(name, "reduce/fill"), "zero, count_rescale or inverse_probability");
    refuse(network.gather.rule() != FillRule{}, own_or_shared(name, "gather/fill"), "zero");
    refuse(network.compression.kind != CompressionKind::kNone, "compression", "it absent");
    const ClassRecovery& recovery = network.recovery;
    refuse(recovery.interleave_packets != 1, "recovery/interleave", "it absent");
    refuse(recovery.hadamard_block_elems != 0, "recovery/hadamard", "it absent");
    refuse(recovery.error_feedback != ClassRecovery::ErrorFeedback::kOff, "recovery/error_feedback",
           "it absent or false");
    const Protection& protect = recovery.protect;
    refuse(!protect.layers.empty(), "recovery/protect/layers", "it absent: other programs' messages have no layer");
    refuse(!protect.names.empty(), "recovery/protect/names", "it absent: other programs' messages have no name");
    refuse(network.reduce.selection != LossSelection::kByFate, "reduce/selection", "by_fate");
    refuse(has_backward(name), "backward", "it absent: the backward pass is that of another library");
  }
  // A fill in whose place zeros would be: contributions of programs have fewer fills than those of runs.
  void check_replaced(const std::vector<ReplacedFill>& fills) {
    for (const ReplacedFill& replaced : fills) {
      if (fill_entry(fill_from_name(replaced.fill)).reduce_half) continue;
      errors_.push_back(where_ + ": " + replaced.pointer + ": got " + quote_json(replaced.fill) +
                        ", which has no meaning for lost contributions; want zero, count_rescale or "
                        "inverse_probability");
    }
  }
  std::vector<std::string> take() { return std::move(errors_); }

 private:
  bool has_backward(const std::string& name) const {
    return network_.contains(json::json_pointer("/classes/" + name + "/backward"));
  }
  // `fill` if the half has no fill of its own.
  std::string own_or_shared(const std::string& name, const std::string& member) const {
    return contains(section_of(name, member), member) ? member : "fill";
  }
  static bool contains(const json& section, const std::string& member) {
    return section.contains(json::json_pointer("/" + member));
  }
  const json& section_of(const std::string& name, const std::string& member) const {
    const json::json_pointer own("/classes/" + name);
    return network_.contains(own) && contains(network_[own], member) ? network_[own] : network_;
  }
  void add(const std::string& name, const std::string& member, const std::string& want) {
    const json& section = section_of(name, member);
    const std::string pointer = (&section == &network_ ? "/network/" : "/network/classes/" + name + "/") + member;
    const json::json_pointer place("/" + member);
    const std::string got = section.contains(place) ? quote_json(section[place]) : "it";
    const std::string error = where_ + ": " + pointer + ": got " + got + ", want " + want;
    if (std::find(errors_.begin(), errors_.end(), error) == errors_.end()) errors_.push_back(error);
  }

  const json& network_;
  const std::string& where_;
  std::vector<std::string> errors_;
};

// Whether a network section names a loss anywhere: for all classes, a half, links, or a class.
bool names_a_loss(const json& section) {
  if (section.is_object() && section.contains("loss")) return true;
  return section.is_structured() && std::any_of(section.begin(), section.end(), names_a_loss);
}

// The document with defaults, and with the path of other programs in the place of the default of specs.
json checked_document(std::string_view text, const std::string& where) {
  json document = program_schema().with_one_word(parse_json(text, where));
  require_valid(program_schema(), document, where);
  if (!names_a_loss(document["network"])) {
    throw ConfigError(where + ": /network: got no loss, want \"loss\" in it, in a half or in a class; " +
                      R"({"loss": {"model": "none"}} is a network that loses nothing)");
  }
  if (!document["network"].contains("path")) document["network"]["path"] = kPath;
  return program_schema().with_defaults(document);
}

}  // namespace

std::string network_digest_text(const std::string& identity) { return sha256_hex(identity).substr(0, 16); }

json program_schema_document() {
  const auto& [file, text] = embedded_schemas().at(1);
  return parse_json(text, std::string(file));
}

ProgramNetwork program_network_from_json(std::string_view text, const std::string& where, int world_size) {
  const json document = checked_document(text, where);
  const std::vector<sim::TrafficClass> classes(sim::kAllTrafficClasses.begin() + 1, sim::kAllTrafficClasses.end());
  // Classes without loss have a network too, as with a clock: their packets are counted.
  ResolvedNetwork resolved = resolve_network(document["network"], classes, document["seed"].get<std::uint64_t>(), where,
                                             world_size, NetworkUse::kTimed);
  require_none(resolved.errors);
  Refusals refusals(document["network"], where);
  for (const sim::TrafficClass of : classes) {
    refusals.check(std::string(sim::traffic_class_name(of)), *resolved.network.of(of));
  }
  refusals.check_replaced(resolved.replaced_fills);
  require_none(refusals.take());
  const json identity = {{"version", DROPTEST_VERSION},
                         {"seed", document["seed"]},
                         {"rules", document["rules"]},
                         {"classes", resolved.classes}};
  return {std::move(resolved.network), std::make_shared<const json>(std::move(resolved.classes)),
          std::make_shared<const json>(document["rules"]), document.value("statistics", ""), identity.dump()};
}

}  // namespace droptest::comm
