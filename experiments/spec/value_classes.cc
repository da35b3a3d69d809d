// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/value_classes.h"

#include <nlohmann/json.hpp>
#include <string>

#include "comm/lossy/fill/reduction_fill.h"

namespace droptest::experiments {

std::vector<comm::ValueClass> value_classes(const RunConfig& config) {
  return {
      {sim::TrafficClass::kParameterGather, config.sharding.shards_values() ? comm::Fill::kStale : comm::Fill::kOwn},
      {sim::TrafficClass::kEmbeddingGradient, comm::Fill::kOwn}};
}

std::vector<Warning> zeroed_values(const nlohmann::json& network, const RunConfig& config) {
  std::vector<Warning> warnings;
  for (const comm::ValueClass& values : value_classes(config)) {
    const auto& of_class = config.network.of(values.of);
    if (!of_class || !comm::can_lose(of_class->gather) || of_class->gather.rule() != comm::FillRule{}) continue;
    const std::string section = "/classes/" + std::string(sim::traffic_class_name(values.of));
    const bool of_half = network.contains(nlohmann::json::json_pointer(section + "/gather/fill"));
    warnings.push_back({"/network" + section + (of_half ? "/gather/fill" : "/fill"),
                        "got \"zero\", which puts zeros in the place of parameters that were lost; want \"" +
                            std::string(comm::fill_entry(values.fill).name) + "\", or no fill here, which means it",
                        Warning::About::kRun});
  }
  return warnings;
}

}  // namespace droptest::experiments
