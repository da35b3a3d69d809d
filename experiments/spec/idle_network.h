// SPDX-License-Identifier: Apache-2.0
// Warnings about a spec, and those of network settings by which no packet of the run can be lost.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "comm/spec/resolve_network.h"
#include "sim/traffic_class.h"

namespace droptest::experiments {

/// A part of a spec without the effect that its reader would expect.
struct Warning {
  enum class About : std::uint8_t {
    kRun,       ///< the run as a whole; a point of a sweep may be so on purpose
    kOneClass,  ///< a traffic class that the spec names; in a spec of one run it is a mistake
  };
  std::string pointer;
  std::string message;
  About about = About::kRun;
};

/// Warnings about settings that cannot lose a packet of the run. `network`: the section as its user wrote it. `in_use`:
/// the classes of the packets that the run sends.
std::vector<Warning> idle_network(const nlohmann::json& network, const std::vector<sim::TrafficClass>& in_use,
                                  comm::NetworkUse use);

}  // namespace droptest::experiments
