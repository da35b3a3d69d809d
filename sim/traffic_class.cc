// SPDX-License-Identifier: Apache-2.0
#include "sim/traffic_class.h"

#include <string>

#include "sim/error.h"

namespace droptest::sim {

bool carries_gradients(TrafficClass traffic_class) {
  switch (traffic_class) {
    case TrafficClass::kTpBackward:
    case TrafficClass::kDpGradient:
    case TrafficClass::kPpGradient:
    case TrafficClass::kEmbeddingGradient:
    case TrafficClass::kSequenceBackward:
      return true;
    default:
      return false;
  }
}

std::optional<TrafficClass> repeated_class(TrafficClass traffic_class) {
  if (traffic_class == TrafficClass::kTpRecomputation) return TrafficClass::kTpForward;
  return std::nullopt;
}

std::string_view traffic_class_name(TrafficClass traffic_class) {
  switch (traffic_class) {
    case TrafficClass::kControl:
      return "control";
    case TrafficClass::kTpForward:
      return "tp_forward";
    case TrafficClass::kTpBackward:
      return "tp_backward";
    case TrafficClass::kDpGradient:
      return "dp_gradient";
    case TrafficClass::kParameterGather:
      return "parameter_gather";
    case TrafficClass::kPpActivation:
      return "pp_activation";
    case TrafficClass::kPpGradient:
      return "pp_gradient";
    case TrafficClass::kSequenceForward:
      return "sequence_forward";
    case TrafficClass::kEmbeddingGradient:
      return "embedding_gradient";
    case TrafficClass::kSequenceBackward:
      return "sequence_backward";
    case TrafficClass::kOuter:
      return "outer";
    case TrafficClass::kTpRecomputation:
      return "tp_recomputation";
  }
  DROPTEST_CHECK(false, "traffic class " + std::to_string(static_cast<int>(traffic_class)));
  return {};
}

TrafficClass traffic_class_from_name(std::string_view name) {
  std::string known;
  for (const TrafficClass c : kAllTrafficClasses) {
    if (traffic_class_name(c) == name) return c;
    known += (known.empty() ? "" : ", ") + std::string(traffic_class_name(c));
  }
  throw ConfigError("traffic class: got \"" + std::string(name) + "\", want one of " + known);
}

}  // namespace droptest::sim
