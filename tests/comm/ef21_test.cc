// SPDX-License-Identifier: Apache-2.0
// Feedback with a state at both ends: compared with a naive twin, under loss, with and without acknowledgements.
#include "comm/lossy/fill/ef21.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "comm/lossy/compression/block_codec.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/recovery_rules.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"

namespace droptest::comm::ef21_test {
namespace {

constexpr std::uint64_t kSeed = 41;
constexpr auto kClass = sim::TrafficClass::kDpGradient;
constexpr std::chrono::milliseconds kTimeout{20000};
constexpr std::uint64_t kPayload = 64;
constexpr int kRanks = 3;
constexpr std::size_t kCount = 700;
const Message kMessage{kClass, "bucket 0"};
using Feedback = ClassRecovery::ErrorFeedback;
using Doubles = std::vector<double>;
using PerRank = std::vector<Doubles>;

constexpr Compression kPairs{CompressionKind::kTopK, 1, 0.1};
constexpr Compression kIntegers{CompressionKind::kInt4, 16};

ClassNetwork network_of(const Compression& compression, Feedback feedback, double loss) {
  const bool by_pairs = compression.kind == CompressionKind::kTopK;
  ClassNetwork network;
  network.payload_bytes = kPayload;
  network.compression = compression;
  network.recovery.error_feedback = feedback;
  if (loss > 0) (by_pairs ? network.gather : network.reduce).loss = std::make_shared<sim::Bernoulli>(loss);
  return network;
}

/// The contribution of a rank to a call: a fixed part, and one that changes with the call.
Doubles input_of(int rank, int call, double change) {
  Doubles input(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    input[i] = std::sin(0.37 * static_cast<double>(i) * (rank + 1)) * std::pow(2, static_cast<double>(i % 7)) +
               change * std::cos(0.1 * static_cast<double>(i) + call + rank);
  }
  return input;
}

struct Outcome {
  PerRank results{kRanks};  // results of all calls, one after the other
  EndErrors ends;
};

Outcome all_reduced(const ClassNetwork& network, int calls, double change, ReduceOp op = ReduceOp::kSum) {
  Outcome outcome;
  LossyOptions options;
  options.network.seed = kSeed;
  options.network.of(kClass) = network;
  options.sample_every_steps = 1;
  run_ranks(kRanks, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    Doubles& mine = outcome.results[static_cast<std::size_t>(inner.rank())];
    for (int call = 0; call < calls; ++call) {
      lossy.begin_step(static_cast<std::uint64_t>(call));
      Doubles data = input_of(inner.rank(), call, change);
      lossy.all_reduce(Tensor(std::span(data)), op, kMessage);
      mine.insert(mine.end(), data.begin(), data.end());
    }
    const auto statistics = lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit);
    if (inner.rank() == 0) outcome.ends = statistics.at(0).ends;
  });
  return outcome;
}

/// All ranks, element by element. It shares the code of integers and the fates of single packets with the loss layer.
class NaiveTwin {
 public:
  NaiveTwin(const ClassNetwork& network, double loss)
      : network_(network),
        acknowledges_(network.recovery.error_feedback == Feedback::kEf21Acknowledged),
        process_(loss),
        codec_(network.compression) {
    for (std::uint64_t r = 0; r < kRanks; ++r) {
      const std::uint64_t stream = (static_cast<std::uint64_t>(kClass) << 17U) | r;
      sent_.emplace_back(kSeed, sim::Purpose::kRounding, stream);
      result_.emplace_back(kSeed, sim::Purpose::kRounding, stream | (std::uint64_t{1} << 16U));
    }
  }

  Outcome all_reduced(int calls, double change) {
    Outcome outcome;
    for (int call = 0; call < calls; ++call) {
      PerRank inputs;
      for (int r = 0; r < kRanks; ++r) inputs.push_back(input_of(r, call, change));
      const PerRank sums = network_.compression.kind == CompressionKind::kTopK ? of_pairs(inputs) : of_codes(inputs);
      for (std::size_t r = 0; r < kRanks; ++r) {
        outcome.results[r].insert(outcome.results[r].end(), sums[r].begin(), sums[r].end());
      }
      add_errors(outcome.ends);
    }
    return outcome;
  }

