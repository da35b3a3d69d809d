// SPDX-License-Identifier: Apache-2.0
#include "comm/spec/resolve_network.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "comm/json/json_text.h"
#include "comm/lossy/fill/reduction_fill.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/lossy/recovery_rules.h"
#include "comm/spec/class_recovery.h"
#include "comm/spec/loss_from_json.h"
#include "comm/spec/parameters_from_json.h"
#include "comm/spec/resolve_links.h"
#include "comm/spec/resolve_time.h"
#include "sim/error.h"
#include "sim/loss/link.h"
#include "sim/loss/timed_gilbert_elliott.h"
#include "sim/recovery/recovery_registry.h"

namespace droptest::comm {
namespace {

using nlohmann::json;

constexpr const char* kOfAllClasses = "/network";

constexpr std::array kBothHalves = {sim::Half::kReduce, sim::Half::kGather};

std::string name_of(sim::Half half) { return half == sim::Half::kReduce ? "reduce" : "gather"; }

bool is_between_stages(sim::TrafficClass of) { return sim::traffic_class_entry(of).is_between_stages; }
bool is_summed(sim::TrafficClass of) { return sim::traffic_class_entry(of).is_summed; }

bool is_none(const json& loss) { return loss["model"] == "none"; }

/// Builds the classes one by one; equal processes in the spec are made once and shared.
class NetworkResolver {
 public:
  NetworkResolver(const std::string& where, int world_size, NetworkUse use, const json& time, const ClassRoles& roles)
      : where_(where), world_size_(world_size), use_(use), time_(time), roles_(roles) {}

  void add(sim::TrafficClass traffic_class, const json& all, ResolvedNetwork& result) {
    const std::string name(sim::traffic_class_name(traffic_class));
    class_ = traffic_class;
    places_.erase("reduce/fill");
    said_fills_.clear();
    json resolved = json::object();
    gather_loss_named_ = false;
    gather_links_named_ = false;
    apply(all, kOfAllClasses, resolved);
    const json classes = all.value("classes", json::object());
    const std::optional<sim::TrafficClass> first_time = sim::repeated_class(traffic_class);
    const std::string section =
        first_time && !classes.contains(name) ? std::string(sim::traffic_class_name(*first_time)) : name;
    const json own = classes.value(section, json::object());
    apply(own, "/network/classes/" + section, resolved);
    const std::string backward = own.value("backward", "");
    if (first_time) leave_values_out(classes.value(name, json::object()), "/network/classes/" + name, resolved);
    if (resolved["path"] == kChosenPath) {
      report(where_ + ": " + places_["path"] +
             ": got \"auto\", which has a meaning in the spec of a run alone, whose " +
             "messages have known sizes; want the name of a path");
      return;
    }
    const PathEntry& path = path_entry(resolved["path"].get<std::string>());
    ClassNetwork network;
    network.compression = resolve_compression(resolved);
    const bool reduces = has_half(sim::Half::kReduce) && compression_entry(network.compression.kind).has_contributions;
    if (!reduces) resolved["reduce"] = absent_half();
    network.path = path.name;
    for (const json& small : resolved.value("sized_paths", json::array())) {
      network.sized_paths.push_back(
          {small["up_to_elements"].get<std::uint64_t>(), path_entry(small["path"].get<std::string>()).name});
    }
    if (reduces) resolve_shorthand(path, network.sized_paths, resolved["gather"]);
    if (traffic_class == roles_.scattered && !scatters_in_two_halves(path, resolved)) {
      const json said = all.value("classes", json::object()).value(name, json::object()).value("gather", absent_half());
      if (said != absent_half()) {
        report(where_ + ": /network/classes/" + name + "/gather: got a gather half, which a reduce-scatter on path " +
               std::string(path.name) + " does not have; want it absent");
      }
      resolved["gather"] = absent_half();
    }
    resolve_groups(path, resolved, network);
    resolve_reduce_fill(path, resolved["reduce"]["fill"]);
    const json fills = {{"reduce", resolved["reduce"]["fill"]}, {"gather", resolved["gather"]["fill"]}};
    check_consistency(path, resolved);
    network.payload_bytes = payload_bytes_ = resolved["payload_bytes"].get<std::uint64_t>();
    network.consistency = resolved["consistency"] == "shared" ? Consistency::kShared : Consistency::kPerReceiver;
    network.burst_scope = burst_scope_ =
        resolved["burst_scope"] == "message" ? BurstScope::kMessage : BurstScope::kLink;
    network.reduce = make_half(resolved["reduce"], "reduce");
    network.gather = make_half(resolved["gather"], "gather");
    const auto is_reliable = [](const HalfNetwork& half) { return !half.loss && half.links.empty(); };
    const bool compresses = network.compression.kind != CompressionKind::kNone;
    if (use_ == NetworkUse::kLossOnly && !compresses && is_reliable(network.reduce) && is_reliable(network.gather)) {
      // The section may not be left out if it differs: then the section of the first time would hold.
      const bool differs = first_time && result.classes.contains(sim::traffic_class_name(*first_time));
      if (differs) result.classes[name] = std::move(resolved);
      return;
    }
    if (resolved.contains("recovery")) {
      // Error feedback applies only to contributions.
      if (!compresses && is_reliable(network.reduce) && (use_ != NetworkUse::kDeadline || !reduces))
        resolved["recovery"].erase("error_feedback");
      network.recovery = class_recovery(resolved["recovery"]);
      if (resolved["recovery"].empty()) resolved.erase("recovery");
    }
    if (!backward.empty() && !first_time) resolve_backward(backward, resolved, network);
    check_compression(network);
    for (const RecoveryRefusal& refusal : recovery_refusals(network)) report_recovery(refusal);
    if (const std::optional<SelectionRefusal> refusal = selection_refusal(network)) {
      report(where_ + ": " + places_[std::string(refusal->half) + "/selection"] + ": " + refusal->reason);
    }
    check(network, name);
    if (!first_time) note_replaced_fills(network, fills, result.replaced_fills);
    result.network.of(traffic_class) = network;
    result.classes[name] = std::move(resolved);
  }

