// SPDX-License-Identifier: Apache-2.0
// The network section of a spec -> the network of each traffic class, with both halves spelled out.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/lossy/network.h"
#include "sim/traffic_class.h"

namespace droptest::comm {

/// In place of the name of a path: the caller of resolve_network() replaces it.
inline constexpr const char* kChosenPath = "auto";

/// What a network does other than lose packets by its processes.
enum class NetworkUse : std::uint8_t {
  kLossOnly,  ///< nothing: a class without loss is left out, and a fill that cannot act
  kTimed,     ///< it takes time, so classes without loss matter too
  kDeadline,  ///< it takes time, and what is late is lost
};

/// `time`: a time section, or null.
NetworkUse network_use(const nlohmann::json& time);

struct ResolvedNetwork {
  nlohmann::json classes;  ///< by name of a traffic class; one that does not matter (NetworkUse) is absent
  Network network;
  std::vector<std::string> errors;  ///< complete messages; not empty: the other members mean nothing
};

/// `network` is the spec's section with defaults. What is said of one class overrides what is said of all, key by key,
/// and at each of the two levels what is said of one half overrides what is said of both.
/// `in_use`: the classes that the run has traffic of. `where` names the document in messages. `world_size`: ranks of
/// the run, which overrides of links may name. `time` is the spec's section with defaults, or null: processes whose
/// clock is time take the time of a packet from its links, and without it from their own parameters.
ResolvedNetwork resolve_network(const nlohmann::json& network, const std::vector<sim::TrafficClass>& in_use,
                                std::uint64_t seed, const std::string& where, int world_size,
                                NetworkUse use = NetworkUse::kLossOnly, const nlohmann::json& time = {});

}  // namespace droptest::comm