 private:
  // The next packets of a link.
  std::vector<bool> lost(sim::Half half, int source, int destination, std::size_t packets) {
    std::uint64_t& next = next_[static_cast<std::size_t>(source * kRanks + destination)];
    const sim::Link link{kClass, half, static_cast<std::uint16_t>(source), static_cast<std::uint16_t>(destination)};
    std::vector<bool> fates;
    for (std::size_t p = 0; p < packets; ++p) {
      sim::PacketMask one(1);
      process_.draw(kSeed, link, next++, one);
      fates.push_back(one.lost(0));
    }
    return fates;
  }

  PerRank of_pairs(const PerRank& inputs) {
    constexpr std::size_t kPairsInPacket = kPayload / 12;
    PerRank sums(kRanks, Doubles(kCount));
    for (int s = 0; s < kRanks; ++s) {
      Doubles difference(kCount);
      for (std::size_t i = 0; i < kCount; ++i) difference[i] = inputs[at(s)][i] - estimates_[at(s)][i];
      std::vector<std::size_t> order(kCount);
      std::iota(order.begin(), order.end(), 0U);
      std::ranges::stable_sort(
          order, [&](std::size_t a, std::size_t b) { return std::abs(difference[a]) > std::abs(difference[b]); });
      order.resize(pairs_of(network_.compression, kCount));
      std::ranges::sort(order);
      const std::size_t packets = (order.size() + kPairsInPacket - 1) / kPairsInPacket;
      std::vector<std::vector<bool>> lost_at(kRanks, std::vector<bool>(packets));
      std::vector<bool> anywhere(packets);
      for (int d = 0; d < kRanks; ++d) {
        if (d != s) lost_at[at(d)] = lost(sim::Half::kGather, s, d, packets);
        for (std::size_t p = 0; p < packets; ++p) anywhere[p] = anywhere[p] || lost_at[at(d)][p];
      }
      if (acknowledges_) lost_at.assign(kRanks, anywhere);
      for (std::size_t k = 0; k < order.size(); ++k) {
        const std::size_t i = order[k];
        const std::size_t p = k / kPairsInPacket;
        if (!acknowledges_ || !anywhere[p]) estimates_[at(s)][i] += difference[i];
        for (int d = 0; d < kRanks; ++d) {
          if (!lost_at[at(d)][p]) copies_[at(d)][at(s)][i] += difference[i];
        }
      }
    }
    for (int d = 0; d < kRanks; ++d) {
      for (int s = 0; s < kRanks; ++s) {
        for (std::size_t i = 0; i < kCount; ++i) sums[at(d)][i] += copies_[at(d)][at(s)][i];
      }
    }
    return sums;
  }

  PerRank of_codes(const PerRank& inputs) {
    constexpr std::size_t kElemsInPacket = kPayload / (4 + 8) * 16;  // blocks of 16 elements in 12 bytes
    const std::vector<std::uint64_t> counts = even_counts(kCount, kRanks);
    for (int s = 0; s < kRanks; ++s) {
      std::size_t begin = 0;
      for (int owner = 0; owner < kRanks; begin += counts[at(owner)], ++owner) {
        const std::size_t elems = counts[at(owner)];
        if (owner == s) continue;
        Doubles difference(elems), decoded(elems);
        for (std::size_t i = 0; i < elems; ++i) difference[i] = inputs[at(s)][begin + i] - estimates_[at(s)][begin + i];
        codec_.decode(codec_.encode(ConstTensor(std::span<const double>(difference)), sent_[at(s)]),
                      Tensor(std::span(decoded)));
        const std::size_t packets = (elems + kElemsInPacket - 1) / kElemsInPacket;
        const std::vector<bool> missing = lost(sim::Half::kReduce, s, owner, packets);
        for (std::size_t i = 0; i < elems; ++i) {
          const bool is_lost = missing[i / kElemsInPacket];
          if (!acknowledges_ || !is_lost) estimates_[at(s)][begin + i] += decoded[i];
          if (!is_lost) copies_[at(owner)][at(s)][begin + i] += decoded[i];
        }
      }
    }
    Doubles all;
    std::size_t begin = 0;
    for (int owner = 0; owner < kRanks; begin += counts[at(owner)], ++owner) {
      Doubles sums(counts[at(owner)]);
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const auto of = [&](int s) {
          return s == owner ? inputs[at(s)][begin + i] : copies_[at(owner)][at(s)][begin + i];
        };
        sums[i] = of(0);
        for (int s = 1; s < kRanks; ++s) sums[i] += of(s);
      }
      const Doubles exact = sums;
      codec_.decode(codec_.encode(ConstTensor(std::span(exact)), result_[at(owner)]), Tensor(std::span(sums)));
      all.insert(all.end(), sums.begin(), sums.end());
    }
    return PerRank(kRanks, all);
  }

  // An owner of codes has copies only of its own part.
  void add_errors(EndErrors& errors) const {
    const bool by_pairs = network_.compression.kind == CompressionKind::kTopK;
    const std::vector<std::uint64_t> counts = even_counts(kCount, kRanks);
    std::size_t begin = 0;
    for (int d = 0; d < kRanks; begin += counts[at(d)], ++d) {
      for (int s = 0; s < kRanks; ++s) {
        for (std::size_t i = by_pairs ? 0 : begin; i < (by_pairs ? kCount : begin + counts[at(d)]) && s != d; ++i) {
          errors.error_energy += std::pow(copies_[at(d)][at(s)][i] - estimates_[at(s)][i], 2);
          errors.energy += std::pow(estimates_[at(s)][i], 2);
        }
      }
    }
  }

  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

  ClassNetwork network_;
  bool acknowledges_;
  sim::Bernoulli process_;
  BlockCodec codec_;
  std::vector<sim::PhiloxEngine> sent_, result_;
  std::vector<std::uint64_t> next_ = std::vector<std::uint64_t>(kRanks * kRanks);
  PerRank estimates_ = PerRank(kRanks, Doubles(kCount));
  std::vector<PerRank> copies_ = std::vector<PerRank>(kRanks, PerRank(kRanks, Doubles(kCount)));
};