  std::vector<std::string> take_errors() { return std::move(errors_); }

  /// Several classes that share a section may have the same error; it is listed once.
  void report(const std::string& error) {
    if (std::find(errors_.begin(), errors_.end(), error) == errors_.end()) errors_.push_back(error);
  }

 private:
  /// Whether the current class has the half.
  bool has_half(sim::Half half) const {
    return half == sim::Half::kGather || (is_summed(class_) && class_ != roles_.exchanged);
  }

  /// The rank that owns the values, which the gather half then carries.
  bool one_rank_gets_sums() const { return is_summed(class_) && fill_of_values().has_value(); }

  /// Receivers do not use the values of messages that are sent again.
  void leave_values_out(const json& own, const std::string& pointer, json& resolved) {
    for (const char* member : {"/fill", "/reduce/fill", "/gather/fill", "/recovery/error_feedback", "/backward"}) {
      const json::json_pointer place(member);
      if (!own.contains(place) || own[place] == "zero") continue;
      report(
          where_ + ": " + pointer + member + ": got " + quote_json(own[place]) +
          ", which has no meaning for messages that are sent again: receivers use the values of the first time; want "
          "it absent");
    }
    for (const sim::Half half : kBothHalves) resolved[name_of(half)]["fill"] = "zero";
    if (resolved.contains("recovery")) resolved["recovery"].erase("error_feedback");
  }

  /// The fill of the current class's gather half in place of that of all classes; absent: it has that one.
  std::optional<Fill> fill_of_values() const {
    const auto found = std::ranges::find(roles_.of_values, class_, &ValueClass::of);
    if (found == roles_.of_values.end()) return std::nullopt;
    return found->fill;
  }

