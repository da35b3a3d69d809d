// SPDX-License-Identifier: Apache-2.0
// Sums of compressed contributions: compared with naive ones, under loss, with and without memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <vector>

#include "comm/lab/fate_simulation.h"
#include "comm/lossy/compression/block_codec.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/paths/direct_path.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/lossy/paths/power_sgd_path.h"
#include "comm/lossy/paths/top_k_path.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"

namespace droptest::comm::compressed_sums_test {
namespace {

constexpr std::uint64_t kSeed = 41;
constexpr auto kClass = sim::TrafficClass::kDpGradient;
constexpr std::chrono::milliseconds kTimeout{20000};
const Message kMessage{kClass, "bucket 0"};

using Doubles = std::vector<double>;
using PerRank = std::vector<Doubles>;

ClassNetwork network_of(const Compression& compression, double p_reduce = 0, double p_gather = 0) {
  ClassNetwork network;
  network.path = compression.kind == CompressionKind::kPowerSgd ? "contribution" : "direct";
  if (p_reduce > 0) network.reduce.loss = std::make_shared<sim::Bernoulli>(p_reduce);
  if (p_gather > 0) network.gather.loss = std::make_shared<sim::Bernoulli>(p_gather);
  network.payload_bytes = 64;
  network.compression = compression;
  return network;
}

double input_at(int rank, int call, std::size_t i) {
  return std::sin(0.37 * static_cast<double>(i) * (rank + 1) + 5 * call) * std::pow(2, static_cast<double>(i % 7)) +
         0.1 * rank;
}
Doubles input_of(int rank, int call, std::size_t count) {
  Doubles input(count);
  for (std::size_t i = 0; i < count; ++i) input[i] = input_at(rank, call, i);
  return input;
}

// Results of `calls` all-reduces on each rank, one after the other.
PerRank all_reduced(int ranks, const ClassNetwork& network, std::size_t count, int calls,
                    ReduceOp op = ReduceOp::kSum) {
  PerRank results(static_cast<std::size_t>(ranks));
  LossyOptions options;
  options.network.seed = kSeed;
  options.network.of(kClass) = network;
  run_ranks(ranks, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    Doubles& mine = results[static_cast<std::size_t>(inner.rank())];
    for (int call = 0; call < calls; ++call) {
      Doubles data = input_of(inner.rank(), call, count);
      lossy.all_reduce(Tensor(std::span(data)), op, kMessage);
      mine.insert(mine.end(), data.begin(), data.end());
    }
  });
  return results;
}

std::uint64_t stream_of(int rank, sim::Half half) {
  return (static_cast<std::uint64_t>(kClass) << 17U) | (static_cast<std::uint64_t>(half) << 16U) |
         static_cast<std::uint64_t>(rank);
}

// One call after the other, with each rank's draws in their order: contributions to the parts of other ranks, then the
// result of the own part.
Doubles naive_sums(int ranks, const Compression& compression, std::size_t count, int calls) {
  std::vector<sim::PhiloxEngine> sent, result;
  for (int r = 0; r < ranks; ++r) {
    sent.emplace_back(kSeed, sim::Purpose::kRounding, stream_of(r, sim::Half::kReduce));
    result.emplace_back(kSeed, sim::Purpose::kRounding, stream_of(r, sim::Half::kGather));
  }
  const std::vector<std::uint64_t> counts = even_counts(count, ranks);
  BlockCodec codec(compression);
  Doubles all;
  for (int call = 0; call < calls; ++call) {
    PerRank coded;
    for (int r = 0; r < ranks; ++r) {
      Doubles data = input_of(r, call, count);
      std::size_t begin = 0;
      for (int owner = 0; owner < ranks; ++owner) {
        const std::span<double> part = std::span(data).subspan(begin, counts[static_cast<std::size_t>(owner)]);
        begin += part.size();
        if (owner == r) continue;
        const Doubles exact(part.begin(), part.end());
        codec.decode(codec.encode(ConstTensor(std::span(exact)), sent[static_cast<std::size_t>(r)]), Tensor(part));
      }
      coded.push_back(data);
    }
    std::size_t begin = 0;
    for (int owner = 0; owner < ranks; ++owner) {
      Doubles sums(counts[static_cast<std::size_t>(owner)]);
      for (std::size_t i = 0; i < sums.size(); ++i) {
        sums[i] = coded[0][begin + i];
        for (int r = 1; r < ranks; ++r) sums[i] += coded[static_cast<std::size_t>(r)][begin + i];
      }
      const Doubles exact = sums;
      codec.decode(codec.encode(ConstTensor(std::span(exact)), result[static_cast<std::size_t>(owner)]),
                   Tensor(std::span(sums)));
      all.insert(all.end(), sums.begin(), sums.end());
      begin += sums.size();
    }
  }
  return all;
}

TEST(CompressedSums, EqualNaiveOnes) {
  for (const int ranks : {2, 3, 4}) {
    for (const Compression& compression :
         {Compression{CompressionKind::kInt8, 16}, Compression{CompressionKind::kInt4, 10},
          Compression{CompressionKind::kBfloat16, 1}, Compression{CompressionKind::kFloat16, 1}}) {
      const PerRank results = all_reduced(ranks, network_of(compression), 203, 3);
      const Doubles naive = naive_sums(ranks, compression, 203, 3);
      for (const Doubles& of_rank : results) {
        EXPECT_EQ(std::memcmp(of_rank.data(), naive.data(), naive.size() * sizeof(double)), 0)
            << compression_entry(compression.kind).name << " of " << ranks;
      }
    }
  }
}

// Lost packets are whole blocks: with zeros in their place, the sums are those of the blocks that arrive.
TEST(CompressedSums, ALostPacketIsWholeBlocks) {
  const Compression compression{CompressionKind::kInt8, 12};  // four blocks of 16 bytes in a packet
  ClassNetwork network = network_of(compression, 0, 0.3);
  const Doubles exact = naive_sums(2, compression, 400, 1);
  const PerRank results = all_reduced(2, network, 400, 1);
  std::size_t lost = 0;
  for (int rank = 0; rank < 2; ++rank) {
    for (std::size_t part = 0; part < 2; ++part) {
      for (std::size_t begin = part * 200; begin < (part + 1) * 200; begin += 48) {
        const std::size_t end = std::min(begin + 48, (part + 1) * 200);
        const auto& of = results[static_cast<std::size_t>(rank)];
        const bool is_lost =
            std::all_of(of.begin() + static_cast<std::ptrdiff_t>(begin), of.begin() + static_cast<std::ptrdiff_t>(end),
                        [](double x) { return x == 0; });
        if (is_lost) ++lost;
        for (std::size_t i = begin; i < end; ++i) EXPECT_EQ(of[i], is_lost ? 0 : exact[i]) << i;
      }
    }
  }
  EXPECT_GT(lost, 0U);
}

// Two bfloat16 in place of a double: the bits of the same path without compression.
TEST(CompressedSums, ValuesThatTheCodeHasKeepTheirBits) {
  LossyOptions options;
  options.network.seed = kSeed;
  for (const CompressionKind kind : {CompressionKind::kNone, CompressionKind::kBfloat16, CompressionKind::kTopK}) {
    ClassNetwork network = network_of({kind, 1, 1.0});
    options.network.of(kClass) = network;
    run_ranks(3, kTimeout, [&](Communicator& inner) {
      LossyCommunicator lossy(inner, options);
      std::vector<float> data(77);
      for (std::size_t i = 0; i < data.size(); ++i)
        data[i] = static_cast<float>(i % 9) - 4 + static_cast<float>(inner.rank());
      std::vector<float> bare = data;
      lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kMean, kMessage);
      inner.all_reduce(Tensor(std::span(bare)), ReduceOp::kMean, kMessage);
      if (kind != CompressionKind::kBfloat16) {
        EXPECT_EQ(std::memcmp(data.data(), bare.data(), data.size() * sizeof(float)), 0);
      }
      for (std::size_t i = 0; i < data.size(); ++i) EXPECT_NEAR(data[i], bare[i], std::abs(bare[i]) / 256);
    });
  }
}

