// SPDX-License-Identifier: Apache-2.0
// Paths by name: the one list of all paths.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/lossy/paths/call_memory.h"
#include "comm/lossy/paths/path.h"
#include "comm/lossy/paths/path_messages.h"
#include "sim/schedules/hop_schedule.h"
#include "sim/time/link_cost.h"

namespace droptest::comm {

/// The halves that a spec's `loss` applies to if it names no half.
enum class LossShorthand : std::uint8_t { kBothHalves, kReduceHalf };

/// The reason why `shared` has no meaning on some paths.
inline constexpr std::string_view kSharesNoFates =
    "each packet travels to one rank, which forwards its own copy, so no two receivers could share a fate";

/// Whether the ranks of a group end with equal results if a lossless collective gives equal ones.
enum class RankEquality : std::uint8_t {
  kStayEqual,       ///< always equal under the shorthand loss
  kReduceHalfOnly,  ///< gather-half loss per receiver makes them differ; `shared` keeps them equal
};

/// Whether a path supports error feedback: it adds lost contributions to its next sends.
enum class SenderFeedback : std::uint8_t { kNone, kCorrectsSends };

/// The route of packets from the ranks with the values to their receivers.
enum class Route : std::uint8_t {
  kAggregated,  ///< contributions meet at one point, uncut: all ranks miss a packet that is lost before it
  kOneHop,      ///< straight from the source: a loss concerns only its receiver
  kManyHops,    ///< ranks forward values: a loss reaches every rank behind the hop
};

/// A closed form of the seconds of an all-reduce, for equal ranks and links without loss, computation and deadline.
/// `bytes` includes headers.
using AllReduceSeconds = double (*)(int ranks, double bytes, const sim::LinkCost& link);

struct PathEntry {
  std::string_view name;
  std::string_view summary;
  Route route;
  RankEquality equality;
  LossShorthand shorthand;
  std::unique_ptr<Path> (*make)(const PathContext&);
  /// Adds the memory that the path itself holds for a collective.
  void (*add_memory)(const SizedCall&, CallMemory&);
  /// The hops of its collectives; null for a path without hops: its packets do not travel from rank to rank.
  std::unique_ptr<sim::HopSchedule> (*schedule)(const sim::ScheduleRequest&);
  bool can_share = false;   ///< whether several ranks receive one packet, so that `shared` has a meaning
  bool has_groups = false;  ///< whether it needs ClassNetwork::group_ranks
  /// Whether numbers of ranks other than powers of two fold onto one: the ranks beyond it get even the results of a
  /// reduce-scatter in the gather half.
  bool folds_ranks = false;
  SenderFeedback feedback = SenderFeedback::kNone;
  AllReduceSeconds seconds = nullptr;  ///< null: no closed form
  /// The collectives that a reduction consists of; null: itself.
  std::vector<SubCall> (*sub_calls)(const ClassNetwork&, const CallShape&, int ranks) = nullptr;
};

/// All known paths, in the order of lists for users, except the paths of compressions.
const std::vector<PathEntry>& paths();

/// Throws: ConfigError that lists the known names.
const PathEntry& path_entry(std::string_view name);

/// The path of a collective of `elems` elements, all parts together: that of the compression if it has one, else
/// ClassNetwork::path_of().
const PathEntry& path_in(const ClassNetwork& network, std::uint64_t elems);

}  // namespace droptest::comm