  void apply(const json& layer, const std::string& pointer, json& resolved) {
    if (layer.contains("path")) resolved.erase("sized_paths");
    for (const char* key : {"path", "sized_paths", "group_ranks", "payload_bytes", "consistency", "burst_scope"}) {
      if (!layer.contains(key)) continue;
      resolved[key] = layer[key];
      places_[key] = pointer + "/" + key;
    }
    if (layer.contains("compression")) {
      resolved["compression"] = layer["compression"];
      places_["compression"] = pointer + "/compression";
    }
    if (layer.contains("recovery")) apply_recovery(layer["recovery"], pointer + "/recovery", resolved);
    for (const sim::Half of_half : kBothHalves) {
      const std::string half = name_of(of_half);
      if (!has_half(of_half)) {
        if (layer.contains(half)) check_absent_half(layer[half], half, pointer);
        continue;
      }
      json& target = resolved[half];
      if (layer.contains("loss")) set_loss(target, layer["loss"], pointer + "/loss", half);
      if (layer.contains("links")) set_links(target, layer["links"], pointer + "/links", half);
      const std::optional<Fill> of_values = fill_of_values();
      const bool takes_fill = of_half == sim::Half::kReduce || !of_values || pointer != kOfAllClasses;
      if (!takes_fill) target["fill"] = fill_entry(*of_values).name;
      if (layer.contains("fill") && takes_fill) {
        const bool meant = has_meaning(fill_of(layer["fill"]), of_half);
        target["fill"] = meant ? layer["fill"] : json("zero");
        places_.erase(half + "/fill");
        said_fills_[half] = {pointer + "/fill", layer["fill"]};
      }
      if (!layer.contains(half)) continue;
      const json& own = layer[half];
      const std::string place = pointer + "/" + half;
      if (own.contains("loss")) set_loss(target, own["loss"], place + "/loss", half);
      if (own.contains("links")) set_links(target, own["links"], place + "/links", half);
      if (own.contains("selection")) {
        target["selection"] = own["selection"];
        places_[half + "/selection"] = place + "/selection";
      }
      if (own.contains("recovery")) {
        target["recovery"] = own["recovery"];
        recovery_places_[half] = place + "/recovery";
      }
      if (own.contains("fill") && takes_fill) {
        target["fill"] = own["fill"];
        places_[half + "/fill"] = place + "/fill";
        said_fills_.erase(half);
        if (!has_meaning(fill_of(own["fill"]), of_half)) report_fill(own["fill"], place + "/fill", of_half);
      }
    }
    // leave_values_out() reports those of messages that are sent again.
    const bool has_values = !sim::repeated_class(class_);
    if (pointer != kOfAllClasses && has_values && layer.contains("fill")) {
      check_meaning(layer["fill"], pointer + "/fill");
    }
    // A member of the class applies to both halves again.
    if (layer.contains("loss")) gather_loss_named_ = false;
    if (layer.contains("links")) gather_links_named_ = false;
    if (layer.contains("gather") && layer["gather"].contains("loss")) gather_loss_named_ = true;
    if (layer.contains("gather") && layer["gather"].contains("links")) gather_links_named_ = true;
  }

  /// A `loss` for both halves applies only to the reduce half on a path with this shorthand.
  void resolve_shorthand(const PathEntry& path, const std::vector<SizedPath>& sized_paths, json& gather) {
    const auto other = std::find_if(sized_paths.begin(), sized_paths.end(), [&path](const SizedPath& small) {
      return path_entry(small.path).shorthand != path.shorthand;
    });
    if (other != sized_paths.end()) return check_mixed_shorthand(path, *other, gather);
    if (path.shorthand != LossShorthand::kReduceHalf) return;
    if (!gather_loss_named_) gather["loss"] = {{"model", "none"}};
    if (!gather_links_named_) gather.erase("links");
  }

  void check_mixed_shorthand(const PathEntry& path, const SizedPath& other, const json& gather) {
    const auto refuse = [&](const char* member) {
      report(where_ + ": " + places_["sized_paths"] + ": got path " + std::string(other.path) + " next to path " +
             std::string(path.name) + ", where one `" + member +
             "` for both halves has two meanings (on contribution the reduce half, else both); want gather/" + member +
             " by itself, " + "or paths that are all or none contribution");
    };
    if (!gather_loss_named_ && !is_none(gather["loss"])) return refuse("loss");
    if (!gather_links_named_ && gather.contains("links") && !gather["links"].empty()) refuse("links");
  }

