// SPDX-License-Identifier: Apache-2.0
// Compares every collective of every path and fill with the element-by-element reference.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/run_ranks.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/gilbert_elliott.h"
#include "tests/comm/lossy_reference.h"
#include "tests/sanitizers.h"

namespace droptest::comm::lossy_collectives_test {
namespace {

using Values = LossyReference::Values;
using Counts = LossyReference::Counts;

constexpr std::uint64_t kSeed = 20240817;
constexpr std::uint64_t kPayloadBytes = 24;  // three doubles
constexpr int kCalls = 3;
constexpr auto kClass = sim::TrafficClass::kTpForward;
constexpr std::chrono::milliseconds kTimeout{20000};

std::shared_ptr<const sim::LossProcess> bernoulli(double p) { return std::make_shared<sim::Bernoulli>(p); }

std::shared_ptr<const sim::LossProcess> bursts() {
  return std::make_shared<sim::GilbertElliott>(sim::GilbertElliottRates{0.2, 0.4, 0.05, 0.9});
}

struct NamedNetwork {
  std::string name;
  ClassNetwork network;
};

// Every path with each pair of fills, both consistencies if they have a meaning, and both burst scopes.
std::vector<NamedNetwork> networks() {
  std::vector<NamedNetwork> result;
  for (const PathEntry& entry : paths()) {
    const std::string_view path = entry.name;
    for (const Consistency consistency : {Consistency::kPerReceiver, Consistency::kShared}) {
      if (consistency == Consistency::kShared && !entry.can_share) continue;
      for (const BurstScope scope : {BurstScope::kLink, BurstScope::kMessage}) {
        for (const FillEntry& reduce : fills()) {
          for (const FillEntry& gather : fills()) {
            const bool has_meaning = reduce.reduce_half || (reduce.means && path == "direct");
            if (!has_meaning || !gather.gather_half) continue;
            if (gather.fill == Fill::kOwnScaled && !entry.can_share) continue;
            ClassNetwork network;
            network.path = path;
            network.group_ranks = entry.has_groups ? 2 : 0;
            network.reduce = {scope == BurstScope::kLink ? bernoulli(0.4) : bursts(), reduce.fill};
            network.gather = {scope == BurstScope::kLink ? bursts() : bernoulli(0.3), gather.fill};
            network.consistency = consistency;
            network.burst_scope = scope;
            network.payload_bytes = kPayloadBytes;
            result.push_back({std::string(path) + " " + std::string(reduce.name) + " " + std::string(gather.name) +
                                  (consistency == Consistency::kShared ? " shared" : " per_receiver") +
                                  (scope == BurstScope::kLink ? " link" : " message"),
                              network});
          }
        }
      }
    }
  }
  return result;
}

double value(int call, int rank, std::uint64_t i) {
  const double x = static_cast<double>(
      (static_cast<std::uint64_t>(call) * 7919 + static_cast<std::uint64_t>(rank) * 104729 + i * 1299709) % 2003);
  return x / 1001 - 1.0005;
}

std::vector<double> vector_of(int call, int rank, std::uint64_t count) {
  std::vector<double> result(count);
  for (std::uint64_t i = 0; i < count; ++i) result[i] = value(call, rank, i);
  return result;
}

LossyOptions options_of(const ClassNetwork& network) {
  LossyOptions options;
  options.network.seed = kSeed;
  options.network.of(kClass) = network;
  return options;
}

void expect_near(const Values& got, const Values& want, const std::string& trace) {
  ASSERT_EQ(got.size(), want.size()) << trace;
  for (std::size_t r = 0; r < got.size(); ++r) {
    ASSERT_EQ(got[r].size(), want[r].size()) << trace << " rank " << r;
    for (std::size_t i = 0; i < got[r].size(); ++i) {
      ASSERT_NEAR(got[r][i], want[r][i], 1e-13) << trace << " rank " << r << " element " << i;
    }
  }
}

struct Shape {
  int ranks;
  std::uint64_t count;
};
const std::vector<Shape> kShapes =
    kSanitized ? std::vector<Shape>{{2, 0}, {3, 2}, {5, 113}}
               : std::vector<Shape>{{2, 0}, {2, 1}, {2, 37}, {3, 2}, {3, 50}, {5, 4}, {5, 113}, {7, 90}};

const Message kMessage{kClass, "tensor", 3};

TEST(LossyCollectives, AllReduceEqualsReference) {
  for (const NamedNetwork& named : networks()) {
    const std::string& name = named.name;
    const ClassNetwork& network = named.network;
    for (const Shape& shape : kShapes) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMean}) {
        if (kSanitized && op != ReduceOp::kMean) continue;  // the code of the others is the same but for the operation
        const Fill fill = network.reduce.fill;
        if (op == ReduceOp::kMax && (fill == Fill::kCountRescale || fill == Fill::kInverseProbability)) continue;
        if (op != ReduceOp::kMean && fill == Fill::kOwn) continue;
        std::vector<Values> got(kCalls, Values(static_cast<std::size_t>(shape.ranks)));
        run_ranks(shape.ranks, kTimeout, [&](Communicator& inner) {
          LossyCommunicator lossy(inner, options_of(network));
          for (int call = 0; call < kCalls; ++call) {
            std::vector<double> data = vector_of(call, inner.rank(), shape.count);
            if (call == 1) {
              lossy.all_reduce(Tensor(std::span(data)), op, kMessage);  // an in-place call
              got[call][inner.rank()] = data;
            } else {
              std::vector<double> output(shape.count, -77);
              lossy.all_reduce(ConstTensor(std::span<const double>(data)), Tensor(std::span(output)), op, kMessage);
              EXPECT_EQ(data, vector_of(call, inner.rank(), shape.count)) << "the input was changed";
              got[call][inner.rank()] = output;
            }
          }
          lossy.verify_fates();
        });
        LossyReference reference(network, kSeed, kClass, shape.ranks);
        for (int call = 0; call < kCalls; ++call) {
          Values inputs;
          for (int r = 0; r < shape.ranks; ++r) inputs.push_back(vector_of(call, r, shape.count));
          expect_near(got[call], reference.all_reduce(inputs, op),
                      name + ", " + std::to_string(shape.ranks) + " ranks, " + std::to_string(shape.count) +
                          " elements, call " + std::to_string(call));
        }
      }
    }
  }
}