// Small integers have codes of 16 bits, and so have their sums; in blocks, equal contributions with the largest code in
// each. A matrix of so few elements is no larger than its factors of rank 8.
TEST(CompressedSums, OfValuesWithCodesHaveTheBitsOfNone) {
  const auto sums_of = [](const Compression& compression, float largest) {
    std::vector<std::vector<float>> sums(3);
    LossyOptions options;
    options.network.seed = kSeed;
    options.network.of(kClass) = network_of(compression, 0, 0);
    run_ranks(3, kTimeout, [&](Communicator& inner) {
      LossyCommunicator lossy(inner, options);
      std::vector<float>& data = sums[static_cast<std::size_t>(inner.rank())];
      for (int i = 0; i < 77; ++i) {
        const int small = i % 9 - 4;
        data.push_back(largest == 0 ? static_cast<float>(small + inner.rank())
                       : i % 5 == 0 ? largest
                                    : static_cast<float>(small));
      }
      lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
    });
    return sums;
  };
  for (const auto& [compression, largest] : {std::pair(Compression{CompressionKind::kBfloat16}, 0.0F),
                                             std::pair(Compression{CompressionKind::kFloat16}, 0.0F),
                                             std::pair(Compression{CompressionKind::kTopK, 1, 1.0}, 0.0F),
                                             std::pair(Compression{CompressionKind::kPowerSgd, 1, 0, 8}, 0.0F),
                                             std::pair(Compression{CompressionKind::kInt8, 10}, 127.0F),
                                             std::pair(Compression{CompressionKind::kInt4, 10}, 7.0F)}) {
    EXPECT_EQ(sums_of(compression, largest), sums_of({CompressionKind::kNone}, largest))
        << compression_entry(compression.kind).name;
  }
}