TEST(Ef21, HasTheSumsOfItsNaiveTwin) {
  for (const Compression& compression : {kPairs, kIntegers}) {
    for (const Feedback feedback : {Feedback::kEf21, Feedback::kEf21Acknowledged}) {
      SCOPED_TRACE(std::string(compression_entry(compression.kind).name) +
                   (feedback == Feedback::kEf21 ? "" : " acknowledged"));
      const ClassNetwork network = network_of(compression, feedback, 0.2);
      const Outcome got = all_reduced(network, 9, 3);
      const Outcome want = NaiveTwin(network, 0.2).all_reduced(9, 3);
      for (std::size_t r = 0; r < kRanks; ++r) {
        ASSERT_EQ(got.results[r].size(), want.results[r].size());
        EXPECT_EQ(std::memcmp(got.results[r].data(), want.results[r].data(), 8 * want.results[r].size()), 0) << r;
      }
      EXPECT_NEAR(got.ends.energy, want.ends.energy, 1e-12 * want.ends.energy);
      EXPECT_NEAR(got.ends.error_energy, want.ends.error_energy, 1e-12 * want.ends.energy);
    }
  }
}

/// The largest error of a rank's last result, for sums of fixed inputs.
double last_error(const Outcome& outcome, int calls) {
  Doubles exact(kCount);
  for (int r = 0; r < kRanks; ++r) {
    const Doubles input = input_of(r, 0, 0);
    for (std::size_t i = 0; i < kCount; ++i) exact[i] += input[i];
  }
  double most = 0;
  for (const Doubles& of_rank : outcome.results) {
    for (std::size_t i = 0; i < kCount; ++i) {
      most = std::max(most, std::abs(of_rank[static_cast<std::size_t>(calls - 1) * kCount + i] - exact[i]));
    }
  }
  return most;
}

// If contributions are fixed, the estimates converge to them. If the two ends diverge, the receivers never get the lost
// differences: their error stays, and does not shrink with more calls.
TEST(Ef21, EndsPartUnderLossAndAgreeToTheBitWithAcknowledgements) {
  const auto run = [](Feedback feedback, double loss, int calls) {
    return all_reduced(network_of(kPairs, feedback, loss), calls, 0);
  };
  for (const Feedback feedback : {Feedback::kEf21, Feedback::kEf21Acknowledged}) {
    const Outcome lossless = run(feedback, 0, 12);
    EXPECT_LT(last_error(lossless, 12), 1e-12) << "ten tenths of the elements, and two calls more";
    EXPECT_EQ(lossless.ends.error_energy, 0);
    EXPECT_GT(lossless.ends.energy, 0);
  }
  const Outcome parted = run(Feedback::kEf21, 0.2, 20);
  EXPECT_GT(last_error(parted, 20), 10);
  EXPECT_DOUBLE_EQ(last_error(run(Feedback::kEf21, 0.2, 60), 60), last_error(run(Feedback::kEf21, 0.2, 40), 40));
  EXPECT_GT(parted.ends.error_energy / parted.ends.energy, 0.05);
  const Outcome mended = run(Feedback::kEf21Acknowledged, 0.2, 60);
  EXPECT_LT(last_error(mended, 60), 1e-12);
  EXPECT_EQ(mended.ends.error_energy, 0) << "to the bit";
  EXPECT_EQ(mended.results[0], mended.results[1]) << "no receiver has a packet that another one misses";

  const Outcome parted_codes = all_reduced(network_of(kIntegers, Feedback::kEf21, 0.2), 20, 0);
  const Outcome mended_codes = all_reduced(network_of(kIntegers, Feedback::kEf21Acknowledged, 0.2), 20, 0);
  EXPECT_GT(parted_codes.ends.error_energy / parted_codes.ends.energy, 0.05);
  EXPECT_EQ(mended_codes.ends.error_energy, 0);
}

