// SPDX-License-Identifier: Apache-2.0
// The network of a traffic class: path, loss of each half, and the fill of holes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/lossy/compression/compression.h"
#include "comm/lossy/fill/fills.h"
#include "comm/lossy/link_overrides.h"
#include "comm/lossy/loss_selection.h"
#include "comm/lossy/protection.h"
#include "sim/boxed.h"
#include "sim/loss/link.h"
#include "sim/loss/loss_process.h"
#include "sim/recovery/link_recovery.h"
#include "sim/traffic_class.h"

namespace droptest::comm {

/// Whether all receivers of one packet share its fate.
enum class Consistency : std::uint8_t { kPerReceiver, kShared };

/// Whether packet indices continue along a link or restart with each message.
enum class BurstScope : std::uint8_t { kLink, kMessage };

/// The gradient with respect to a lost value of a forward pass, which its receiver replaced by another value.
enum class LostGradient : std::uint8_t {
  kStraightThrough,  ///< the lost value gets the gradient of its replacement, as if it had arrived
  kZero,             ///< none: the backward pass is the exact gradient of the forward pass with its losses
};

/// One half of a collective.
struct HalfNetwork {
  std::shared_ptr<const sim::LossProcess> loss;  ///< shared by its classes and ranks; null: reliable
  Fill fill = Fill::kZero;
  std::shared_ptr<const sim::LinkRecovery> recovery =
      nullptr;            ///< shared by its classes and ranks; null: lost packets are missing
  bool deadline = false;  ///< late packets are lost, too
  LossSelection selection = LossSelection::kByFate;  ///< kLargestNorm: only in the reduce half of `direct`
  std::vector<LinkOverride> links = {};  ///< links with a loss process of their own; the last matching one counts

  /// The rule of its fill.
  const FillRule& rule() const { return rule_of(fill); }
};

/// Recoveries of whole messages of a class (docs/recovery.md).
struct ClassRecovery {
  /// kOn: a sender adds the contributions that it failed to deliver to its next message. The others: messages carry
  /// differences from a state that both ends keep (comm/lossy/fill/ef21.h).
  enum class ErrorFeedback : std::uint8_t { kOff, kOn, kEf21, kEf21Acknowledged };
  std::uint64_t interleave_packets = 1;    ///< 1: elements stay in order
  std::uint64_t hadamard_block_elems = 0;  ///< 0: no transform
  ErrorFeedback error_feedback = ErrorFeedback::kOff;
  bool keeps_states() const {
    return error_feedback == ErrorFeedback::kEf21 || error_feedback == ErrorFeedback::kEf21Acknowledged;
  }
  Protection protect;
};

/// The reason why inverse_probability has no meaning with a deadline.
inline constexpr std::string_view kLatenessHasNoRate =
    "scales every contribution by the loss rate, but how many packets come too late is known only when it has "
    "happened; "
    "want no deadline, or the fill zero, count_rescale or stale";

/// Whether every link of the half has one loss process, the same in all steps: the condition of closed forms.
bool has_one_process(const HalfNetwork& half);

/// A path for the small messages of a class.
struct SizedPath {
  std::uint64_t up_to_elems = 0;  ///< largest number of elements of all parts of a collective together
  std::string_view path;          ///< name of a path, as ClassNetwork::path
};

/// The wait of an aggregation point on the virtual clock: until `ranks` messages are complete, and a grace after that.
/// Messages that are complete later are lost as a whole. A message with lost packets counts as complete when its last
/// packet would arrive.
struct Quorum {
  int ranks = 0;
  double grace_seconds = 0;
};

/// One traffic class.
struct ClassNetwork {
  std::string_view path = "direct";         ///< a name of path_registry.h, with static lifetime
  std::vector<SizedPath> sized_paths = {};  ///< paths of small messages, in order of size; larger ones take `path`
  HalfNetwork reduce;
  HalfNetwork gather;
  Consistency consistency = Consistency::kPerReceiver;
  BurstScope burst_scope = BurstScope::kLink;
  std::uint64_t payload_bytes = 1408;
  int group_ranks = 0;  ///< consecutive ranks in one group, on a path that has groups; 0 on others
  ClassRecovery recovery{};
  Compression compression{};
  /// Quorum of reductions on the path contribution, with a clock; absent: all messages.
  std::optional<Quorum> quorum{};
  std::optional<LostGradient> lost_gradient{};  ///< absent: the default of lost_gradient_of()