  static bool has_groups(const PathEntry& path, const json& resolved) {
    const json small = resolved.value("sized_paths", json::array());
    return path.has_groups || std::any_of(small.begin(), small.end(), [](const json& sized) {
             return path_entry(sized["path"].get<std::string>()).has_groups;
           });
  }

  /// Whether a reduce-scatter has hops of the gather half: from group to group, or to ranks that were folded.
  static bool scatters_in_two_halves(const PathEntry& path, const json& resolved) {
    const json small = resolved.value("sized_paths", json::array());
    return has_groups(path, resolved) || path.folds_ranks ||
           std::any_of(small.begin(), small.end(),
                       [](const json& sized) { return path_entry(sized["path"].get<std::string>()).folds_ranks; });
  }

  /// The size of groups has no effect on a path without groups, so it is not part of the run's identity.
  void resolve_groups(const PathEntry& path, json& resolved, ClassNetwork& network) {
    if (!has_groups(path, resolved)) {
      resolved.erase("group_ranks");
    } else if (resolved.contains("group_ranks")) {
      network.group_ranks = resolved["group_ranks"].get<int>();
    } else {
      const std::string section = places_["path"].substr(0, places_["path"].rfind('/'));
      report(where_ + ": " + section + "/group_ranks: is missing, but path " +
             std::string(path.has_groups ? path.name : std::string_view("hierarchical")) +
             " needs the number of ranks in a group");
    }
  }

  /// The member `backward` of the class itself.
  void resolve_backward(const std::string& named, json& resolved, ClassNetwork& network) {
    const auto refuse = [&](const std::string& reason) {
      report(where_ + ": /network/classes/" + std::string(sim::traffic_class_name(class_)) + "/backward: got " +
             quote_json(named) + reason);
    };
    const bool cuts = roles_.cuts_tokens && class_ == sim::TrafficClass::kTpForward;
    if (!cuts && class_ != sim::TrafficClass::kSequenceForward && class_ != sim::TrafficClass::kPpActivation) {
      return refuse(", which has a meaning for sequence_forward, pp_activation and, with /parallel/tensor_sequence, " +
                    std::string("tp_forward; want it absent"));
    }
    const LostGradient gradient = named == "gradient" ? LostGradient::kZero : LostGradient::kStraightThrough;
    // Equal runs have equal resolved specs, with or without a value that is the default or changes nothing.
    const bool is_late = use_ == NetworkUse::kDeadline && !is_between_stages(class_);
    if (gradient == lost_gradient_of(class_, network) || (!can_lose(network.gather) && !is_late)) return;
    resolved["backward"] = named;
    network.lost_gradient = gradient;
    if (gradient == LostGradient::kStraightThrough) return;
    if (network.recovery.hadamard_block_elems > 0) {
      refuse(
          " with a Hadamard transform, by which a lost packet takes a part of each value of its block and none as a "
          "whole; want straight_through, or no hadamard");
    }
    if (class_ == sim::TrafficClass::kPpActivation && network.gather.rule().source == FillRule::Source::kSubstitute) {
      refuse(
          " with the fill skip, where values from before the stage take the place of lost ones, and their gradients "
          "would have to be sent past the stage, too; want straight_through, or the fill zero or stale");
    }
    if (!cuts) return;
    if (network.gather.rule() != FillRule{}) {
      refuse(" with the fill " + std::string(fill_entry(network.gather.fill).name) +
             " of the gather half, whose values the backward pass would need again; want straight_through, or the fill "
             "zero");
    }
    std::vector<std::string_view> paths = {network.path};
    for (const SizedPath& small : network.sized_paths) paths.push_back(small.path);
    const auto hops = std::ranges::find_if(paths, [](auto name) { return path_entry(name).route == Route::kManyHops; });
    if (hops == paths.end()) return;
    refuse(" on path " + std::string(*hops) +
           ", where values take several hops, so that a receiver does not know all losses; want straight_through, or "
           "path direct or contribution");
  }

