// SPDX-License-Identifier: Apache-2.0
#include "sim/traffic_class.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>

#include "sim/error.h"

namespace droptest::sim {

namespace {

constexpr TrafficClassEntry kEntries[] = {
    {.traffic_class = TrafficClass::kControl, .name = "control", .is_summed = true},
    {.traffic_class = TrafficClass::kTpForward, .name = "tp_forward", .is_summed = true},
    {.traffic_class = TrafficClass::kTpBackward, .name = "tp_backward", .is_summed = true, .is_gradient = true},
    {.traffic_class = TrafficClass::kDpGradient, .name = "dp_gradient", .is_summed = true, .is_gradient = true},
    {.traffic_class = TrafficClass::kParameterGather, .name = "parameter_gather"},
    {.traffic_class = TrafficClass::kPpActivation, .name = "pp_activation", .is_between_stages = true},
    {.traffic_class = TrafficClass::kPpGradient, .name = "pp_gradient", .is_gradient = true, .is_between_stages = true},
    {.traffic_class = TrafficClass::kSequenceForward, .name = "sequence_forward"},
    {.traffic_class = TrafficClass::kEmbeddingGradient,
     .name = "embedding_gradient",
     .is_summed = true,
     .is_gradient = true},
    {.traffic_class = TrafficClass::kSequenceBackward,
     .name = "sequence_backward",
     .is_summed = true,
     .is_gradient = true},
    {.traffic_class = TrafficClass::kOuter, .name = "outer", .is_summed = true},
    {.traffic_class = TrafficClass::kTpRecomputation,
     .name = "tp_recomputation",
     .is_summed = true,
     .repeats = TrafficClass::kTpForward},
};
static_assert(std::ranges::equal(kEntries, kAllTrafficClasses, {}, &TrafficClassEntry::traffic_class));

}  // namespace

const TrafficClassEntry& traffic_class_entry(TrafficClass traffic_class) {
  const auto number = static_cast<std::size_t>(traffic_class);
  DROPTEST_CHECK(number < std::size(kEntries), "traffic class " + std::to_string(number));
  return kEntries[number];
}

bool carries_gradients(TrafficClass traffic_class) { return traffic_class_entry(traffic_class).is_gradient; }

std::optional<TrafficClass> repeated_class(TrafficClass traffic_class) {
  return traffic_class_entry(traffic_class).repeats;
}

std::string_view traffic_class_name(TrafficClass traffic_class) { return traffic_class_entry(traffic_class).name; }

TrafficClass traffic_class_from_name(std::string_view name) {
  std::string known;
  for (const TrafficClass c : kAllTrafficClasses) {
    if (traffic_class_name(c) == name) return c;
    known += (known.empty() ? "" : ", ") + std::string(traffic_class_name(c));
  }
  throw ConfigError("traffic class: got \"" + std::string(name) + "\", want one of " + known);
}

}  // namespace droptest::sim
