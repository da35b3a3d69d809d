// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/paths/path_messages.h"

#include <string>

#include "comm/lossy/paths/path_registry.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

sim::Collective collective_of(Operation operation) {
  switch (operation) {
    case Operation::kAllReduce:
      return sim::Collective::kAllReduce;
    case Operation::kReduceScatter:
      return sim::Collective::kReduceScatter;
    case Operation::kAllGather:
      return sim::Collective::kAllGather;
    case Operation::kBroadcast:
      return sim::Collective::kBroadcast;
    default:
      break;
  }
  DROPTEST_CHECK(false, "operation " + std::to_string(static_cast<int>(operation)) + " has no rounds of hops");
}

}  // namespace

Operation operation_of(sim::Collective collective) {
  switch (collective) {
    case sim::Collective::kAllReduce:
      return Operation::kAllReduce;
    case sim::Collective::kReduceScatter:
      return Operation::kReduceScatter;
    case sim::Collective::kAllGather:
      return Operation::kAllGather;
    case sim::Collective::kBroadcast:
      break;
  }
  return Operation::kBroadcast;
}

CallShape shape_of(const CallArguments& call) {
  CallShape shape{call.operation, call.output.type, 0, call.counts, call.receive_counts, 0};
  if (reduces(call.operation)) {
    shape.elements = call.input.count_elems();
  } else {
    shape.elements = call.output.count_elems();
  }
  if (call.operation == Operation::kBroadcast) shape.root = call.peer;
  return shape;
}

std::vector<SubCall> sub_calls_of(const ClassNetwork& network, const PathEntry& path, const CallShape& call,
                                  int ranks) {
  if (path.sub_calls == nullptr || !reduces(call.operation)) return {{call}};
  return path.sub_calls(network, call, ranks);
}

int rank_of_lowest(int ranks, const std::function<int(int rank)>& world_rank) {
  int lowest = 0;
  for (int rank = 1; rank < ranks; ++rank) {
    if (world_rank(rank) < world_rank(lowest)) lowest = rank;
  }
  return lowest;
}

/// The differences between the messages of a collective.
struct PathMessages::Leg {
  int source;
  int destination;
  sim::Half half;
  int round;
  sim::ElementRange elements;
  bool to_all = false;
  bool only_takes_time = false;
};

PathMessages::PathMessages(const ClassNetwork& network, const PathEntry& path, int ranks, int aggregation_point)
    : network_(network), path_(path), ranks_(ranks), aggregation_point_(aggregation_point) {}

bool PathMessages::aggregates(Operation operation) const {
  return path_.route == Route::kAggregated && reduces(operation);
}

// Next to an aggregation point a packet goes to all receivers at once. Paths of many hops have no shared packets.
bool PathMessages::sends_to_all(sim::Half half) const {
  if (path_.route == Route::kAggregated) return true;
  return path_.can_share && half == sim::Half::kGather && network_.consistency == Consistency::kShared;
}

const sim::HopSchedule& PathMessages::schedule(sim::Collective collective, int root) {
  const auto index = static_cast<std::size_t>(collective) + static_cast<std::size_t>(root);
  if (schedules_.size() <= index) schedules_.resize(index + 1);
  if (schedules_[index] == nullptr) {
    // Collectives without a reduction have no aggregation point: their values go from rank to rank.
    const auto make = path_.schedule == nullptr ? &sim::make_direct_schedule : path_.schedule;
    schedules_[index] = make({collective, ranks_, root, network_.group_ranks});
  }
  return *schedules_[index];
}

PathMessages::Cut PathMessages::cut(const CallShape& call) {
  DROPTEST_CHECK(!aggregates(call.operation), "a path without hops");
  const sim::HopSchedule& hops = schedule(collective_of(call.operation), call.root);
  begins_.assign(1, 0);
  const auto add = [this](std::uint64_t count) { begins_.push_back(begins_.back() + count); };
  if (call.operation == Operation::kAllReduce) {  // even_counts()
    const auto parts = static_cast<std::uint64_t>(hops.parts());
    for (std::uint64_t part = 0; part < parts; ++part) {
      add(call.elements / parts + (part < call.elements % parts ? 1 : 0));
    }
  } else if (call.operation == Operation::kBroadcast) {
    add(call.elements);
  } else {
    for (const std::uint64_t count : call.counts) add(count);
  }
  DROPTEST_CHECK(begins_.size() == static_cast<std::size_t>(hops.parts()) + 1, "one count for each part");
  return {hops, begins_};
}

std::vector<std::uint64_t> PathMessages::all_reduce_parts(std::uint64_t elements) {
  if (path_.sub_calls != nullptr || aggregates(Operation::kAllReduce)) return {elements};
  return even_counts(elements, schedule(sim::Collective::kAllReduce, 0).parts());
}

const sim::Packetizer& PathMessages::packets(ElementType type, std::uint64_t elements,
                                             std::optional<std::uint64_t> content_bytes) {
  if (type_ == type && packets_.count_elems() == elements && !content_bytes) return packets_;
  packets_ = content_bytes ? sim::Packetizer(elements, coding_of(network_.compression, type), network_.payload_bytes,
                                             *content_bytes)
                           : network_.packets(type, elements);
  type_ = content_bytes ? std::nullopt : std::optional(type);
  return packets_;
}

