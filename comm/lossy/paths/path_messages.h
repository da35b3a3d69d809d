// SPDX-License-Identifier: Apache-2.0
// The messages of a collective on its path: the ends, the elements, the link and the round of each message.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/network.h"
#include "sim/loss/link.h"
#include "sim/packets/packetizer.h"
#include "sim/schedules/hop_schedule.h"

namespace droptest::comm {

struct PathEntry;  // comm/lossy/paths/path_registry.h

/// A collective, as far as its messages depend on it. Spans are borrowed.
struct CallShape {
  Operation operation = Operation::kAllReduce;
  ElementType type = ElementType::kFloat32;
  std::uint64_t elements = 0;  ///< all elements of the tensor; unused by an all-to-all
  /// For a reduce-scatter and an all-gather: the elements of each rank's part. For an all-to-all: the elements from one
  /// rank to each rank, or a table of all ranks by source.
  std::span<const std::uint64_t> counts{};
  std::span<const std::uint64_t> receive_counts{};  ///< one rank's all-to-all: elements from each other rank
  int root = 0;                                     ///< the rank that broadcasts
};
/// The shape of one rank's call.
CallShape shape_of(const CallArguments& call);

/// One of the collectives that a call consists of.
struct SubCall {
  CallShape shape;
  std::vector<std::uint64_t> counts{};           ///< replaces shape.counts, unless it is empty
  std::optional<std::uint64_t> content_bytes{};  ///< tensor bytes that each message stands for; absent: its own
};
/// The collectives that a call consists of, one after the other: itself, or those of a compression.
std::vector<SubCall> sub_calls_of(const ClassNetwork& network, const PathEntry& path, const CallShape& call, int ranks);

/// The rank of a group with the lowest world rank.
int rank_of_lowest(int ranks, const std::function<int(int rank)>& world_rank);

/// One message from rank to rank. Ranks are those of the group.
struct PathMessage {
  int source = 0;
  int destination = 0;
  sim::Half half = sim::Half::kReduce;
  /// Whether its packets go to all ranks at once, on the link to every destination; `destination` is one of them.
  bool to_all = false;
  /// Whether only the clock counts this message: its packets have no link, so they use up no indices and never get
  /// lost.
  bool only_takes_time = false;
  int call = 0;   ///< index in sub_calls_of()
  int round = 0;  ///< counts from 0 in each sub-call; a rank sends what it received in earlier rounds
  sim::ElementRange elements;
  const sim::Packetizer& packets;  ///< valid during the visit

  /// The rank that counts the link: the receiver of packets for one rank, the sender of packets for all.
  int counted_on() const { return to_all ? source : destination; }
};

/// The one description of the messages of a path: the loss layer draws their fates, the clock computes their times, and
/// simulations and plans count them. Messages of each link come in the order of their packet indices.
class PathMessages {
 public:
  using Visit = std::function<void(const PathMessage&)>;

  /// `aggregation_point`: rank_of_lowest(), which names the point where packets meet on a path that has one; it does
  /// not matter for sizes. `network` and `path` are borrowed.
  PathMessages(const ClassNetwork& network, const PathEntry& path, int ranks, int aggregation_point = 0);

  /// All messages of one of sub_calls_of(), round by round in the order in which ports carry them: one for each
  /// receiver, also of packets for all ranks.
  void visit(const SubCall& call, const Visit& visit);
  /// The messages of all sub-calls, one after the other.
  void visit(const CallShape& call, const Visit& visit);
  /// The messages on links that `rank` sends on or receives from. A message with packets for all ranks is visited once.
  void visit_of(const CallShape& call, int rank, const Visit& visit);
  /// The messages of one half that `rank` sends. A message with packets for all ranks is visited once.
  void visit_sent_by(const CallShape& call, int rank, sim::Half half, const Visit& visit);

  /// The hops of a collective, with the first element of each part and the number of elements; valid until a
  /// collective of another shape is visited or cut. Throws: CheckError for a reduction on a path without hops.
  struct Cut {
    const sim::HopSchedule& hops;
    std::span<const std::uint64_t> begins;
    /// The elements that a hop carries.
    sim::ElementRange elements(const sim::Hop& hop) const {
      return {begins[static_cast<std::size_t>(hop.first_part)], begins[static_cast<std::size_t>(hop.end_part)]};
    }
  };
  Cut cut(const CallShape& call);
  /// The number of elements of each part of an all-reduce. A message holds one or more parts.
  std::vector<std::uint64_t> all_reduce_parts(std::uint64_t elements);

 private:
  enum class Whose : std::uint8_t { kAll, kOfRank, kSentByRank };
  struct Request {
    const CallShape* call;
    Whose whose;
    int rank;
    const Visit& visit;
    int number = 0;  // number of the SubCall
    std::optional<std::uint64_t> content_bytes{};
    std::optional<sim::Half> half{};  // absent: both halves
  };
  void visit_calls(const CallShape& call, Request request);
  void visit_sub_call(const SubCall& call, Request request);
  void visit_call(const Request& request);
  void visit_aggregation(const Request& request);
  void visit_pairs(const Request& request);
  void visit_hops(const Request& request);
  struct Leg;
  void yield(const Request& request, const Leg& leg);
  bool aggregates(Operation operation) const;
  bool sends_to_all(sim::Half half) const;
  const sim::HopSchedule& schedule(sim::Collective collective, int root);
  const sim::Packetizer& packets(ElementType type, std::uint64_t elements, std::optional<std::uint64_t> content_bytes);

  const ClassNetwork& network_;
  const PathEntry& path_;
  int ranks_;
  int aggregation_point_;
  std::vector<std::unique_ptr<sim::HopSchedule>> schedules_;  // indexed by collective, then a broadcast for each root
  std::vector<std::uint64_t> begins_;
  std::vector<sim::Hop> hops_;
  sim::Packetizer packets_{0, 1, 1};  // packets of the last message
  std::optional<ElementType> type_;   // element type of the last message, if packets_ may serve again; else absent
};

/// Whether the operation adds up contributions.
constexpr bool reduces(Operation operation) {
  return operation == Operation::kAllReduce || operation == Operation::kReduceScatter;
}
/// The call that runs a collective.
Operation operation_of(sim::Collective collective);

}  // namespace droptest::comm