  /// Removes a compression without effect; writes the fraction as a number. A section for all classes means the classes
  /// with sums; for a compression that does not code values, only those with sums that all ranks get.
  Compression resolve_compression(json& resolved) {
    Compression compression;
    if (!resolved.contains("compression")) return compression;
    json& section = resolved["compression"];
    compression.kind = compression_from_name(section["kind"].get<std::string>());
    const bool is_for_all = places_["compression"] == "/network/compression";
    const bool has_sums = has_half(sim::Half::kReduce);
    const bool is_possible = has_sums && (!one_rank_gets_sums() || codes_values(compression));
    if (compression.kind == CompressionKind::kNone || (is_for_all && !is_possible)) {
      resolved.erase("compression");
      return {};
    }
    if (!has_sums) {
      report(where_ + ": " + places_["compression"] + ": got " + quote_json(section["kind"]) + " for " +
             std::string(sim::traffic_class_name(class_)) + ", whose messages are no contributions to sums; want it " +
             "absent");
    }
    compression.block_elems = section.value("block", std::uint64_t{1});
    compression.rank = section.value("rank", compression.rank);
    if (!section.contains("fraction")) return compression;
    try {
      section["fraction"] = compression.fraction =
          parameters_from_json(section, where_ + ": " + places_["compression"]).probability("fraction");
    } catch (const ConfigError& error) {
      report(error.what());
    }
    return compression;
  }

  void check_compression(const ClassNetwork& network) {
    const std::string key = "/compression";
    if (const std::optional<CompressionRefusal> refusal = compression_refusal(network)) {
      report(where_ + ": " + places_["compression"] + refusal->pointer.substr(key.size()) + ": " + refusal->reason);
    }
    const bool scatters = class_ == roles_.scattered || one_rank_gets_sums();
    if (!scatters || network.compression.kind == CompressionKind::kNone || codes_values(network.compression)) return;
    report(where_ + ": " + places_["compression"] + "/kind: got " +
           std::string(compression_entry(network.compression.kind).name) + " for " +
           std::string(sim::traffic_class_name(class_)) +
           (one_rank_gets_sums()
                ? ", whose sum one rank gets; want"
                : " with /parallel/zero 1 to 3, where each rank gets the sum of its own part alone; want zero 0, "
                  "or") +
           " a compression of values: float16, bfloat16, int8, int4");
  }

  /// A shorthand fill applies to the halves in which it has a meaning; this depends on the path, too.
  void resolve_reduce_fill(const PathEntry& path, json& fill) {
    const FillEntry& entry = fill_of(fill);
    if (!has_meaning(entry, sim::Half::kReduce)) return;  // was reported
    const std::optional<std::string> refusal = reduce_fill_refusal(entry.fill, path.name);
    if (!refusal) return;
    const auto named = places_.find("reduce/fill");
    if (named == places_.end()) {
      fill = "zero";
    } else {
      report(where_ + ": " + named->second + ": " + *refusal);
    }
  }

  void check_consistency(const PathEntry& path, const json& resolved) {
    if (path.can_share || resolved["consistency"] != "shared") return;
    report(where_ + ": " + places_["consistency"] + ": got \"shared\", which has no meaning on path " +
           std::string(path.name) + " (" + std::string(kSharesNoFates) + "), want \"per_receiver\"");
  }

  /// A section's recovery replaces the recovery of the section before; members for links are written out for both
  /// halves.
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
    for (const sim::Half half : kBothHalves) {
      resolved[name_of(half)]["recovery"] = of_links;
      recovery_places_[name_of(half)] = pointer;
    }
  }

  void report_recovery(const RecoveryRefusal& refusal) {
    // "/reduce/recovery/parity" -> half "reduce", "/parity"; "/recovery/hadamard" -> no half, "/hadamard".
    const std::string key = "/recovery";
    const std::size_t at = refusal.pointer.find(key);
    const std::string half = at == 0 ? "" : refusal.pointer.substr(1, at - 1);
    report(where_ + ": " + recovery_places_[half] + refusal.pointer.substr(at + key.size()) + ": " + refusal.reason);
  }

  void set_loss(json& half, const json& loss, const std::string& pointer, const std::string& name) {
    half["loss"] = fractions(loss, pointer);
    places_[name] = pointer;
  }