// A rank's path with the memory that it fills.
class FeedbackSums {
 public:
  FeedbackSums(Communicator& inner, const Network& network)
      : inner_(inner),
        ledger_(network),
        context_{inner, ledger_, *network.of(kClass), stale_, path_in(*network.of(kClass), 0)},
        path_(context_.path.make(context_)) {}
  void all_reduce(Doubles& data, ReduceOp op) {
    const CallArguments call{.operation = Operation::kAllReduce,
                             .input = ConstTensor(std::span<const double>(data)),
                             .output = Tensor(std::span(data)),
                             .op = op,
                             .message = kMessage};
    CallFates fates;
    path_->plan(call, fates);
    path_->run(call, inner_, scratch_);
  }
  Doubles memory(std::size_t count, bool is_cut) {
    const Doubles like(count);
    const std::vector<std::uint64_t> cut =
        is_cut ? even_counts(count, inner_.world_size()) : std::vector<std::uint64_t>();
    const Tensor of =
        stale_.of(StaleMemory::Use::kAllReduceFeedback, kMessage, ConstTensor(std::span(like)), count, cut);
    return {of.as<double>().begin(), of.as<double>().end()};
  }

 private:
  Communicator& inner_;
  FlowLedger ledger_;
  StaleMemory stale_;
  PathContext context_;
  std::unique_ptr<Path> path_;
  Scratch scratch_;
};

