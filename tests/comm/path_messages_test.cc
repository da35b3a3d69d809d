// SPDX-License-Identifier: Apache-2.0
// The one description of a path's messages: every view of a collective shows the same messages of each link.
#include "comm/lossy/paths/path_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/run_ranks.h"
#include "sim/loss/bernoulli.h"

namespace droptest::comm::path_messages_test {
namespace {

using testing::ElementsAre;

// The source, the destination (-1: all ranks) and the half.
using Link = std::tuple<int, int, sim::Half>;
// The elements and packets of each message on a link, in order.
using Links = std::map<Link, std::vector<std::vector<std::uint64_t>>>;

void add(Links& links, const PathMessage& message) {
  links[{message.source, message.to_all ? -1 : message.destination, message.half}].push_back(
      {message.elements.begin, message.elements.end, message.packets.packets(), message.packets.content_bytes()});
}

ClassNetwork network_of(std::string_view path, const Compression& compression, Consistency consistency) {
  ClassNetwork network;
  network.path = path;
  network.payload_bytes = 64;
  network.compression = compression;
  network.consistency = consistency;
  network.group_ranks = path == "hierarchical" ? 2 : 0;
  network.reduce.loss = std::make_shared<sim::Bernoulli>(0.1);
  if (compression.kind != CompressionKind::kPowerSgd) network.gather.loss = network.reduce.loss;
  return network;
}

struct Case {
  std::string_view path;
  Compression compression{};
  Consistency consistency = Consistency::kPerReceiver;
};

std::vector<Case> cases() {
  std::vector<Case> all = {{"direct", {CompressionKind::kTopK, 1, 0.1}},
                           {"direct", {CompressionKind::kTopK, 1, 0.1}, Consistency::kShared},
                           {"direct", {CompressionKind::kInt8, 8}},
                           {"contribution", {CompressionKind::kPowerSgd, 1, 0, 1}}};
  for (const PathEntry& path : paths()) {
    all.push_back({path.name});
    if (path.can_share) all.push_back({path.name, {}, Consistency::kShared});
  }
  return all;
}

// A collective on `ranks` ranks, with parts of different sizes, of which one is empty.
struct Collective {
  Collective(Operation operation, int ranks, std::uint64_t elements) {
    for (int rank = 0; rank < ranks; ++rank) counts.push_back(static_cast<std::uint64_t>(40 * rank));
    if (operation == Operation::kAllReduce || operation == Operation::kBroadcast) {
      shape = {operation, ElementType::kFloat32, elements, {}, {}, operation == Operation::kBroadcast ? ranks - 1 : 0};
    } else {
      shape = {operation, ElementType::kFloat32, std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}),
               counts};
    }
  }
  std::vector<std::uint64_t> counts;
  CallShape shape;
};