  void set_links(json& half, const json& links, const std::string& pointer, const std::string& name) {
    half["links"] = links;
    for (std::size_t i = 0; i < links.size(); ++i) {
      half["links"][i]["loss"] = fractions(links[i]["loss"], pointer + "/" + std::to_string(i) + "/loss");
    }
    places_[name + "/links"] = pointer;
  }

  /// The process with every probability as a fraction, in place of any other notation.
  json fractions(const json& loss, const std::string& pointer) {
    std::vector<std::string> errors;
    json result = with_fractions(loss, where_ + ": " + pointer, errors);
    for (const std::string& error : errors) report(error);
    return result;
  }

  /// Whether packets of the half can miss a deadline or a quorum.
  bool may_be_late(const std::string& half) const {
    const bool has_quorum = roles_.with_quorum == class_ && half == name_of(sim::Half::kReduce);
    return has_quorum || (use_ == NetworkUse::kDeadline && !is_between_stages(class_));
  }

  HalfNetwork make_half(json& half, const std::string& name) {
    HalfNetwork network;
    network.links = make_links(half, name);
    if (is_none(half["loss"]) && network.links.empty()) {
      // Nothing is ever missing: a fill without effect is not part of the run's identity.
      if (!may_be_late(name)) half["fill"] = "zero";
      half.erase("recovery");
      half.erase("selection");
      network.fill = fill_from_name(half["fill"].get<std::string>());
      return network;
    }
    network.fill = fill_from_name(half["fill"].get<std::string>());
    network.loss = make_process(half["loss"], places_[name]);
    network.recovery = make_recovery(half, name);
    // Equal runs have equal resolved specs, with or without the default value in the spec.
    if (half.value("selection", "by_fate") == "by_fate") {
      half.erase("selection");
    } else {
      network.selection = LossSelection::kLargestNorm;
    }
    return network;
  }

  /// Removes overrides without effect, and those of a half without loss, from `half`.
  std::vector<LinkOverride> make_links(json& half, const std::string& name) {
    std::vector<LinkOverride> links;
    if (!half.contains("links")) return links;
    bool can_lose = !is_none(half["loss"]);
    for (std::size_t i = 0; i < half["links"].size(); ++i) {
      json& one = half["links"][i];
      const std::string pointer = places_[name + "/links"] + "/" + std::to_string(i);
      std::vector<std::string> errors;
      links.push_back(links_of(one, world_size_, where_ + ": " + pointer, errors));
      for (const std::string& error : errors) report(error);
      links.back().loss = make_process(one["loss"], pointer + "/loss");
      can_lose = can_lose || !is_none(one["loss"]);
    }
    if (!can_lose) links.clear();
    if (links.empty()) half.erase("links");
    return links;
  }

  /// Null for a reliable link, and if an error was reported.
  std::shared_ptr<const sim::LossProcess> make_process(json& loss, const std::string& pointer) {
    if (is_none(loss)) return nullptr;
    Made& made = processes_[canonical_json(loss) + " in packets of " + std::to_string(payload_bytes_) +
                            (burst_scope_ == BurstScope::kMessage ? " of one message" : "")];
    if (!made.process) {
      made.loss = loss;
      try {
        made.process = process_of(made.loss, where_ + ": " + pointer);
      } catch (const ConfigError& error) {
        report(error.what());
      }
    }
    loss = made.loss;
    return made.process;
  }

  /// The process of a loss. If there is a clock, its theory is for packets on the links between groups; it must have a
  /// meaning on the other links too.
  std::unique_ptr<sim::LossProcess> process_of(json& loss, const std::string& place) const {
    if (time_.is_null()) {
      visit_timed(loss, place, [](json& process, const std::string& at) {
        if (!process.contains("packet_microseconds")) {
          throw ConfigError(at + "/packet_microseconds: is missing; want the time of a packet on the link, or a time " +
                            "section with its links");
        }
        if (!process.contains("tick_microseconds")) return;
        throw ConfigError(at + "/tick_microseconds: got " + quote_json(process["tick_microseconds"]) +
                          " without a time section, so that states last for one packet; want it absent");
      });
      return loss_from_json(loss, place);
    }
    visit_timed(loss, place, [](json& process, const std::string& at) {
      if (!process.contains("packet_microseconds")) return;
      throw ConfigError(at + "/packet_microseconds: got " + quote_json(process["packet_microseconds"]) +
                        " with a time section, which has the times of its links; want it absent");
    });
    visit_timed(loss, place, [&](json& process, const std::string& at) {
      if (burst_scope_ == BurstScope::kLink) return set_default_tick(process);
      if (!process.contains("tick_microseconds")) return;
      throw ConfigError(at + "/tick_microseconds: got " + quote_json(process["tick_microseconds"]) +
                        " with burst_scope \"message\", where time begins with each message and states last for one "
                        "packet; want it absent");
    });
    const sim::LinkClasses links = link_classes(time_);
    if (links.group_ranks > 0) process_on(links.within, loss, place);
    return process_on(links.between, loss, place);
  }

