// SPDX-License-Identifier: Apache-2.0
// Types of elements: their numbers, their sums, and the loss layer over them. tests/comm/conformance.cc has the
// operations of each backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "comm/call.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/rank_order_reduction.h"
#include "comm/run_ranks.h"
#include "comm/tensor.h"
#include "comm/visit_elements.h"
#include "sim/error.h"
#include "tests/comm/lossy_recovery.h"

namespace droptest::comm::element_types_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::array kAllTypes = {ElementType::kFloat32,  ElementType::kFloat64, ElementType::kUint64,
                                  ElementType::kBfloat16, ElementType::kFloat16, ElementType::kInt32,
                                  ElementType::kInt64,    ElementType::kUint8};

TEST(Float16, EveryNumberIsAFloatAndComesBack) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const Fp16 half{static_cast<std::uint16_t>(bits)};
    const float value = to_float(half);
    const std::uint32_t exponent = bits >> 10U & 31U;
    const auto fraction = static_cast<double>(bits & 0x3ffU);
    const double sign = (bits & 0x8000U) != 0 ? -1 : 1;
    if (exponent == 31 && fraction != 0) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_TRUE(std::isnan(to_float(to_fp16(value)))) << bits;
      continue;
    }
    const double want = exponent == 31  ? sign * std::numeric_limits<double>::infinity()
                        : exponent == 0 ? sign * std::ldexp(fraction, -24)
                                        : sign * std::ldexp(1024 + fraction, static_cast<int>(exponent) - 25);
    ASSERT_EQ(static_cast<double>(value), want) << bits;
    ASSERT_EQ(to_fp16(value).bits, bits);
  }
}

// A number between two neighbours is rounded to the nearer one, and the middle to the even one, for all pairs of
// neighbours.
TEST(Float16, RoundsToTheNearestAndTiesToEven) {
  for (std::uint16_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = to_float(Fp16{bits});
    const float high = to_float(Fp16{static_cast<std::uint16_t>(bits + 1)});
    const float middle = low + (high - low) / 2;  // exact: float has 13 digits more
    const std::uint16_t even = (bits & 1) == 0 ? bits : static_cast<std::uint16_t>(bits + 1);
    ASSERT_EQ(to_fp16(middle).bits, even);
    ASSERT_EQ(to_fp16(std::nextafter(middle, 0.0F)).bits, bits);
    ASSERT_EQ(to_fp16(std::nextafter(middle, 1e9F)).bits, bits + 1);
    ASSERT_EQ(to_fp16(-middle).bits, even | 0x8000);
  }
  EXPECT_EQ(to_fp16(65519.996F).bits, 0x7bff);
  EXPECT_EQ(to_fp16(65520.0F).bits, 0x7c00) << "overflow";
  EXPECT_EQ(to_fp16(std::numeric_limits<float>::infinity()).bits, 0x7c00);
  EXPECT_EQ(to_fp16(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(to_fp16(0.1F).bits, 0x2e66);
}

template <class T>
T reduced(ReduceOp op, const std::vector<T>& values) {
  std::vector<const std::byte*> inputs;
  for (const T& value : values) inputs.push_back(reinterpret_cast<const std::byte*>(&value));
  T result{};
  std::byte* const outputs[] = {reinterpret_cast<std::byte*>(&result)};
  reduce_in_rank_order(op, element_type_of<T>(), inputs, outputs, 1);
  return result;
}

TEST(ElementTypes, IntegersWrapAndFloat16IsRoundedOnce) {
  EXPECT_EQ(reduced<std::uint8_t>(ReduceOp::kSum, {200, 100}), 44);
  EXPECT_EQ(reduced<std::int32_t>(ReduceOp::kSum, {std::numeric_limits<std::int32_t>::max(), 2}),
            std::numeric_limits<std::int32_t>::min() + 1);
  EXPECT_EQ(reduced<std::int64_t>(ReduceOp::kSum, {std::numeric_limits<std::int64_t>::min(), -1}),
            std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(reduced<std::int32_t>(ReduceOp::kMax, {-5, -3, -9}), -3);
  const auto half = [](float x) { return to_fp16(x); };
  // Rounded at each addition, 2048 + 1 + 1 stays 2048.
  EXPECT_EQ(to_float(reduced<Fp16>(ReduceOp::kSum, {half(2048), half(1), half(1)})), 2050);
  EXPECT_EQ(reduced<Fp16>(ReduceOp::kSum, {half(65504), half(65504)}).bits, 0x7c00);
  EXPECT_TRUE(std::isnan(to_float(reduced<Fp16>(ReduceOp::kMax, {half(1), Fp16{0x7e00}, half(2)}))));
}

TEST(ElementTypes, AMeanIsDividedOnceAndRoundedOnce) {
  const auto half = [](float x) { return to_fp16(x); };
  // In float16 the sum is infinite, and 2049 is 2048.
  EXPECT_EQ(to_float(reduced<Fp16>(ReduceOp::kMean, {half(65504), half(65504)})), 65504);
  EXPECT_EQ(to_float(reduced<Fp16>(ReduceOp::kMean, {half(2048), half(1), half(1)})), to_float(half(2050.0F / 3)));
  // In bfloat16 257 is 256 or 258.
  EXPECT_EQ(to_float(reduced<Bf16>(ReduceOp::kMean, {to_bf16(256), to_bf16(1)})), to_float(to_bf16(128.5F)));
  // Divided, not multiplied by 1 / 3, which gives another last digit.
  EXPECT_EQ(reduced<double>(ReduceOp::kMean, {5, 5, 0}), 10.0 / 3);
  EXPECT_NE(10.0 / 3, 10.0 * (1.0 / 3)) << "or this test shows nothing";
  EXPECT_EQ(reduced<float>(ReduceOp::kMean, {0.1F}), 0.1F);
  EXPECT_EQ(reduced<double>(ReduceOp::kMean, {1, 2, 3, 6}), 3);
}

TEST(ElementTypes, AreNamedInCalls) {
  const auto text = [](ElementType type) { return describe(Call(Operation::kBroadcast, type, 3, {.name = "m"}, 0)); };
  EXPECT_THAT(text(ElementType::kFloat16), HasSubstr("3 float16"));
  EXPECT_THAT(text(ElementType::kInt32), HasSubstr("3 int32"));
  EXPECT_THAT(text(ElementType::kInt64), HasSubstr("3 int64"));
  EXPECT_THAT(text(ElementType::kUint8), HasSubstr("3 uint8"));
}

// Small whole numbers, of which every type has the sums in any order.
template <class T>
std::vector<T> small_numbers(int rank, std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = narrowed<T>(static_cast<WideOf<T>>((i * 7 + static_cast<std::size_t>(rank) * 3) % 11 + 1));
  }
  return values;
}

TEST(ElementTypes, EveryPathWithoutLossGivesTheSumsOfTheBareBackend) {
  for (const PathEntry& path : paths()) {
    for (const ElementType type : kAllTypes) {
      SCOPED_TRACE(std::string(path.name) + ", " + std::string(element_type_name(type)));
      visit_elements(type, [&]<class T>(std::type_identity<T>) {
        run_ranks(4, kRecoveryTimeout, [&](Communicator& inner) {
          ClassNetwork network = recovery_network(path.name, 0, 0);
          if (path.has_groups) network.group_ranks = 2;
          LossyCommunicator lossy(inner, recovery_options(network));
          std::vector<T> want = small_numbers<T>(inner.rank(), 203);
          std::vector<T> got = want;
          inner.all_reduce(std::span(want), ReduceOp::kSum, {.name = "bare"});
          lossy.all_reduce(std::span(got), ReduceOp::kSum, {kRecoveryClass, "lossy", 0});
          EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(T)), 0);
        });
      });
    }
  }
}