// The sum over calls of the results, and the memories of all ranks, are the sum of the inputs.
TEST(CompressedSums, FeedbackLosesNothing) {
  constexpr int kRanks = 3;
  constexpr std::size_t kCount = 230;
  constexpr int kCalls = 12;
  for (const Compression& compression :
       {Compression{CompressionKind::kInt8, 16}, Compression{CompressionKind::kInt4, 16},
        Compression{CompressionKind::kBfloat16, 1}, Compression{CompressionKind::kFloat16, 1},
        Compression{CompressionKind::kTopK, 1, 0.1}, Compression{CompressionKind::kPowerSgd, 1, 0, 2}}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
      const bool is_top_k = compression.kind == CompressionKind::kTopK;
      Network network;
      network.seed = kSeed;
      ClassNetwork of = network_of(compression, is_top_k ? 0 : 0.2, is_top_k ? 0.2 : 0);
      if (is_top_k) of.consistency = Consistency::kShared;
      of.recovery.error_feedback = ClassRecovery::ErrorFeedback::kOn;
      validate(of);
      network.of(kClass) = of;
      const bool is_cut = codes_values(compression);
      Doubles wanted(kCount), memories(kCount);
      PerRank delivered(kRanks, Doubles(kCount));
      std::mutex mutex;
      run_ranks(kRanks, kTimeout, [&](Communicator& inner) {
        FeedbackSums sums(inner, network);
        Doubles inputs(kCount);
        Doubles& mine = delivered[static_cast<std::size_t>(inner.rank())];
        for (int call = 0; call < kCalls; ++call) {
          Doubles data = input_of(inner.rank(), call, kCount);
          for (std::size_t i = 0; i < kCount; ++i) inputs[i] += data[i];
          sums.all_reduce(data, op);
          for (std::size_t i = 0; i < kCount; ++i) mine[i] += data[i] * (op == ReduceOp::kMean ? kRanks : 1);
        }
        const Doubles memory = sums.memory(kCount, is_cut);
        const std::scoped_lock lock(mutex);
        for (std::size_t i = 0; i < kCount; ++i) {
          wanted[i] += inputs[i];
          memories[i] += memory[i];
        }
      });
      double on_its_way = 0;
      for (std::size_t i = 0; i < kCount; ++i) {
        on_its_way = std::max(on_its_way, std::abs(memories[i]));
        for (const Doubles& of_rank : delivered) {
          EXPECT_NEAR(of_rank[i] + memories[i], wanted[i], 1e-12 * 64 * kCalls)  // relative to the size of the sums
              << compression_entry(compression.kind).name << " element " << i;
        }
      }
      EXPECT_GT(on_its_way, 1e-3) << compression_entry(compression.kind).name;
    }
  }
}

TEST(TopK, SumsTheLargestElementsOfEachRank) {
  const Compression compression{CompressionKind::kTopK, 1, 0.1};
  const PerRank results = all_reduced(3, network_of(compression), 95, 1);
  Doubles naive(95);
  for (int r = 0; r < 3; ++r) {
    const Doubles input = input_of(r, 0, 95);
    std::vector<std::size_t> order(95);
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return std::abs(input[a]) > std::abs(input[b]); });
    for (std::size_t k = 0; k < 10; ++k) naive[order[k]] += input[order[k]];
  }
  for (const Doubles& of_rank : results) EXPECT_EQ(of_rank, naive);

  run_ranks(2, kTimeout, [&](Communicator& inner) {
    LossyOptions options;
    options.network.of(kClass) = network_of(compression);
    LossyCommunicator lossy(inner, options);
    Doubles equal = {1, -2, 2, -2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    lossy.all_reduce(Tensor(std::span(equal)), ReduceOp::kSum, kMessage);
    Doubles first(20);
    first[1] = -4;
    first[2] = 4;
    EXPECT_EQ(equal, first) << "of equal magnitudes the first count";
  });
}

TEST(TopK, RanksStayEqualWhereTheyShareFatesAlone) {
  ClassNetwork network = network_of({CompressionKind::kTopK, 1, 0.3}, 0, 0.3);
  PerRank results = all_reduced(3, network, 300, 1);
  EXPECT_NE(results[0], results[1]);
  network.consistency = Consistency::kShared;
  results = all_reduced(3, network, 300, 1);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
  EXPECT_NE(results[0], all_reduced(3, network_of({CompressionKind::kTopK, 1, 0.3}), 300, 1)[0]);
}