  std::unique_ptr<sim::LossProcess> process_on(const sim::LinkCost& link, json& loss, const std::string& place) const {
    constexpr double kMicrosecondsPerSecond = 1e6;
    const auto bytes = static_cast<double>(payload_bytes_ + time_["header_bytes"].get<std::uint64_t>());
    visit_timed(loss, place, [&](json& process, const std::string& /*at*/) {
      process["packet_microseconds"] = link.transfer_seconds(bytes) * kMicrosecondsPerSecond;
    });
    std::unique_ptr<sim::LossProcess> process = loss_from_json(loss, place);
    visit_timed(loss, place, [](json& of, const std::string& /*at*/) { of.erase("packet_microseconds"); });
    return process;
  }

  static void set_default_tick(json& process) {
    const auto stay = [&process](const char* name) { return process.contains(name) && process[name].is_number(); };
    if (process.contains("tick_microseconds") || !stay("mean_good_microseconds") || !stay("mean_bad_microseconds")) {
      return;
    }
    process["tick_microseconds"] = sim::default_tick_microseconds(process["mean_good_microseconds"].get<double>(),
                                                                  process["mean_bad_microseconds"].get<double>());
  }

  /// Visits the processes at any depth that depend on time.
  template <class Visit>
  static void visit_timed(json& loss, const std::string& place, const Visit& visit) {
    if (loss.is_array()) {
      for (std::size_t i = 0; i < loss.size(); ++i) visit_timed(loss[i], place + "/" + std::to_string(i), visit);
    }
    if (!loss.is_object()) return;
    if (loss.value("model", json()) == "timed_gilbert_elliott") return visit(loss, place);
    for (auto& [name, member] : loss.items()) visit_timed(member, place + "/" + name, visit);
  }

