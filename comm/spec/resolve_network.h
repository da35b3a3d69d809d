// SPDX-License-Identifier: Apache-2.0
// The network section of a spec -> the network of each traffic class, with both halves written out.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "comm/lossy/network.h"
#include "sim/traffic_class.h"

namespace droptest::comm {

/// Stands for the name of a path that the caller of resolve_network() chooses.
inline constexpr const char* kChosenPath = "auto";

/// The effects of a network other than the losses of its processes.
enum class NetworkUse : std::uint8_t {
  kLossOnly,  ///< no other effect: a class without loss is left out, and a fill without effect
  kTimed,     ///< it takes time, so classes without loss matter too
  kDeadline,  ///< it takes time, and late packets are lost
};

/// `time`: a time section, or null.
NetworkUse network_use(const nlohmann::json& time);

/// A class with a gather half that carries values for its receivers' computation, such as parameters.
struct ValueClass {
  sim::TrafficClass of = sim::TrafficClass::kParameterGather;
  Fill fill = Fill::kOwn;  ///< fill of the gather half, unless the class's own section names one
};

/// Classes that have other messages in this run than in general.
struct ClassRoles {
  /// The class with only reduce-scatters. They have a gather half only on paths with groups and on paths that fold
  /// ranks.
  std::optional<sim::TrafficClass> scattered;
  std::optional<sim::TrafficClass> exchanged;  ///< class with messages only between two ranks, so without a reduce half
  std::optional<sim::TrafficClass> with_quorum;  ///< class with messages that can be late without a deadline
  /// Classes with values in their gather halves, which fills for all classes do not reach.
  std::vector<ValueClass> of_values{};
  bool cuts_tokens = false;  ///< whether tp_forward gathers tokens, of which each rank has its own
};

/// A fill for both halves that acts in no half with losses of these classes: they have the fill zero instead. Callers
/// tell their users.
struct ReplacedFill {
  std::string pointer;  ///< pointer to the fill in the spec
  std::string fill;
  std::vector<sim::TrafficClass> classes;
};

struct ResolvedNetwork {
  nlohmann::json classes;  ///< sections by name of a traffic class; a class without effect (NetworkUse) is absent
  Network network;
  std::vector<ReplacedFill> replaced_fills;
  std::vector<std::string> errors;  ///< complete messages; not empty: the other members mean nothing
};

/// `network` is the spec's section with defaults. Members of one class override members for all classes, key by key; at
/// each of the two levels, members of one half override members for both halves. Only a fill in the section of a class
/// reaches the gather half of a class of values. `in_use`: the classes with traffic in the run. `where` names the
/// document in messages. `world_size`: ranks of the run, which overrides of links may name. `time` is the spec's
/// section with defaults, or null: then processes that depend on time take the time of a packet from their own
/// parameters, otherwise from its links.
ResolvedNetwork resolve_network(const nlohmann::json& network, const std::vector<sim::TrafficClass>& in_use,
                                std::uint64_t seed, const std::string& where, int world_size,
                                NetworkUse use = NetworkUse::kLossOnly, const nlohmann::json& time = {},
                                const ClassRoles& roles = {});

}  // namespace droptest::comm