// Parts of different sizes, one of them empty.
Counts uneven_counts(int ranks, std::uint64_t scale) {
  Counts counts;
  for (int r = 0; r < ranks; ++r) counts.push_back(r == 1 ? 0 : scale + 3 * static_cast<std::uint64_t>(r));
  return counts;
}

TEST(LossyCollectives, ReduceScatterEqualsReference) {
  for (const NamedNetwork& named : networks()) {
    const std::string& name = named.name;
    const ClassNetwork& network = named.network;
    for (const int ranks : {2, 3, 7}) {
      const bool sums = ranks == 2 && network.reduce.fill != Fill::kOwn;
      const ReduceOp op = sums ? ReduceOp::kSum : ReduceOp::kMean;
      const Counts counts = uneven_counts(ranks, 8);
      const std::uint64_t total = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
      std::vector<Values> got(kCalls, Values(static_cast<std::size_t>(ranks)));
      run_ranks(ranks, kTimeout, [&](Communicator& inner) {
        LossyCommunicator lossy(inner, options_of(network));
        for (int call = 0; call < kCalls; ++call) {
          const std::vector<double> input = vector_of(call, inner.rank(), total);
          std::vector<double> output(counts[inner.rank()]);
          lossy.reduce_scatter(ConstTensor(std::span(input)), Tensor(std::span(output)), counts, op, kMessage);
          EXPECT_EQ(input, vector_of(call, inner.rank(), total));
          got[call][inner.rank()] = output;
        }
        lossy.verify_fates();
      });
      LossyReference reference(network, kSeed, kClass, ranks);
      for (int call = 0; call < kCalls; ++call) {
        Values inputs;
        for (int r = 0; r < ranks; ++r) inputs.push_back(vector_of(call, r, total));
        expect_near(got[call], reference.reduce_scatter(inputs, counts, op), name);
      }
    }
  }
}

TEST(LossyCollectives, AllGatherEqualsReference) {
  for (const NamedNetwork& named : networks()) {
    const std::string& name = named.name;
    const ClassNetwork& network = named.network;
    if (network.reduce.fill != Fill::kZero) continue;
    for (const int ranks : {2, 3, 7}) {
      const Counts counts = uneven_counts(ranks, 8);
      const std::uint64_t total = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
      std::vector<Values> got(kCalls, Values(static_cast<std::size_t>(ranks)));
      run_ranks(ranks, kTimeout, [&](Communicator& inner) {
        LossyCommunicator lossy(inner, options_of(network));
        for (int call = 0; call < kCalls; ++call) {
          const std::vector<double> input = vector_of(call, inner.rank(), counts[inner.rank()]);
          std::vector<double> output = vector_of(call + 50, inner.rank(), total);
          lossy.all_gather(ConstTensor(std::span(input)), Tensor(std::span(output)), counts, kMessage);
          EXPECT_EQ(input, vector_of(call, inner.rank(), counts[inner.rank()]));
          got[call][inner.rank()] = output;
        }
        lossy.verify_fates();
      });
      LossyReference reference(network, kSeed, kClass, ranks);
      for (int call = 0; call < kCalls; ++call) {
        Values inputs;
        Values before;
        for (int r = 0; r < ranks; ++r) {
          inputs.push_back(vector_of(call, r, counts[r]));
          before.push_back(vector_of(call + 50, r, total));
        }
        expect_near(got[call], reference.all_gather(inputs, counts, before), name);
      }
    }
  }
}