TEST(TopK, PairsOutOfRangeAreDroppedAndCounted) {
  std::vector<std::byte> message(3 * 12);
  const auto put = [&](std::size_t pair, std::uint32_t index, double value) {
    std::memcpy(message.data() + 12 * pair, &index, 4);
    std::memcpy(message.data() + 12 * pair + 4, &value, 8);
  };
  put(0, 1, 2.5);
  put(1, 4, 1e9);
  put(2, 0xffffffff, 1e9);
  Doubles sums(4);
  const sim::Packetizer packets(3, coding_of({CompressionKind::kTopK}, ElementType::kFloat64), 64, 0);
  EXPECT_EQ(add_pairs<double>(message, nullptr, packets, sums), 2U);
  EXPECT_EQ(sums, (Doubles{0, 2.5, 0, 0}));
}

// A sum of rank 2 is exact in two columns; the factor of the first call is random.
TEST(PowerSgd, SumsOfLowRankAreExact) {
  constexpr std::size_t kSide = 20;
  LossyOptions options;
  options.network.seed = kSeed;
  options.network.of(kClass) = network_of({CompressionKind::kPowerSgd, 1, 0, 2});
  run_ranks(2, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    Doubles data(kSide * kSide);
    for (std::size_t i = 0; i < data.size(); ++i) {
      const double row = std::sin(static_cast<double>(i / kSide) * (inner.rank() + 1));
      data[i] = row * std::cos(static_cast<double>(i % kSide) + inner.rank());
    }
    Doubles exact = data;
    lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
    inner.all_reduce(Tensor(std::span(exact)), ReduceOp::kSum, kMessage);
    for (std::size_t i = 0; i < data.size(); ++i) EXPECT_NEAR(data[i], exact[i], 1e-12) << i;
  });
}

// After a sum u0 v0^T + u1 v1^T the factor spans v0 and v1: the next sum M becomes A (A^T A)^-1 A^T M with A = M (v0,
// v1).
TEST(PowerSgd, EqualsANaiveProjection) {
  constexpr std::size_t kSide = 15;
  constexpr std::size_t kCount = kSide * kSide - 10;  // the last row is padded with zeros
  const auto u = [](std::size_t k, std::size_t i) {
    return i + 1 < kSide ? std::cos(static_cast<double>(i * (k + 1))) : 0;
  };
  const auto v = [](std::size_t k, std::size_t j) {
    return std::sin(static_cast<double>(j + 1) / static_cast<double>(k + 2));
  };
  LossyOptions options;
  options.network.seed = kSeed;
  options.network.of(kClass) = network_of({CompressionKind::kPowerSgd, 1, 0, 2});
  PerRank results(3);
  run_ranks(3, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    const auto rank = static_cast<std::size_t>(inner.rank());
    Doubles first(kCount);
    for (std::size_t i = 0; i < kCount && rank < 2; ++i) first[i] = u(rank, i / kSide) * v(rank, i % kSide);
    lossy.all_reduce(Tensor(std::span(first)), ReduceOp::kSum, kMessage);
    results[rank] = input_of(inner.rank(), 1, kCount);
    lossy.all_reduce(Tensor(std::span(results[rank])), ReduceOp::kSum, kMessage);
  });

  Doubles sum(kSide * kSide);
  for (int rank = 0; rank < 3; ++rank) {
    const Doubles input = input_of(rank, 1, kCount);
    for (std::size_t i = 0; i < kCount; ++i) sum[i] += input[i];
  }
  Doubles a[2] = {Doubles(kSide), Doubles(kSide)};
  double gram[2][2] = {};
  for (std::size_t k = 0; k < 2; ++k) {
    for (std::size_t i = 0; i < kSide * kSide; ++i) a[k][i / kSide] += sum[i] * v(k, i % kSide);
  }
  for (std::size_t k = 0; k < 2; ++k) {
    for (std::size_t l = 0; l < 2; ++l) gram[k][l] = std::inner_product(a[k].begin(), a[k].end(), a[l].begin(), 0.0);
  }
  const double determinant = gram[0][0] * gram[1][1] - gram[0][1] * gram[1][0];
  for (std::size_t j = 0; j < kSide; ++j) {
    double b[2] = {};  // A^T M, column j
    for (std::size_t i = 0; i < kSide; ++i) {
      for (std::size_t k = 0; k < 2; ++k) b[k] += a[k][i] * sum[i * kSide + j];
    }
    const double x[2] = {(gram[1][1] * b[0] - gram[0][1] * b[1]) / determinant,
                         (gram[0][0] * b[1] - gram[1][0] * b[0]) / determinant};
    for (std::size_t i = 0; i < kSide && i * kSide + j < kCount; ++i) {
      const double want = a[0][i] * x[0] + a[1][i] * x[1];
      for (const Doubles& of_rank : results) EXPECT_NEAR(of_rank[i * kSide + j], want, 1e-9) << i << " " << j;
    }
  }
}

