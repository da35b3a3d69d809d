// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/flows/fate_verification.h"

#include <array>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "sim/error.h"

namespace droptest::comm {
namespace {

const Message kVerification{sim::TrafficClass::kControl, "verification of fates"};
constexpr std::array kHalves = {sim::Half::kReduce, sim::Half::kGather};

// The state of a flow at one end.
struct FlowEnd {
  std::uint64_t digest = 0;
  std::uint64_t packets = 0;
  std::uint64_t messages = 0;
  std::uint64_t peer_messages = 0;  // messages of send and exchange, among `messages`
};
constexpr std::size_t kEndWords = sizeof(FlowEnd) / sizeof(std::uint64_t);

FlowEnd end_of(const FlowLedger& ledger, const FlowKey& key) {
  const auto found = ledger.flows().find(key);
  if (found == ledger.flows().end()) return {};
  const Flow& flow = found->second;
  const std::uint64_t packets = flow.packets - flow.undrawn_packets;
  return {packets == 0 ? 0 : flow.check(), packets, flow.messages - flow.undrawn_messages, flow.peer_messages};
}

// Messages between two ranks may be under way: sent, but not received. While they are, the ends agree if they differ by
// those messages only; a later call compares the fates of these messages.
bool agree(const FlowEnd& at_source, const FlowEnd& at_destination) {
  if (at_source.peer_messages <= at_destination.peer_messages) {
    return at_source.digest == at_destination.digest && at_source.packets == at_destination.packets;
  }
  const std::uint64_t under_way = at_source.peer_messages - at_destination.peer_messages;
  return at_source.messages == at_destination.messages + under_way && at_source.packets >= at_destination.packets;
}

// The flows that a verification visits between a source and a destination, in an order that all ranks share: the link
// between the two, then the source's link to every destination in each group.
std::vector<FlowKey> flows_between(const FlowLedger& ledger, int source, int destination, std::uint64_t groups) {
  std::vector<FlowKey> keys;
  for (const sim::TrafficClass traffic_class : sim::kAllTrafficClasses) {
    if (!ledger.network().of(traffic_class).has_value()) continue;
    for (const sim::Half half : kHalves) {
      const auto from = static_cast<std::uint16_t>(source);
      keys.push_back({{traffic_class, half, from, static_cast<std::uint16_t>(destination)}, 0});
      for (std::uint64_t group = 0; group < groups; ++group) {
        keys.push_back({{traffic_class, half, from, sim::Link::kEveryDestination}, static_cast<GroupNumber>(group)});
      }
    }
  }
  return keys;
}

// The first mismatch that a rank found, for the others. All members are words, so that it travels as words.
struct Mismatch {
  std::uint64_t number = 0;  // number of mismatches on this rank
  std::uint64_t traffic_class = 0;
  std::uint64_t half = 0;
  std::uint64_t source = 0;
  std::uint64_t destination = 0;
  std::uint64_t observer = 0;
  FlowEnd at_source;
  FlowEnd at_observer;
};
constexpr std::size_t kMismatchWords = sizeof(Mismatch) / sizeof(std::uint64_t);

std::string describe(const FlowEnd& end) {
  std::array<char, 17> digest{};
  std::snprintf(digest.data(), digest.size(), "%016llx", static_cast<unsigned long long>(end.digest));
  return std::string("digest ") + digest.data() + " over " + std::to_string(end.packets) + " packets of " +
         std::to_string(end.messages) + " messages";
}

std::string describe(const Mismatch& mismatch) {
  const auto traffic_class = static_cast<sim::TrafficClass>(mismatch.traffic_class);
  const bool to_all = mismatch.destination == sim::Link::kEveryDestination;
  return std::string(sim::traffic_class_name(traffic_class)) +
         (mismatch.half == static_cast<std::uint64_t>(sim::Half::kReduce) ? ", reduce half" : ", gather half") +
         ", link from rank " + std::to_string(mismatch.source) + " to " +
         (to_all ? "every rank" : "rank " + std::to_string(mismatch.destination)) + ": rank " +
         std::to_string(mismatch.source) + " has " + describe(mismatch.at_source) + ", rank " +
         std::to_string(mismatch.observer) + " has " + describe(mismatch.at_observer);
}

}  // namespace

void verify_fates(Communicator& group, const FlowLedger& ledger, GroupNumber groups_known) {
  std::array<std::uint64_t, 1> groups = {groups_known};
  group.all_reduce(Tensor(std::span<std::uint64_t>(groups)), ReduceOp::kMax, kVerification);

  const int world_size = group.world_size();
  const int me = group.world_rank(group.rank());
  std::vector<std::uint64_t> sent;
  for (int peer = 0; peer < world_size; ++peer) {
    for (const FlowKey& key : flows_between(ledger, me, group.world_rank(peer), groups[0])) {
      const FlowEnd end = end_of(ledger, key);
      sent.insert(sent.end(), {end.digest, end.packets, end.messages, end.peer_messages});
    }
  }
  const std::size_t words = sent.size() / static_cast<std::size_t>(world_size);
  const std::vector<std::uint64_t> counts(static_cast<std::size_t>(world_size), words);
  std::vector<std::uint64_t> received(sent.size());
  group.all_to_all(ConstTensor(std::span<const std::uint64_t>(sent)), counts, Tensor(std::span(received)), counts,
                   kVerification);

  Mismatch first;
  for (int peer = 0; peer < world_size; ++peer) {
    std::size_t next = static_cast<std::size_t>(peer) * words;
    for (const FlowKey& key : flows_between(ledger, group.world_rank(peer), me, groups[0])) {
      const FlowEnd at_source{received[next], received[next + 1], received[next + 2], received[next + 3]};
      next += kEndWords;
      const FlowEnd here = end_of(ledger, key);
      const bool to_all = key.link.destination == sim::Link::kEveryDestination;
      // A rank that is in none of the source's groups of this number does not know the flow.
      if (to_all && here.packets == 0) continue;
      if (agree(at_source, here)) continue;
      if (first.number == 0) {
        first = {0,
                 static_cast<std::uint64_t>(key.link.traffic_class),
                 static_cast<std::uint64_t>(key.link.half),
                 key.link.source,
                 key.link.destination,
                 static_cast<std::uint64_t>(me),
                 at_source,
                 here};
      }
      ++first.number;
    }
  }

  // Every rank gets all mismatches, so that no rank waits for one that has thrown.
  std::vector<std::uint64_t> all(static_cast<std::size_t>(world_size) * kMismatchWords);
  const std::vector<std::uint64_t> sizes(static_cast<std::size_t>(world_size), kMismatchWords);
  const std::array<std::uint64_t, kMismatchWords> mine = {first.number,
                                                          first.traffic_class,
                                                          first.half,
                                                          first.source,
                                                          first.destination,
                                                          first.observer,
                                                          first.at_source.digest,
                                                          first.at_source.packets,
                                                          first.at_source.messages,
                                                          first.at_source.peer_messages,
                                                          first.at_observer.digest,
                                                          first.at_observer.packets,
                                                          first.at_observer.messages,
                                                          first.at_observer.peer_messages};
  group.all_gather(ConstTensor(std::span<const std::uint64_t>(mine)), Tensor(std::span(all)), sizes, kVerification);
  std::uint64_t number = 0;
  std::string text;
  for (std::size_t base = 0; base < all.size(); base += kMismatchWords) {
    const std::uint64_t* w = all.data() + base;
    if (w[0] != 0 && text.empty())
      text = describe(
          Mismatch{w[0], w[1], w[2], w[3], w[4], w[5], {w[6], w[7], w[8], w[9]}, {w[10], w[11], w[12], w[13]}});
    number += w[0];
  }
  if (number == 0) return;
  throw CommError("verify_fates: rank " + std::to_string(me) + " (group of " + std::to_string(world_size) +
                  "): the ends of " + std::to_string(number) +
                  " links disagree on which packets were lost; the first: " + text +
                  "; do all ranks run the same program with the same seed and network?");
}

}  // namespace droptest::comm
