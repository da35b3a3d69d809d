// SPDX-License-Identifier: Apache-2.0
// The purpose of a message. Each class has a network of its own; `control` is reliable.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace droptest::sim {

/// Values are part of the random counter (docs/fates.md): never renumbered or reused. 7 was named sequence_exchange
/// before any run could send such messages.
enum class TrafficClass : std::uint8_t {
  kControl = 0,            ///< norms, losses, barriers: reliable
  kTpForward = 1,          ///< tensor parallelism: sums and gathers of activations
  kTpBackward = 2,         ///< tensor parallelism: sums and gathers of gradients, gathers of activations
  kDpGradient = 3,         ///< data parallelism: means of gradients over replicas
  kParameterGather = 4,    ///< parameters that are sharded over replicas; it has a gather half only
  kPpActivation = 5,       ///< pipeline parallelism: activations between stages
  kPpGradient = 6,         ///< pipeline parallelism: gradients of activations between stages
  kSequenceForward = 7,    ///< sequence parallelism, forward
  kEmbeddingGradient = 8,  ///< gradients and values of tied embeddings at the two ends of a pipeline
  kSequenceBackward = 9,   ///< sequence parallelism, backward
  kOuter = 10,             ///< outer steps of local SGD
  kTpRecomputation = 11,   ///< tensor parallelism: sums of activations again, of blocks that are computed again
};

/// All classes in the order of their values.
inline constexpr std::array kAllTrafficClasses = {
    TrafficClass::kControl,          TrafficClass::kTpForward,       TrafficClass::kTpBackward,
    TrafficClass::kDpGradient,       TrafficClass::kParameterGather, TrafficClass::kPpActivation,
    TrafficClass::kPpGradient,       TrafficClass::kSequenceForward, TrafficClass::kEmbeddingGradient,
    TrafficClass::kSequenceBackward, TrafficClass::kOuter,           TrafficClass::kTpRecomputation,
};

/// The properties of a class. `x-sent-with` in comm/spec/network.schema.json says which layouts of a run send it.
struct TrafficClassEntry {
  TrafficClass traffic_class;
  std::string_view name;     ///< its name in specs and records
  bool is_summed = false;    ///< whether some run adds up the ranks' values, so that there is a reduce half
  bool is_gradient = false;  ///< whether a loss scale multiplies its messages
  /// Messages between pipeline stages, from rank to rank, with ordinals and without deadlines.
  bool is_between_stages = false;
  std::optional<TrafficClass> repeats{};  ///< repeated_class()
};
const TrafficClassEntry& traffic_class_entry(TrafficClass traffic_class);

/// Whether its messages are gradients, which a loss scale multiplies.
bool carries_gradients(TrafficClass traffic_class);

/// The class whose messages this one sends again; absent: it repeats none. Receivers use the values that they received
/// the first time.
std::optional<TrafficClass> repeated_class(TrafficClass traffic_class);

/// The name in specs and records, e.g. "tp_forward".
std::string_view traffic_class_name(TrafficClass traffic_class);

/// The class of that name. Throws: ConfigError that lists the known names.
TrafficClass traffic_class_from_name(std::string_view name);

}  // namespace droptest::sim