// A source with shared fates misses its own lost packets, so that results are equal on all ranks in both modes.
TEST(Ef21, SharedFatesKeepResultsEqual) {
  for (const Feedback feedback : {Feedback::kEf21, Feedback::kEf21Acknowledged}) {
    ClassNetwork network = network_of(kPairs, feedback, 0.3);
    network.consistency = Consistency::kShared;
    const Outcome outcome = all_reduced(network, 6, 1);
    EXPECT_EQ(outcome.results[0], outcome.results[1]);
    EXPECT_EQ(outcome.results[0], outcome.results[2]);
    EXPECT_EQ(outcome.ends.error_energy > 0, feedback == Feedback::kEf21);
  }
}

TEST(Ef21, MeansAreSumsOverRanks) {
  for (const Compression& compression : {kPairs, Compression{CompressionKind::kBfloat16, 1}}) {
    const ClassNetwork network = network_of(compression, Feedback::kEf21Acknowledged, 0);
    const Outcome sums = all_reduced(network, 3, 1);
    const Outcome means = all_reduced(network, 3, 1, ReduceOp::kMean);
    for (std::size_t i = 0; i < sums.results[0].size(); ++i) {
      const double tolerance = compression.kind == CompressionKind::kTopK ? 1e-15 : 1.0 / 256;  // codes of results
      EXPECT_NEAR(means.results[0][i], sums.results[0][i] / kRanks, tolerance * std::abs(sums.results[0][i]) + 1e-300);
    }
  }
}

TEST(Ef21, AReduceScatterHasStatesOfItsOwn) {
  LossyOptions options;
  options.network.seed = kSeed;
  options.network.of(kClass) = network_of(kIntegers, Feedback::kEf21Acknowledged, 0.2);
  run_ranks(kRanks, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    const std::vector<std::uint64_t> counts = {300, 0, 400};
    const std::uint64_t own = counts[static_cast<std::size_t>(inner.rank())];
    Doubles data = input_of(inner.rank(), 0, 0);
    Doubles exact(own), got(own);
    inner.reduce_scatter(ConstTensor(std::span<const double>(data)), Tensor(std::span(exact)), counts, ReduceOp::kMean,
                         kMessage);
    for (int call = 0; call < 40; ++call) {
      lossy.reduce_scatter(ConstTensor(std::span<const double>(data)), Tensor(std::span(got)), counts, ReduceOp::kMean,
                           kMessage);
    }
    for (std::size_t i = 0; i < own; ++i) EXPECT_NEAR(got[i], exact[i], 1e-6) << i;
  });
}

TEST(Ef21, NetworksWithoutAMeaningAreRefused) {
  const auto refusal = [](const ClassNetwork& network) {
    EXPECT_THROW(validate(network), ConfigError);
    const auto refused = recovery_refusals(network);
    return refused.empty() ? std::string() : refused[0].pointer + ": " + refused[0].reason;
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(refusal(network_of({}, Feedback::kEf21, 0.1)),
              HasSubstr("/recovery/error_feedback: got \"ef21\", which sends compressed differences, without a "
                        "compression; want the compression float16"));
  ClassNetwork network = network_of({CompressionKind::kPowerSgd}, Feedback::kEf21Acknowledged, 0.1);
  network.path = "contribution";
  EXPECT_THAT(refusal(network), HasSubstr("got \"ef21_acknowledged\" with the compression power_sgd"));
  network = network_of(kIntegers, Feedback::kEf21, 0.1);
  network.reduce.fill = Fill::kStale;
  EXPECT_THAT(refusal(network), HasSubstr("with the fill stale of the reduce half"));
  EXPECT_TRUE(recovery_refusals(network_of(kIntegers, Feedback::kEf21, 0.1)).empty());
}

}  // namespace
}  // namespace droptest::comm::ef21_test