TEST(LossyCollectives, AllToAllEqualsReference) {
  for (const NamedNetwork& named : networks()) {
    const std::string& name = named.name;
    const ClassNetwork& network = named.network;
    if (network.reduce.fill != Fill::kZero) continue;
    for (const int ranks : {2, 5}) {
      const auto count = [](int source, int destination) {
        return static_cast<std::uint64_t>((5 * source + 7 * destination) % 11);
      };
      std::vector<Values> got(kCalls, Values(static_cast<std::size_t>(ranks)));
      std::vector<Counts> send_counts(ranks);
      std::vector<Counts> receive_counts(ranks);
      for (int s = 0; s < ranks; ++s) {
        for (int d = 0; d < ranks; ++d) {
          send_counts[s].push_back(count(s, d));
          receive_counts[s].push_back(count(d, s));
        }
      }
      const auto total = [](const Counts& counts) {
        return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
      };
      run_ranks(ranks, kTimeout, [&](Communicator& inner) {
        LossyCommunicator lossy(inner, options_of(network));
        const int me = inner.rank();
        for (int call = 0; call < kCalls; ++call) {
          const std::vector<double> input = vector_of(call, me, total(send_counts[me]));
          std::vector<double> output = vector_of(call + 50, me, total(receive_counts[me]));
          lossy.all_to_all(ConstTensor(std::span(input)), send_counts[me], Tensor(std::span(output)),
                           receive_counts[me], kMessage);
          got[call][me] = output;
        }
        lossy.verify_fates();
      });
      LossyReference reference(network, kSeed, kClass, ranks);
      for (int call = 0; call < kCalls; ++call) {
        std::vector<Values> parts;
        Values before;
        for (int s = 0; s < ranks; ++s) {
          const std::vector<double> input = vector_of(call, s, total(send_counts[s]));
          Values of_source;
          auto begin = input.begin();
          for (const std::uint64_t c : send_counts[s]) {
            of_source.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(c));
            begin += static_cast<std::ptrdiff_t>(c);
          }
          parts.push_back(of_source);
          before.push_back(vector_of(call + 50, s, total(receive_counts[s])));
        }
        expect_near(got[call], reference.all_to_all(parts, before), name);
      }
    }
  }
}

TEST(LossyCollectives, BroadcastEqualsReference) {
  for (const NamedNetwork& named : networks()) {
    const std::string& name = named.name;
    const ClassNetwork& network = named.network;
    if (network.reduce.fill != Fill::kZero) continue;
    for (const int ranks : {2, 5}) {
      constexpr std::uint64_t kCount = 41;
      std::vector<Values> got(kCalls, Values(static_cast<std::size_t>(ranks)));
      run_ranks(ranks, kTimeout, [&](Communicator& inner) {
        LossyCommunicator lossy(inner, options_of(network));
        for (int call = 0; call < kCalls; ++call) {
          std::vector<double> data = vector_of(call, inner.rank(), kCount);
          lossy.broadcast(Tensor(std::span(data)), 1, kMessage);
          got[call][inner.rank()] = data;
        }
        lossy.verify_fates();
      });
      LossyReference reference(network, kSeed, kClass, ranks);
      for (int call = 0; call < kCalls; ++call) {
        Values before;
        for (int r = 0; r < ranks; ++r) before.push_back(vector_of(call, r, kCount));
        expect_near(got[call], reference.broadcast(1, before), name);
      }
    }
  }
}

// A message from rank 1 to rank 0 is an all-to-all with one part.
TEST(LossyCollectives, SendAndReceiveEqualReference) {
  for (const NamedNetwork& named : networks()) {
    const std::string& name = named.name;
    const ClassNetwork& network = named.network;
    if (network.reduce.fill != Fill::kZero) continue;
    constexpr std::uint64_t kCount = 41;
    Values got(kCalls);
    run_ranks(2, kTimeout, [&](Communicator& inner) {
      LossyCommunicator lossy(inner, options_of(network));
      for (int call = 0; call < kCalls; ++call) {
        std::vector<double> data = vector_of(call, inner.rank(), kCount);
        if (inner.rank() == 1) {
          lossy.send(ConstTensor(std::span<const double>(data)), 0, kMessage);
          EXPECT_EQ(data, vector_of(call, 1, kCount));
        } else {
          lossy.recv(Tensor(std::span(data)), 1, kMessage);
          got[call] = data;
        }
      }
      lossy.verify_fates();
    });
    LossyReference reference(network, kSeed, kClass, 2);
    for (int call = 0; call < kCalls; ++call) {
      const Values want =
          reference.all_to_all({{{}, {}}, {vector_of(call, 1, kCount), {}}}, {vector_of(call, 0, kCount), {}});
      expect_near({got[call]}, {want[0]}, name);
    }
  }
}

}  // namespace
}  // namespace droptest::comm::lossy_collectives_test