TEST(PowerSgd, RanksStayEqualUnderLossAndConverge) {
  const auto error_after = [](int calls, double loss) {
    LossyOptions options;
    options.network.seed = kSeed;
    options.network.of(kClass) = network_of({CompressionKind::kPowerSgd, 1, 0, 1}, loss);
    double error = 0;
    PerRank results(3);
    run_ranks(3, kTimeout, [&](Communicator& inner) {
      LossyCommunicator lossy(inner, options);
      Doubles data, exact;
      for (int call = 0; call < calls; ++call) {
        data = input_of(inner.rank(), 0, 400);
        exact = data;
        lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
        inner.all_reduce(Tensor(std::span(exact)), ReduceOp::kSum, kMessage);
      }
      results[static_cast<std::size_t>(inner.rank())] = data;
      if (inner.rank() != 0) return;
      for (std::size_t i = 0; i < data.size(); ++i) error += (data[i] - exact[i]) * (data[i] - exact[i]);
    });
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
    return error;
  };
  // Each call is a step of a power iteration, which continues from the factor of the previous call.
  EXPECT_LT(error_after(8, 0), 0.99 * error_after(1, 0));
  EXPECT_GT(error_after(8, 0.3), error_after(8, 0));
}

// Counts and bytes of a call equal the forecast, and the sizes of the formats.
TEST(CompressedSums, PacketsAreThoseOfTheForecast) {
  struct Case {
    Compression compression;
    std::uint64_t bytes;  // bytes of all messages of 3 ranks with 1000 floats
  };
  const std::uint64_t part = 333;  // and 334
  const auto coded = [&](const Compression& of) {
    const sim::ElementCoding coding = coding_of(of, ElementType::kFloat32);
    return 2 * 2 * (coding.bytes(334) + 2 * coding.bytes(part));
  };
  const Compression int8{CompressionKind::kInt8, 16}, int4{CompressionKind::kInt4, 16},
      top_k{CompressionKind::kTopK, 1, 0.05};
  const Compression half{CompressionKind::kFloat16, 1}, low_rank{CompressionKind::kPowerSgd, 1, 0, 3};
  for (const Case& of : {Case{int8, coded(int8)}, Case{int4, coded(int4)}, Case{half, coded(half)},
                         Case{top_k, 3 * 2 * 50 * 8}, Case{low_rank, 3 * 2 * 32 * 3 * 4}}) {
    ClassNetwork network = network_of(of.compression, 0.1, 0.1);
    if (of.compression.kind == CompressionKind::kPowerSgd) network.gather.loss = nullptr;
    if (of.compression.kind == CompressionKind::kTopK) network.reduce.loss = nullptr;
    LossyOptions options;
    options.network.seed = kSeed;
    options.network.of(kClass) = network;
    std::vector<ClassStatistics> statistics;
    run_ranks(3, kTimeout, [&](Communicator& inner) {
      LossyCommunicator lossy(inner, options);
      std::vector<float> data(1000, 1.0F + static_cast<float>(inner.rank()));
      lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kMean, kMessage);
      lossy.verify_fates();
      const auto mine = lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit);
      if (inner.rank() == 0) statistics = mine;
    });
    FateSimulation forecast;
    forecast.network = network;
    forecast.traffic_class = kClass;
    forecast.ranks = 3;
    forecast.elements = 1000;
    forecast.seed = kSeed;
    const LossCounts wanted = simulate_fates(forecast).statistics.total();
    const LossCounts got = statistics.at(0).total();
    const std::string_view name = compression_entry(of.compression.kind).name;
    EXPECT_EQ(got.packets, wanted.packets) << name;
    EXPECT_EQ(got.lost_packets, wanted.lost_packets) << name;
    EXPECT_EQ(got.bytes, of.bytes) << name;
    EXPECT_EQ(got.bytes, wanted.bytes) << name;
    EXPECT_GT(got.lost_packets, 0U) << name;
    EXPECT_EQ(got.content_bytes, wanted.content_bytes) << name;
    EXPECT_GE(got.content_bytes, 3 * 4000U) << name;
  }
}

