// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/class_layouts.h"

#include "experiments/spec/dry_run.h"
#include "models/gpt2/stage_range.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using sim::TrafficClass;

struct Layouts {
  TrafficClass traffic_class;
  bool (*is_sent)(const RunConfig&);
  const char* wanted;
  /// The fill of the gather half unless the spec names one; null: zero.
  comm::Fill (*fill)(const RunConfig&) = nullptr;
};

bool has_tensor_ranks(const RunConfig& config) { return config.parallel.tensor > 1; }
bool has_sequence_ranks(const RunConfig& config) { return config.parallel.sequence > 1; }
bool has_stages(const RunConfig& config) { return config.parallel.pipeline > 1; }
bool has_gradient_ranks(const RunConfig& config) { return config.parallel.gradient_ranks() > 1; }

constexpr const char* kWantedForSequenceBackward = "/parallel/sequence 2 or more, or /parallel/tensor_sequence true";

// In the order in which specs and errors name the classes. Each kind of parallelism adds its own here.
constexpr Layouts kLayouts[] = {
    {TrafficClass::kTpForward, has_tensor_ranks, "/parallel/tensor 2 or more"},
    {TrafficClass::kTpBackward, has_tensor_ranks, "/parallel/tensor 2 or more"},
    {TrafficClass::kSequenceBackward, [](const RunConfig& c) { return has_tensor_ranks(c) && c.tensor_sequence; },
     kWantedForSequenceBackward},
    {TrafficClass::kTpRecomputation,
     [](const RunConfig& c) { return has_tensor_ranks(c) && c.memory.traffic == models::RecomputeTraffic::kSent; },
     "/memory/recompute_traffic \"sent\" with /parallel/tensor 2 or more"},
    {TrafficClass::kOuter, [](const RunConfig& c) { return has_gradient_ranks(c) && c.outer.is_on(); },
     "/parallel/data 2 or more with /outer"},
    {TrafficClass::kDpGradient, [](const RunConfig& c) { return has_gradient_ranks(c) && !c.outer.is_on(); },
     "/parallel/data 2 or more without /outer, or /parallel/sequence 2 or more"},
    {TrafficClass::kParameterGather, [](const RunConfig& c) { return c.sharding.shards_state(); },
     "/parallel/data or /parallel/sequence 2 or more with /parallel/zero 1, 2 or 3",
     [](const RunConfig& c) { return c.sharding.shards_values() ? comm::Fill::kStale : comm::Fill::kOwn; }},
    {TrafficClass::kSequenceForward, has_sequence_ranks, "/parallel/sequence 2 or more"},
    {TrafficClass::kSequenceBackward, has_sequence_ranks, kWantedForSequenceBackward},
    {TrafficClass::kPpActivation, has_stages, "/parallel/pipeline 2 or more"},
    {TrafficClass::kPpGradient, has_stages, "/parallel/pipeline 2 or more"},
    {TrafficClass::kEmbeddingGradient, [](const RunConfig& c) { return shares_tied_embedding(c); },
     "/parallel/pipeline 2 or more, with the first and the last stage on two ranks",
     [](const RunConfig&) { return comm::Fill::kOwn; }},
};

}  // namespace

std::vector<TrafficClass> classes_in_use(const RunConfig& config) {
  std::vector<TrafficClass> classes;
  for (const Layouts& of : kLayouts) {
    if (of.is_sent(config)) classes.push_back(of.traffic_class);
  }
  return classes;
}

std::vector<comm::ValueClass> value_classes(const RunConfig& config) {
  std::vector<comm::ValueClass> classes;
  for (const Layouts& of : kLayouts) {
    if (of.fill != nullptr) classes.push_back({of.traffic_class, of.fill(config)});
  }
  return classes;
}

std::string wanted_for(TrafficClass traffic_class) {
  for (const Layouts& of : kLayouts) {
    if (of.traffic_class == traffic_class) return std::string("want ") + of.wanted;
  }
  return "no setting of /parallel makes any yet";
}

}  // namespace droptest::experiments