// Both ends of a link, only its sender, and the clock see the same messages in the same order. For the clock, a packet
// for all ranks counts once for each receiver.
TEST(PathMessages, AllViewsOfACollectiveShowTheSameMessagesOfEachLink) {
  int with_messages = 0;
  for (const Case& item : cases()) {
    for (const int ranks : {1, 2, 5}) {
      for (const Operation operation :
           {Operation::kAllReduce, Operation::kReduceScatter, Operation::kAllGather, Operation::kBroadcast}) {
        const bool sums = operation == Operation::kAllReduce;
        if (item.compression.kind != CompressionKind::kNone && !sums) continue;
        SCOPED_TRACE(std::string(item.path) + " with " + std::string(compression_entry(item.compression.kind).name) +
                     ", operation " + std::to_string(static_cast<int>(operation)) + " of " + std::to_string(ranks));
        const Collective collective(operation, ranks, 203);
        const ClassNetwork network = network_of(item.path, item.compression, item.consistency);
        const int point = ranks - 1;
        PathMessages messages(network, path_in(network, collective.shape.elements), ranks, point);

        Links all;
        std::map<std::tuple<int, int, sim::Half>, int> receivers;  // receivers of packets for all
        int call = 0;
        int round = 0;
        messages.visit(collective.shape, [&](const PathMessage& message) {
          EXPECT_TRUE(message.call > call || message.round >= round);
          EXPECT_GE(message.call, call);
          call = message.call;
          round = message.round;
          if (message.only_takes_time) return;
          if (message.to_all && receivers[{message.source, message.call, message.half}]++ > 0) return;
          add(all, message);
        });
        Links sent;
        for (int rank = 0; rank < ranks; ++rank) {
          for (const sim::Half half : {sim::Half::kReduce, sim::Half::kGather}) {
            messages.visit_sent_by(collective.shape, rank, half, [&](const PathMessage& message) {
              EXPECT_EQ(message.source, rank);
              EXPECT_EQ(message.half, half);
              add(sent, message);
            });
          }
          Links expected;
          for (const auto& [link, of_link] : all) {
            const auto& [source, destination, half] = link;
            if (source == rank || destination == rank || destination == -1) expected[link] = of_link;
          }
          Links seen;
          messages.visit_of(collective.shape, rank, [&](const PathMessage& message) { add(seen, message); });
          EXPECT_EQ(seen, expected) << "rank " << rank;
        }
        EXPECT_EQ(sent, all);
        with_messages += all.empty() ? 0 : 1;
      }
    }
  }
  EXPECT_GT(with_messages, 60);
}

TEST(PathMessages, AnAllToAllIsOneHopForEachPairOnEveryPath) {
  constexpr int kRanks = 3;
  const std::vector<std::uint64_t> table = {0, 1, 2, 10, 0, 0, 20, 21, 0};
  for (const Case& item : cases()) {
    const ClassNetwork network = network_of(item.path, {}, item.consistency);
    PathMessages messages(network, path_in(network, 0), kRanks, 0);
    Links all;
    const CallShape all_to_all{Operation::kAllToAll, ElementType::kFloat32, 0, table};
    messages.visit(all_to_all, [&](const PathMessage& message) { add(all, message); });
    EXPECT_EQ(all.size(), 6U);  // messages without elements, too
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto row = std::span(table).subspan(static_cast<std::size_t>(kRanks * rank), kRanks);
      std::vector<std::uint64_t> column;
      for (int source = 0; source < kRanks; ++source) {
        column.push_back(table[static_cast<std::size_t>(kRanks * source + rank)]);
      }
      Links seen;
      messages.visit_of({Operation::kAllToAll, ElementType::kFloat32, 0, row, column}, rank,
                        [&](const PathMessage& message) { add(seen, message); });
      Links expected;
      for (const auto& [link, of_link] : all) {
        if (std::get<0>(link) == rank || std::get<1>(link) == rank) expected[link] = of_link;
      }
      EXPECT_EQ(seen, expected);
    }
  }
}

struct Seen {
  int source;
  int destination;
  bool to_all;
  bool only_takes_time;
  std::uint64_t elements;
  std::uint64_t content_bytes;
  friend bool operator==(const Seen&, const Seen&) = default;
};

std::vector<Seen> seen_in(const ClassNetwork& network, int ranks, int point, std::uint64_t elements) {
  std::vector<Seen> seen;
  PathMessages messages(network, path_in(network, elements), ranks, point);
  const CallShape all_reduce{Operation::kAllReduce, ElementType::kFloat32, elements};
  messages.visit(all_reduce, [&](const PathMessage& m) {
    seen.push_back(
        {m.source, m.destination, m.to_all, m.only_takes_time, m.elements.size(), m.packets.content_bytes()});
  });
  return seen;
}