  const HalfNetwork& of(sim::Half half) const { return half == sim::Half::kReduce ? reduce : gather; }
  /// The path of a collective of so many elements, all parts together.
  std::string_view path_of(std::uint64_t elems) const;
  /// The packets of a message with `count_elems` coded elements: values of that type, or pairs of top_k.
  sim::Packetizer packets(ElementType type, std::uint64_t count_elems) const;
  /// The network with only the path of collectives of that size.
  ClassNetwork of_size(std::uint64_t elems) const;
};

/// The network of an experiment. An absent class is reliable and goes straight to the backend.
struct Network {
  std::uint64_t seed = 0;
  std::array<sim::Boxed<ClassNetwork>, sim::kAllTrafficClasses.size()> classes;

  const sim::Boxed<ClassNetwork>& of(sim::TrafficClass c) const { return classes[static_cast<std::size_t>(c)]; }
  sim::Boxed<ClassNetwork>& of(sim::TrafficClass c) { return classes[static_cast<std::size_t>(c)]; }
  /// Whether no class has a network.
  bool is_empty() const {
    return std::ranges::none_of(classes, [](const auto& of_class) { return of_class.has_value(); });
  }
};

/// The value of ClassNetwork::lost_gradient, or its default if absent: zero in sequence_forward, straight-through in
/// the others. With a Hadamard transform the default is straight-through in every class: each value then depends on all
/// packets of its block, so no element is lost as a whole.
constexpr LostGradient lost_gradient_of(sim::TrafficClass traffic_class, const ClassNetwork& network) {
  if (network.lost_gradient) return *network.lost_gradient;
  const bool stops = traffic_class == sim::TrafficClass::kSequenceForward && network.recovery.hadamard_block_elems == 0;
  return stops ? LostGradient::kZero : LostGradient::kStraightThrough;
}

/// Gives `loss` to the halves that the path's LossShorthand names, and no loss to the other one. Throws: ConfigError
/// for an unknown path.
void apply_loss(ClassNetwork& network, const std::shared_ptr<const sim::LossProcess>& loss);

/// Gives `fill` to each half in which the registry of fills gives it a meaning (FillEntry), and `zero` to the other
/// one.
void apply_fill(ClassNetwork& network, Fill fill);

/// Gives both halves `recovery`, e.g. a retransmission without a budget: a reliable network.
void apply_recovery(ClassNetwork& network, const std::shared_ptr<const sim::LinkRecovery>& recovery);

/// The reason why a selection of lost packets has no meaning in its half and path; absent: it has a meaning.
struct SelectionRefusal {
  std::string_view half;
  std::string reason;
};
std::optional<SelectionRefusal> selection_refusal(const ClassNetwork& network);

/// Throws: ConfigError with the reason for these values:
/// | member                          | refused value                                                           |
/// | path                            | an unknown name                                                         |
/// | sized_paths                     | sizes that do not increase                                              |
/// | fill, consistency, selection    | no meaning in its half or on the path                                   |
/// | compression, recovery           | no meaning with the other members                                       |
/// | group_ranks                     | below 1 on a path with groups                                           |
/// | payload_bytes                   | not a positive multiple of 8 (a whole number of elements of every type) |
/// | links                           | a condition on destinations, if all receivers share a packet's fate     |
/// | fill inverse_probability        | links or steps with different loss rates, or a deadline                 |
void validate(const ClassNetwork& network);

/// Whether any link of a half loses everything in some step.
bool can_lose_all(const HalfNetwork& half);

/// Whether any loss process of the network depends on time.
bool keeps_time(const Network& network);

/// Whether any link of the network that can lose packets sends them again.
bool sends_again(const Network& network);

}  // namespace droptest::comm