  /// The rules on several members of a class. Errors in single members come first.
  void check(const ClassNetwork& network, const std::string& name) {
    if (!errors_.empty()) return;
    try {
      validate(network);
    } catch (const ConfigError& error) {
      report(where_ + ": /network, for the class " + name + ": " + error.what());
    }
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

  /// An absent half as a resolved spec writes it.
  static json absent_half() { return {{"loss", {{"model", "none"}}}, {"fill", "zero"}}; }

  /// A section for all classes applies to those that have the half.
  void check_absent_half(const json& said, const std::string& half, const std::string& pointer) {
    if (pointer == kOfAllClasses || said == absent_half()) return;
    report(where_ + ": " + pointer + "/" + half + ": got the " + half + " half of " +
           std::string(sim::traffic_class_name(class_)) + ", whose messages are gathered and never summed; want it " +
           "absent");
  }

  /// The reduction of data-parallel gradients is a mean; that of other classes is a sum. A receiver of an exchange has
  /// no value of its own.
  bool has_meaning(const FillEntry& fill, sim::Half half) const {
    if (half == sim::Half::kReduce) return fill.reduce_half || (fill.means && class_ == sim::TrafficClass::kDpGradient);
    return fill.has_meaning_in_gather_half(class_) && !(class_ == roles_.exchanged && fill.rule.keeps_own());
  }

  /// Reports the fill of a class's section if it has a meaning in no half of the class.
  void check_meaning(const json& fill, const std::string& pointer) {
    const auto means_something = [this](const FillEntry& entry) {
      return std::ranges::any_of(kBothHalves,
                                 [&](sim::Half half) { return has_half(half) && has_meaning(entry, half); });
    };
    if (means_something(fill_of(fill))) return;
    report(where_ + ": " + pointer + ": got " + quote_json(fill) +
           ", which has no meaning in this class, want one of " + names_of_fills(means_something));
  }

  /// Adds a fill for both halves that acts in none of those that can miss packets. `fills`: those that the halves have
  /// instead, by their names.
  void note_replaced_fills(const ClassNetwork& network, const json& fills, std::vector<ReplacedFill>& replaced) const {
    const SaidFill* none_acts = nullptr;
    for (const sim::Half half : kBothHalves) {
      const HalfNetwork& of_half = half == sim::Half::kReduce ? network.reduce : network.gather;
      if (!has_half(half) || (!can_lose(of_half) && !may_be_late(name_of(half)))) continue;
      const auto said = said_fills_.find(name_of(half));
      if (said == said_fills_.end() || said->second.fill == fills[name_of(half)]) return;
      none_acts = &said->second;
    }
    if (none_acts == nullptr) return;
    const auto same = std::ranges::find(replaced, none_acts->pointer, &ReplacedFill::pointer);
    if (same != replaced.end()) {
      same->classes.push_back(class_);
    } else {
      replaced.push_back({none_acts->pointer, none_acts->fill.get<std::string>(), {class_}});
    }
  }

  static std::string names_of_fills(const auto& is_wanted) {
    std::string names;
    for (const FillEntry& entry : fills()) {
      if (is_wanted(entry)) names += (names.empty() ? "" : ", ") + quote_json(std::string(entry.name));
    }
    return names;
  }

  static const FillEntry& fill_of(const json& name) { return fill_entry(fill_from_name(name.get<std::string>())); }

  void report_fill(const json& got, const std::string& pointer, sim::Half half) {
    const std::string known = names_of_fills([&](const FillEntry& entry) { return has_meaning(entry, half); });
    const bool of_means = half == sim::Half::kReduce && fill_of(got).means;
    report(where_ + ": " + pointer + ": got " + quote_json(got) + ", which has no meaning in this half" +
           (of_means ? " of sums (a contribution stands for another one in means alone, those of dp_gradient)" : "") +
           ", want one of " + known);
  }

  /// A process, and its JSON in the resolved spec.
  struct Made {
    std::shared_ptr<const sim::LossProcess> process;
    json loss;
  };

  const std::string& where_;
  sim::TrafficClass class_ = sim::TrafficClass::kControl;  ///< the current class
  int world_size_;
  NetworkUse use_;
  const json& time_;  ///< null: no clock
  ClassRoles roles_;
  std::uint64_t payload_bytes_ = 0;  ///< payload of the current class
  BurstScope burst_scope_ = BurstScope::kLink;
  std::vector<std::string> errors_;
  std::map<std::string, Made> processes_;
  struct SaidFill {
    std::string pointer;
    json fill;
  };
  std::map<std::string, SaidFill> said_fills_;          ///< the fill for both halves that the spec names, by half
  std::map<std::string, std::string> places_;           ///< pointers to the loss, links and other members in the spec
  std::map<std::string, std::string> recovery_places_;  ///< places of each half's recovery; "": of the class
  bool gather_loss_named_ = false;
  bool gather_links_named_ = false;
};

}  // namespace

NetworkUse network_use(const json& time) {
  if (time.is_null()) return NetworkUse::kLossOnly;
  return time.contains("deadline_microseconds") ? NetworkUse::kDeadline : NetworkUse::kTimed;
}

ResolvedNetwork resolve_network(const json& network, const std::vector<sim::TrafficClass>& in_use, std::uint64_t seed,
                                const std::string& where, int world_size, NetworkUse use, const json& time,
                                const ClassRoles& roles) {
  ResolvedNetwork result;
  result.classes = json::object();
  result.network.seed = seed;
  NetworkResolver resolver(where, world_size, use, time, roles);
  for (const sim::TrafficClass traffic_class : in_use) resolver.add(traffic_class, network, result);
  result.errors = resolver.take_errors();
  return result;
}

}  // namespace droptest::comm