// The point is the group's rank 1: contributions go there, results come from there to all ranks, its own too.
TEST(PathMessages, AnAggregationPointTakesAContributionOfEachRankAndSendsEachAResult) {
  ClassNetwork network = network_of("contribution", {}, Consistency::kPerReceiver);
  EXPECT_THAT(seen_in(network, 2, 1, 10),
              ElementsAre(Seen{0, 1, true, false, 10, 40}, Seen{1, 1, true, false, 10, 40},
                          Seen{1, 0, false, false, 10, 40}, Seen{1, 1, false, false, 10, 40}));
  network.gather.loss = nullptr;  // no spec lets the results get lost: they have no link
  EXPECT_THAT(seen_in(network, 2, 1, 10),
              ElementsAre(Seen{0, 1, true, false, 10, 40}, Seen{1, 1, true, false, 10, 40},
                          Seen{1, 0, false, true, 10, 40}, Seen{1, 1, false, true, 10, 40}));
}

// 100 elements are a matrix of 10 x 10, with factors of 10 elements; 4 elements travel as they are.
TEST(PathMessages, SumsOfFactorsAreTwoCollectivesOfWhichTheFirstStandsForTheContribution) {
  const ClassNetwork network = network_of("contribution", {CompressionKind::kPowerSgd, 1, 0, 1}, {});
  EXPECT_THAT(seen_in(network, 1, 0, 100), ElementsAre());
  EXPECT_THAT(
      seen_in(network, 2, 0, 100),
      ElementsAre(Seen{0, 0, true, false, 10, 400}, Seen{1, 0, true, false, 10, 400}, Seen{0, 0, false, true, 10, 400},
                  Seen{0, 1, false, true, 10, 400}, Seen{0, 0, true, false, 10, 0}, Seen{1, 0, true, false, 10, 0},
                  Seen{0, 0, false, true, 10, 0}, Seen{0, 1, false, true, 10, 0}));
  EXPECT_THAT(seen_in(network, 2, 0, 4), ElementsAre(Seen{0, 0, true, false, 4, 16}, Seen{1, 0, true, false, 4, 16},
                                                     Seen{0, 0, false, true, 4, 16}, Seen{0, 1, false, true, 4, 16}));
}

// A tenth of 100 elements from each rank to all others.
TEST(PathMessages, PairsStandForTheWholeContribution) {
  const Compression top_k{CompressionKind::kTopK, 1, 0.1};
  EXPECT_THAT(seen_in(network_of("direct", top_k, Consistency::kPerReceiver), 2, 0, 100),
              ElementsAre(Seen{0, 1, false, false, 10, 400}, Seen{1, 0, false, false, 10, 400}));
  EXPECT_THAT(seen_in(network_of("direct", top_k, Consistency::kShared), 2, 0, 100),
              ElementsAre(Seen{0, 1, true, false, 10, 400}, Seen{1, 0, true, false, 10, 400}));
}

// A group whose first rank is the last of the world: results come from the point that the lowest world rank names.
TEST(PathMessages, TheAggregationPointHasTheLowestWorldRankInAGroupOfAnyOrder) {
  constexpr int kRanks = 3;
  constexpr auto kClass = sim::TrafficClass::kTpForward;
  LossyOptions options;
  options.network.of(kClass) = network_of("contribution", {}, Consistency::kPerReceiver);
  run_ranks(kRanks, std::chrono::seconds(60), [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    const std::unique_ptr<Communicator> reversed = lossy.split(0, -inner.rank());
    std::vector<float> values(1000, 1.0F);
    for (int call = 0; call < 20; ++call) {
      reversed->all_reduce(Tensor(std::span(values)), ReduceOp::kMean, {kClass, "mean"});
    }
    lossy.verify_fates();
    const std::vector<ClassStatistics> statistics = lossy.collect_statistics(LinkDetail::kInclude);
    if (inner.rank() != 0) return;
    std::vector<std::pair<int, int>> of_results;
    for (const LinkStatistics& link : statistics.at(0).links) {
      if (link.link.half == sim::Half::kGather) of_results.emplace_back(link.link.source, link.link.destination);
    }
    EXPECT_THAT(of_results, testing::UnorderedElementsAre(std::pair(0, 0), std::pair(0, 1), std::pair(0, 2)));
  });
}

}  // namespace
}  // namespace droptest::comm::path_messages_test