TEST(ElementTypes, WhatIsLostIsZeroInEveryType) {
  for (const std::string_view path : {"contribution", "direct"}) {
    for (const ElementType type : kAllTypes) {
      SCOPED_TRACE(std::string(path) + ", " + std::string(element_type_name(type)));
      visit_elements(type, [&]<class T>(std::type_identity<T>) {
        run_ranks(2, kRecoveryTimeout, [&](Communicator& inner) {
          // Each rank's whole contribution, and on `direct` the other one's result.
          LossyCommunicator lossy(inner, recovery_options(recovery_network(path, 1, path == "direct" ? 1 : 0)));
          std::vector<T> data = small_numbers<T>(inner.rank(), 64);
          const std::vector<T> own = data;
          lossy.all_reduce(std::span(data), ReduceOp::kSum, {kRecoveryClass, "lossy", 0});
          const std::size_t begin = inner.rank() == 0 ? 0 : 32;
          for (std::size_t i = 0; i < data.size(); ++i) {
            const bool stays = path == "direct" && i >= begin && i < begin + 32;
            EXPECT_EQ(number_of(data[i]), stays ? number_of(own[i]) : 0) << i;
          }
        });
      });
    }
  }
}

TEST(ElementTypes, IntegersAreNotRescaled) {
  for (const ElementType type : {ElementType::kInt32, ElementType::kInt64, ElementType::kUint8}) {
    visit_elements(type, [&]<class T>(std::type_identity<T>) {
      std::array<std::string, 2> errors;
      EXPECT_THROW(run_ranks(2, kRecoveryTimeout,
                             [&](Communicator& inner) {
                               ClassNetwork network = recovery_network("direct", 0.1, 0);
                               network.reduce.fill = Fill::kCountRescale;
                               LossyCommunicator lossy(inner, recovery_options(network));
                               std::vector<T> data(64);
                               try {
                                 lossy.all_reduce(std::span(data), ReduceOp::kSum, {kRecoveryClass, "token counts", 0});
                               } catch (const ConfigError& error) {
                                 errors[static_cast<std::size_t>(inner.rank())] = error.what();
                                 throw;
                               }
                             }),
                   ConfigError);
      EXPECT_THAT(errors[0] + errors[1], AllOf(HasSubstr("token counts"), HasSubstr("integers")));
    });
  }
}

}  // namespace
}  // namespace droptest::comm::element_types_test