TEST(CompressedSums, NetworksWithoutAMeaningAreRefused) {
  const auto refusal = [](ClassNetwork network) {
    const auto refused = compression_refusal(network);
    EXPECT_THROW(validate(network), ConfigError);
    return refused ? refused->pointer + ": " + refused->reason : std::string();
  };
  using ::testing::HasSubstr;
  ClassNetwork network = network_of({CompressionKind::kInt8, 16});
  network.path = "ring";
  EXPECT_THAT(refusal(network), HasSubstr("/compression/kind: got int8 on path ring"));
  network.path = "contribution";
  EXPECT_THAT(refusal(network), HasSubstr("adds up elements, not codes; want the path direct"));
  network = network_of({CompressionKind::kInt8, 256});
  EXPECT_THAT(refusal(network), HasSubstr("/compression/block: got blocks of 256 elements (260 bytes)"));
  network = network_of({CompressionKind::kInt8, 16});
  network.recovery.interleave_packets = 4;
  EXPECT_THAT(refusal(network), HasSubstr("interleave"));
  network = network_of({CompressionKind::kTopK, 1, 0.0});
  EXPECT_THAT(refusal(network), HasSubstr("/compression/fraction"));
  network = network_of({CompressionKind::kTopK, 1, 0.5});
  network.gather.fill = Fill::kStale;
  EXPECT_THAT(refusal(network), HasSubstr("lost pairs have unknown indices"));
  network = network_of({CompressionKind::kPowerSgd}, 0, 0.1);
  EXPECT_THAT(refusal(network), HasSubstr("gather half"));
  network = network_of({CompressionKind::kPowerSgd});
  network.path = "direct";
  EXPECT_THAT(refusal(network), HasSubstr("want the path contribution"));
}

TEST(CompressedSums, CallsWithoutAMeaningAreRefused) {
  LossyOptions options;
  options.network.of(kClass) = network_of({CompressionKind::kInt8, 16});
  run_ranks(2, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    Doubles data(10);
    EXPECT_THROW(lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kMax, kMessage), ConfigError);
    EXPECT_THROW(lossy.broadcast(Tensor(std::span(data)), 0, kMessage), ConfigError);
    std::vector<std::uint64_t> integers(10);
    EXPECT_THROW(lossy.all_reduce(Tensor(std::span(integers)), ReduceOp::kSum, kMessage), ConfigError);
  });
}

}  // namespace
}  // namespace droptest::comm::compressed_sums_test
