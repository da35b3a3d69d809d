// SPDX-License-Identifier: Apache-2.0
// Network settings of a spec by which no packet of the run can be lost.
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
    kRun,       ///< the run as a whole, as the point of a sweep may be on purpose
    kOneClass,  ///< a traffic class that the spec names: a mistake in a spec of one run
  };
  std::string pointer;
  std::string message;
  About about = About::kRun;
};

/// `network`: the section as its user wrote it. `in_use`: the classes that the run sends packets of.
std::vector<Warning> idle_network(const nlohmann::json& network, const std::vector<sim::TrafficClass>& in_use,
                                  comm::NetworkUse use);

}  // namespace droptest::experiments
