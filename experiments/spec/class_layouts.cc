// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/class_layouts.h"

#include "experiments/spec/planned_collectives.h"
#include "models/gpt2/stage_range.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using comm::ParallelDimension;
using sim::TrafficClass;

/// Which of a rank's messages of equal shape have names of their own.
enum class Names : std::uint8_t {
  kNone,          ///< all share one name
  kCalls,         ///< each collective of a group: the sums of each block
  kCallsOfStep,   ///< as kCalls, but listed for all micro-batches; a backward pass in two parts counts them twice
  kMessages,      ///< each message of a rank: the hops of each block's attention
  kMicroBatches,  ///< each message of a rank in each micro-batch: between stages
};

struct Layouts {
  TrafficClass traffic_class;
  ParallelDimension group;
  Names names;
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
    {TrafficClass::kTpForward, ParallelDimension::kTensor, Names::kCalls, has_tensor_ranks,
     "/parallel/tensor 2 or more"},
    {TrafficClass::kTpBackward, ParallelDimension::kTensor, Names::kCalls, has_tensor_ranks,
     "/parallel/tensor 2 or more"},
    {TrafficClass::kSequenceBackward, ParallelDimension::kTensor, Names::kNone,
     [](const RunConfig& c) { return has_tensor_ranks(c) && c.tensor_sequence; }, kWantedForSequenceBackward},
    {TrafficClass::kTpRecomputation, ParallelDimension::kTensor, Names::kCallsOfStep,
     [](const RunConfig& c) { return has_tensor_ranks(c) && c.memory.traffic == models::RecomputeTraffic::kSent; },
     "/memory/recompute_traffic \"sent\" with /parallel/tensor 2 or more"},
    {TrafficClass::kOuter, ParallelDimension::kData, Names::kNone,
     [](const RunConfig& c) { return has_gradient_ranks(c) && c.outer.is_on(); },
     "/parallel/data 2 or more with /outer"},
    {TrafficClass::kDpGradient, ParallelDimension::kData, Names::kCalls,
     [](const RunConfig& c) { return has_gradient_ranks(c) && !c.outer.is_on(); },
     "/parallel/data 2 or more without /outer, or /parallel/sequence 2 or more"},
    {TrafficClass::kParameterGather, ParallelDimension::kData, Names::kCalls,
     [](const RunConfig& c) { return c.sharding.shards_state(); },
     "/parallel/data or /parallel/sequence 2 or more with /parallel/zero 1, 2 or 3",
     [](const RunConfig& c) { return c.sharding.shards_values() ? comm::Fill::kStale : comm::Fill::kOwn; }},
    {TrafficClass::kSequenceForward, ParallelDimension::kSequence, Names::kMessages, has_sequence_ranks,
     "/parallel/sequence 2 or more"},
    {TrafficClass::kSequenceBackward, ParallelDimension::kSequence, Names::kMessages, has_sequence_ranks,
     kWantedForSequenceBackward},
    {TrafficClass::kPpActivation, ParallelDimension::kPipeline, Names::kMicroBatches, has_stages,
     "/parallel/pipeline 2 or more"},
    {TrafficClass::kPpGradient, ParallelDimension::kPipeline, Names::kMicroBatches, has_stages,
     "/parallel/pipeline 2 or more"},
    {TrafficClass::kEmbeddingGradient, ParallelDimension::kPipeline, Names::kNone,
     [](const RunConfig& c) {
       return has_stages(c) && !planned_collectives(c, TrafficClass::kEmbeddingGradient).empty();
     },
     "/parallel/pipeline 2 or more, with the first and the last stage on two ranks",
     [](const RunConfig&) { return comm::Fill::kOwn; }},
};

/// The row that the layout uses, or any row of the class if the layout does not send it.
const Layouts& row_of(const RunConfig& config, TrafficClass traffic_class) {
  const Layouts* found = nullptr;
  for (const Layouts& of : kLayouts) {
    if (of.traffic_class == traffic_class && (found == nullptr || of.is_sent(config))) found = &of;
  }
  DROPTEST_CHECK(found != nullptr, "no layout sends " + std::string(sim::traffic_class_name(traffic_class)));
  return *found;
}

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

comm::ParallelDimension group_of(const RunConfig& config, TrafficClass traffic_class) {
  return row_of(config, traffic_class).group;
}

std::uint64_t names_of_rank(const RunConfig& config, TrafficClass traffic_class, std::uint64_t times) {
  const Layouts& row = row_of(config, traffic_class);
  if (row.names == Names::kNone) return 1;
  const comm::ParallelLayout& layout = config.parallel;
  int ranks = 1;  // that share a name
  const bool are_calls = row.names == Names::kCalls || row.names == Names::kCallsOfStep;
  if (are_calls && row.group == ParallelDimension::kData) {
    ranks = layout.gradient_ranks();
  } else if (are_calls) {
    ranks = layout.of(row.group);
  }
  auto groups = static_cast<std::uint64_t>(layout.world_size() / ranks);
  const auto batches = static_cast<std::uint64_t>(config.training.accumulation);
  if (row.names == Names::kCallsOfStep) groups *= batches;
  return (times + groups - 1) / groups * (row.names == Names::kMicroBatches ? batches : 1);
}

std::string wanted_for(TrafficClass traffic_class) {
  for (const Layouts& of : kLayouts) {
    if (of.traffic_class == traffic_class) return std::string("want ") + of.wanted;
  }
  return "no setting of /parallel makes any yet";
}

}  // namespace droptest::experiments