void PathMessages::yield(const Request& request, const Leg& leg) {
  if (request.half && *request.half != leg.half) return;
  const sim::Packetizer& cut = packets(request.call->type, leg.elements.size(), request.content_bytes);
  request.visit({leg.source, leg.destination, leg.half, leg.to_all, leg.only_takes_time, request.number, leg.round,
                 leg.elements, cut});
}

// Visits contributions in the first round, results in the second.
void PathMessages::visit_aggregation(const Request& request) {
  const sim::ElementRange all{0, request.call->elements};
  const bool is_sent = request.whose == Whose::kSentByRank;
  for (int source = is_sent ? request.rank : 0; source < (is_sent ? request.rank + 1 : ranks_); ++source) {
    yield(request, {source, aggregation_point_, sim::Half::kReduce, 0, all, true});
  }
  const bool only_takes_time = request.call->operation != Operation::kAllReduce ||
                               (network_.gather.loss == nullptr && network_.gather.links.empty());
  const bool is_all = request.whose == Whose::kAll;
  if (only_takes_time && !is_all) return;
  const bool shared = network_.consistency == Consistency::kShared;
  const auto send = [&](int receiver) {
    yield(request, {aggregation_point_, receiver, sim::Half::kGather, 1, all, shared, only_takes_time});
  };
  if (is_all || (!shared && request.rank == aggregation_point_)) {
    for (int receiver = 0; receiver < ranks_; ++receiver) send(receiver);
  } else if (!is_sent || request.rank == aggregation_point_) {
    send(request.rank);
  }
}

// Visits one hop for each pair, on every path: nearest first, so that no two meet at a port.
void PathMessages::visit_pairs(const Request& request) {
  const auto send = [&](int source, int destination, std::uint64_t elements) {
    yield(request, {source, destination, sim::Half::kGather, 0, {0, elements}});
  };
  const CallShape& call = *request.call;
  for (int distance = 1; distance < ranks_; ++distance) {
    for (int source = 0; request.whose == Whose::kAll && source < ranks_; ++source) {
      const int destination = (source + distance) % ranks_;
      send(source, destination, call.counts[static_cast<std::size_t>(source * ranks_ + destination)]);
    }
    if (request.whose == Whose::kAll) continue;
    const int to = (request.rank + distance) % ranks_;
    send(request.rank, to, call.counts[static_cast<std::size_t>(to)]);
    if (request.whose == Whose::kOfRank) send(to, request.rank, call.receive_counts[static_cast<std::size_t>(to)]);
  }
}

void PathMessages::visit_hops(const Request& request) {
  const Cut of_call = cut(*request.call);
  const bool reduces_alone = request.half == sim::Half::kReduce;
  const int rounds = reduces_alone ? of_call.hops.reduce_rounds() : of_call.hops.rounds();
  for (int round = 0; round < rounds; ++round) {
    const auto send = [&](const sim::Hop& hop) {
      // Both ends of a link drop the hops without elements.
      if (path_.route == Route::kManyHops && of_call.elements(hop).size() == 0) return;
      yield(request, {hop.source, hop.destination, hop.half, round, of_call.elements(hop), sends_to_all(hop.half)});
    };
    if (request.whose == Whose::kAll) {
      of_call.hops.for_each_hop(round, send);
      continue;
    }
    hops_.clear();
    of_call.hops.sends(round, request.rank, hops_);
    if (!hops_.empty() && sends_to_all(hops_.front().half)) hops_.resize(1);
    if (request.whose == Whose::kOfRank) of_call.hops.receives(round, request.rank, hops_);
    for (const sim::Hop& hop : hops_) send(hop);
  }
}

void PathMessages::visit_call(const Request& request) {
  if (ranks_ == 1) return;
  if (request.call->operation == Operation::kAllToAll) return visit_pairs(request);
  aggregates(request.call->operation) ? visit_aggregation(request) : visit_hops(request);
}

void PathMessages::visit_sub_call(const SubCall& call, Request request) {
  CallShape shape = call.shape;
  if (!call.counts.empty()) shape.counts = call.counts;
  request.call = &shape;
  request.content_bytes = call.content_bytes;
  visit_call(request);
}

void PathMessages::visit_calls(const CallShape& call, Request request) {
  if (path_.sub_calls == nullptr) {
    request.call = &call;
    return visit_call(request);
  }
  for (const SubCall& one : sub_calls_of(network_, path_, call, ranks_)) {
    visit_sub_call(one, request);
    ++request.number;
  }
}

void PathMessages::visit(const SubCall& call, const Visit& visit) {
  visit_sub_call(call, {nullptr, Whose::kAll, 0, visit});
}
void PathMessages::visit(const CallShape& call, const Visit& visit) {
  visit_calls(call, {nullptr, Whose::kAll, 0, visit});
}
void PathMessages::visit_of(const CallShape& call, int rank, const Visit& visit) {
  visit_calls(call, {nullptr, Whose::kOfRank, rank, visit});
}
void PathMessages::visit_sent_by(const CallShape& call, int rank, sim::Half half, const Visit& visit) {
  visit_calls(call, {nullptr, Whose::kSentByRank, rank, visit, 0, {}, half});
}

}  // namespace droptest::comm
