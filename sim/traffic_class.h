// SPDX-License-Identifier: Apache-2.0
// What a message is for. Each class has a network of its own; `control` is reliable.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace droptest::sim {

/// Values are part of the random counter (docs/fates.md): never renumbered or reused.
enum class TrafficClass : std::uint8_t {
  kControl = 0,
  kTpForward = 1,
  kTpBackward = 2,
  kDpGradient = 3,
  kParameterGather = 4,
  kPpActivation = 5,
  kPpGradient = 6,
  kSequenceExchange = 7,
};

inline constexpr std::array kAllTrafficClasses = {
    TrafficClass::kControl,    TrafficClass::kTpForward,        TrafficClass::kTpBackward,
    TrafficClass::kDpGradient, TrafficClass::kParameterGather,  TrafficClass::kPpActivation,
    TrafficClass::kPpGradient, TrafficClass::kSequenceExchange,
};

/// The name in specs and records, e.g. "tp_forward".
std::string_view traffic_class_name(TrafficClass traffic_class);

/// The class of that name. Throws: ConfigError that lists the known names.
TrafficClass traffic_class_from_name(std::string_view name);

}  // namespace droptest::sim
