// SPDX-License-Identifier: Apache-2.0
// Compares reductions with lost elements with the simplest loop, bit for bit.
#include "comm/lossy/fill/delivered_reduction.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "comm/rank_order_reduction.h"
#include "sim/loss/bernoulli.h"

namespace droptest::comm::delivered_reduction_test {
namespace {

using Scaling = DeliveredReduction::Scaling;

template <class T>
using PerSource = std::vector<std::vector<T>>;

// Magnitudes that differ, negative zeros, and in floating-point maxima a NaN here and there.
template <class T>
PerSource<T> inputs_of(int sources, std::uint64_t count, ReduceOp op) {
  PerSource<T> inputs(static_cast<std::size_t>(sources), std::vector<T>(count));
  for (int s = 0; s < sources; ++s) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const double x = std::sin(static_cast<double>(i + 1) * (s + 1)) * std::pow(10, (s + static_cast<int>(i)) % 9);
      T& value = inputs[static_cast<std::size_t>(s)][i];
      if constexpr (std::is_integral_v<T>) {
        value = static_cast<T>(std::fabs(x)) * 0x9e3779b97f4a7c15U;
      } else {
        value = static_cast<T>(x);
        if (i % 11 == 3) value = static_cast<T>(-0.0);
        if (op == ReduceOp::kMax && (i + static_cast<std::uint64_t>(s)) % 97 == 5) {
          value = std::numeric_limits<T>::quiet_NaN();
        }
      }
    }
  }
  return inputs;
}

template <class T>
T folded(ReduceOp op, T a, T b) {
  if (op != ReduceOp::kMax) return a + b;
  return (a < b || b != b) ? b : a;
}

template <class T>
std::vector<const std::byte*> starts(const PerSource<T>& inputs) {
  std::vector<const std::byte*> result;
  for (const std::vector<T>& input : inputs) result.push_back(reinterpret_cast<const std::byte*>(input.data()));
  return result;
}

template <class T>
void expect_bits(const std::vector<T>& want, const std::vector<T>& got, const std::string& what) {
  ASSERT_EQ(want.size(), got.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(std::memcmp(&want[i], &got[i], sizeof(T)), 0)
        << what << ": element " << i << " is " << got[i] << ", want " << want[i];
  }
}

std::vector<std::optional<sim::PacketMask>> fates_of(int sources, std::uint64_t packets, double p, int exempt) {
  std::vector<std::optional<sim::PacketMask>> fates(static_cast<std::size_t>(sources));
  const sim::Bernoulli process(p);
  for (int s = 0; s < sources; ++s) {
    if (s == exempt || packets == 0) continue;
    const sim::Link link{sim::TrafficClass::kTpForward, sim::Half::kReduce, static_cast<std::uint16_t>(s), 77};
    fates[static_cast<std::size_t>(s)].emplace(packets);
    process.draw(5, link, 0, *fates[static_cast<std::size_t>(s)]);
  }
  return fates;
}

template <class T>
std::vector<T> reference(ReduceOp op, const Scaling& scaling, const PerSource<T>& inputs,
                         const sim::Packetizer& packets, const std::vector<std::optional<sim::PacketMask>>& fates) {
  using Limits = std::numeric_limits<T>;
  const T lowest = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  std::vector<T> results(packets.count_elems());
  for (std::uint64_t i = 0; i < results.size(); ++i) {
    T result{};
    std::size_t missing = 0;
    for (std::size_t s = 0; s < inputs.size(); ++s) {
      bool lost = fates[s] && fates[s]->lost(packets.packet_of(i));
      missing += lost ? 1 : 0;
      T value = inputs[s][i];
      if (lost && scaling.substitute >= 0) {
        value = inputs[static_cast<std::size_t>(scaling.substitute)][i];
        lost = false;
      }
      if (scaling.contributions != 1 && static_cast<int>(s) != scaling.exempt) {
        value *= static_cast<T>(scaling.contributions);
      }
      if (s == 0) {
        result = lost ? (op == ReduceOp::kMax ? lowest : T{}) : value;
      } else if (!lost) {
        result = folded(op, result, value);
      }
    }
    if (op == ReduceOp::kMean) result /= static_cast<T>(inputs.size());
    if (scaling.substitute >= 0 && missing == inputs.size() - 1) {
      result = inputs[static_cast<std::size_t>(scaling.substitute)][i];
    }
    if (scaling.sums == Scaling::Sums::kByCount && missing > 0) {
      const auto all = static_cast<double>(inputs.size());
      result = missing == inputs.size() ? T{} : result * static_cast<T>(all / (all - static_cast<double>(missing)));
    }
    results[i] = result;
  }
  return results;
}

template <class T>
void check(ReduceOp op, const Scaling& scaling) {
  DeliveredReduction reduction;  // one for all, as a path has: nothing may be left over from an earlier call
  for (const int sources : {1, 2, 3, 4, 5, 9}) {
    if (scaling.substitute >= sources) continue;
    for (const std::uint64_t count : {0, 1, 7, 8, 9, 1003, 5000}) {
      for (const std::uint64_t payload : {8U, 64U, 20000U}) {
        for (const double p : {0.0, 0.01, 0.4, 0.9, 1.0}) {
          const sim::Packetizer packets(count, sizeof(T), payload);
          const auto fates = fates_of(sources, packets.packets(), p, scaling.exempt);
          PerSource<T> inputs = inputs_of<T>(sources, count, op);
          const std::vector<T> want = reference(op, scaling, inputs, packets, fates);
          const std::string what = std::to_string(sources) + " sources, " + std::to_string(count) + " elements, " +
                                   std::to_string(payload) + " bytes a packet, loss " + std::to_string(p);
          reduction.start(packets, sources);
          for (int s = 0; s < sources; ++s) {
            const auto& mask = fates[static_cast<std::size_t>(s)];
            reduction.lose(s, mask && mask->any_lost() ? &*mask : nullptr);
          }
          std::vector<T> first(count);
          std::vector<T> second(count);
          const PerSource<T> before = inputs;
          const std::vector<std::byte*> apart = {reinterpret_cast<std::byte*>(first.data()),
                                                 reinterpret_cast<std::byte*>(second.data())};
          reduction.reduce(op, ConstTensor(element_type_of<T>(), {}), scaling, starts(inputs), apart);
          expect_bits(want, first, what);
          expect_bits(want, second, what);
          for (std::size_t s = 0; s < inputs.size(); ++s) expect_bits(before[s], inputs[s], what + ", an input");

          std::vector<std::byte*> in_place;
          for (std::vector<T>& input : inputs) in_place.push_back(reinterpret_cast<std::byte*>(input.data()));
          reduction.reduce(op, ConstTensor(element_type_of<T>(), {}), scaling, starts(inputs), in_place);
          for (const std::vector<T>& input : inputs) expect_bits(want, input, what + ", in place");
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

// A part of a message, which may begin and end inside packets, has the bits of that part of the whole.
template <class T>
void check_parts(const Scaling& scaling) {
  DeliveredReduction reduction;
  const sim::Packetizer packets(1003, sizeof(T), 64);
  const auto fates = fates_of(4, packets.packets(), 0.3, -1);
  const PerSource<T> inputs = inputs_of<T>(4, 1003, ReduceOp::kSum);
  const std::vector<T> whole = reference(ReduceOp::kSum, scaling, inputs, packets, fates);
  for (const sim::ElementRange part : {sim::ElementRange{0, 1003}, {0, 1}, {5, 5}, {8, 16}, {7, 500}, {990, 1003}}) {
    reduction.start(packets, 4, part);
    std::vector<const std::byte*> begins;
    for (int s = 0; s < 4; ++s) {
      reduction.lose(s, &*fates[static_cast<std::size_t>(s)]);
      begins.push_back(reinterpret_cast<const std::byte*>(inputs[static_cast<std::size_t>(s)].data() + part.begin));
    }
    std::vector<T> got(part.size());
    const std::vector<std::byte*> outputs = {reinterpret_cast<std::byte*>(got.data())};
    reduction.reduce(ReduceOp::kSum, ConstTensor(element_type_of<T>(), {}), scaling, begins, outputs);
    const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(part.begin);
    expect_bits({begin, begin + static_cast<std::ptrdiff_t>(part.size())}, got, "from " + std::to_string(part.begin));
  }
}

// Each result loses its own packets; nothing else in it or in the other results changes.
template <class T>
void check_results(double p_contributions, double p_results) {
  DeliveredReduction reduction;
  const Scaling scaling;
  for (const std::uint64_t payload : {8U, 1408U, 8192U, 20000U}) {  // smaller and larger than a block of the reduction
    for (const sim::ElementRange part : {sim::ElementRange{0, 9001}, {0, 1}, {5, 5}, {4090, 9001}}) {
      const sim::Packetizer packets(9001, sizeof(T), payload);
      const auto fates = fates_of(3, packets.packets(), p_contributions, -1);
      const auto fates_of_results = fates_of(5, packets.packets(), p_results, 3);
      const PerSource<T> inputs = inputs_of<T>(3, 9001, ReduceOp::kSum);
      const std::vector<T> whole = reference(ReduceOp::kSum, scaling, inputs, packets, fates);
      reduction.start(packets, 5, part);
      std::vector<const std::byte*> begins;
      for (int s = 0; s < 3; ++s) {
        reduction.lose(s, &*fates[static_cast<std::size_t>(s)]);
        begins.push_back(reinterpret_cast<const std::byte*>(inputs[static_cast<std::size_t>(s)].data() + part.begin));
      }
      PerSource<T> got(5, std::vector<T>(part.size(), 7));
      std::vector<std::byte*> outputs;
      for (int r = 0; r < 5; ++r) {
        const auto& lost = fates_of_results[static_cast<std::size_t>(r)];
        if (lost) reduction.lose_result(r, lost->words());
        outputs.push_back(reinterpret_cast<std::byte*>(got[static_cast<std::size_t>(r)].data()));
      }
      reduction.reduce(ReduceOp::kSum, ConstTensor(element_type_of<T>(), {}), scaling, begins, outputs);
      for (std::size_t r = 0; r < 5; ++r) {
        std::vector<T> want;
        for (std::uint64_t i = part.begin; i < part.end; ++i) {
          const bool lost = fates_of_results[r] && fates_of_results[r]->lost(packets.packet_of(i));
          want.push_back(lost ? T{} : whole[i]);
        }
        expect_bits(want, got[r], "result " + std::to_string(r) + ", " + std::to_string(payload) + " bytes a packet");
      }
    }
  }
}

template <class T>
class DeliveredReductions : public ::testing::Test {};
using Elements = ::testing::Types<float, double, std::uint64_t>;
TYPED_TEST_SUITE(DeliveredReductions, Elements);

TYPED_TEST(DeliveredReductions, SumsAndMaximaLeaveOutWhatIsLost) {
  check<TypeParam>(ReduceOp::kSum, {});
  check<TypeParam>(ReduceOp::kMax, {});
  check<TypeParam>(ReduceOp::kSum, {.exempt = 1});
}

TYPED_TEST(DeliveredReductions, ResultsLosePacketsOfTheirOwn) {
  check_results<TypeParam>(0, 0.02);
  check_results<TypeParam>(0.01, 0.01);
  check_results<TypeParam>(0.5, 0.6);
  check_results<TypeParam>(1, 1);
}

TYPED_TEST(DeliveredReductions, PartsAreThoseOfTheWhole) {
  check_parts<TypeParam>({});
  if constexpr (std::is_floating_point_v<TypeParam>) check_parts<TypeParam>({.sums = Scaling::Sums::kByCount});
}

TYPED_TEST(DeliveredReductions, ScaleContributionsOrSumsOfFloats) {
  if constexpr (!std::is_integral_v<TypeParam>) {
    check<TypeParam>(ReduceOp::kSum, {.contributions = 1 / 0.6, .exempt = 0});
    check<TypeParam>(ReduceOp::kSum, {.contributions = 1 / 0.6, .exempt = 2});
    check<TypeParam>(ReduceOp::kSum, {.sums = Scaling::Sums::kByCount});
    check<TypeParam>(ReduceOp::kSum, {.exempt = 0, .sums = Scaling::Sums::kByCount});
    check<TypeParam>(ReduceOp::kMean, {.contributions = 1 / 0.6, .exempt = 2});
    check<TypeParam>(ReduceOp::kMean, {.sums = Scaling::Sums::kByCount});
  }
}

TYPED_TEST(DeliveredReductions, DivideMeansOfFloatsByAllContributions) {
  if constexpr (!std::is_integral_v<TypeParam>) check<TypeParam>(ReduceOp::kMean, {});
}

TYPED_TEST(DeliveredReductions, PutAContributionInThePlaceOfOthersToAMean) {
  if constexpr (!std::is_integral_v<TypeParam>) {
    check<TypeParam>(ReduceOp::kMean, {.exempt = 0, .substitute = 0});
    check<TypeParam>(ReduceOp::kMean, {.exempt = 2, .substitute = 2});
  }
}

TYPED_TEST(DeliveredReductions, PutTheLastValuesInThePlaceOfWhatIsLost) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
    for (const int sources : {1, 2, 4, 5}) {
      for (const std::uint64_t count : {0, 1, 9, 5000}) {
        const sim::Packetizer packets(count, sizeof(TypeParam), 64);
        std::vector<TypeParam> remembered(static_cast<std::size_t>(sources) * count);
        PerSource<TypeParam> last(static_cast<std::size_t>(sources), std::vector<TypeParam>(count));
        DeliveredReduction reduction;
        for (const double p : {0.4, 1.0, 0.0, 0.1}) {
          PerSource<TypeParam> inputs = inputs_of<TypeParam>(sources, count, op);
          for (std::vector<TypeParam>& input : inputs) {
            for (TypeParam& x : input) x += static_cast<TypeParam>(10 * p);  // another call, other values
          }
          const auto fates = fates_of(sources, packets.packets(), p, 1);
          reduction.start(packets, sources);
          for (std::size_t s = 0; s < inputs.size(); ++s) {
            reduction.lose(static_cast<int>(s), fates[s] ? &*fates[s] : nullptr);
            for (std::uint64_t i = 0; i < count; ++i) {
              if (!fates[s] || !fates[s]->lost(packets.packet_of(i))) last[s][i] = inputs[s][i];
            }
          }
          std::vector<TypeParam> want = last[0];
          for (std::size_t s = 1; s < inputs.size(); ++s) {
            for (std::uint64_t i = 0; i < count; ++i) want[i] = folded(op, want[i], last[s][i]);
          }
          std::vector<std::byte*> in_place;
          for (auto& input : inputs) in_place.push_back(reinterpret_cast<std::byte*>(input.data()));
          reduction.reduce_with_last(op, Tensor(std::span(remembered)), starts(inputs), in_place);
          const std::string what = std::to_string(sources) + " sources, loss " + std::to_string(p);
          for (const auto& input : inputs) expect_bits(want, input, what);
          std::vector<TypeParam> all_last;
          for (const auto& values : last) all_last.insert(all_last.end(), values.begin(), values.end());
          expect_bits(all_last, remembered, what + ", the memory");
        }
      }
    }
  }
}

// More inputs than one pass takes, and counts around those of a vector and a block.
TEST(LostBySome, AreThePacketsOfThePartAndWhoLostThem) {
  const sim::Packetizer packets(1000, 4, 16);
  sim::PacketMask odd(250);
  sim::PacketMask third(250);
  for (std::uint64_t p = 1; p < 250; p += 2) odd.set_lost(p);
  for (std::uint64_t p = 0; p < 250; p += 3) third.set_lost(p);
  LostBySome lost;
  for (const sim::ElementRange part : {sim::ElementRange{0, 1000}, {5, 5}, {17, 18}, {255, 1000}, {256, 513}}) {
    SCOPED_TRACE(part.begin);
    lost.start({packets, part}, std::vector<const sim::PacketMask*>{&odd, nullptr, &third});
    for (std::uint64_t p = 0; p < 250; ++p) {
      const bool in_part =
          part.size() > 0 && p >= packets.packet_of(part.begin) && p <= packets.packet_of(part.end - 1);
      if (!in_part || (!odd.lost(p) && !third.lost(p))) continue;
      ASSERT_TRUE(lost.next());
      EXPECT_EQ(lost.packet(), p);
      EXPECT_EQ(lost.lost_by(0), odd.lost(p) ? 1U : 0U);
      EXPECT_EQ(lost.lost_by(1), 0U);
      EXPECT_EQ(lost.lost_by(2), third.lost(p) ? 1U : 0U);
    }
    EXPECT_FALSE(lost.next());
  }
}

TYPED_TEST(DeliveredReductions, RankOrderHoldsForAnyNumberOfInputs) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
    for (int sources = 1; sources <= 17; ++sources) {
      for (const std::uint64_t count : {0, 1, 15, 16, 17, 1023, 1025, 2048, 2049}) {
        const PerSource<TypeParam> inputs = inputs_of<TypeParam>(sources, count, op);
        std::vector<TypeParam> want = inputs[0];
        for (std::size_t s = 1; s < inputs.size(); ++s) {
          for (std::uint64_t i = 0; i < count; ++i) want[i] = folded(op, want[i], inputs[s][i]);
        }
        std::vector<TypeParam> got(count);
        const std::vector<std::byte*> outputs = {reinterpret_cast<std::byte*>(got.data())};
        reduce_in_rank_order(op, element_type_of<TypeParam>(), starts(inputs), outputs, count);
        expect_bits(want, got, std::to_string(sources) + " inputs, " + std::to_string(count) + " elements");
      }
    }
  }
}

}  // namespace
}  // namespace droptest::comm::delivered_reduction_test
