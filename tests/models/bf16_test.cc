// SPDX-License-Identifier: Apache-2.0
// bfloat16: rounding, every form of GEMM, and models that compute with it or send it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "models/kernels/chunks.h"
#include "models/kernels/matmul_bf16.h"
#include "models/kernels/narrow_floats.h"
#include "sim/error.h"
#include "tests/comm/recording_communicator.h"
#include "tests/models/formula_model.h"

namespace droptest::models::bf16_test {
namespace {

std::uint16_t bits_of(float value) {
  Bf16 out{};
  to_narrow(std::span(&value, 1), 1.0F, std::span(&out, 1), 1);
  return out.bits;
}

TEST(Bf16, RoundsToNearestAndTiesToEven) {
  EXPECT_EQ(bits_of(0.0F), 0x0000);
  EXPECT_EQ(bits_of(-0.0F), 0x8000);
  EXPECT_EQ(bits_of(1.0F), 0x3F80);
  EXPECT_EQ(bits_of(std::bit_cast<float>(0x3F808000U)), 0x3F80) << "a tie stays at the even neighbour below";
  EXPECT_EQ(bits_of(std::bit_cast<float>(0x3F818000U)), 0x3F82) << "and goes to the even one above";
  EXPECT_EQ(bits_of(std::bit_cast<float>(0x3F808001U)), 0x3F81);
  EXPECT_EQ(bits_of(std::bit_cast<float>(0x3F807FFFU)), 0x3F80);
  EXPECT_EQ(bits_of(std::numeric_limits<float>::max()), 0x7F80) << "beyond the largest bfloat16: infinity";
  EXPECT_EQ(bits_of(-std::numeric_limits<float>::infinity()), 0xFF80);
  // NaNs with a payload only in the half that is cut off, and NaNs that rounding up would carry into the sign.
  for (const std::uint32_t nan : {0x7F800001U, 0xFF800001U, 0x7FFFFFFFU, 0xFFFFFFFFU}) {
    EXPECT_TRUE(std::isnan(comm::to_float(comm::Bf16{bits_of(std::bit_cast<float>(nan))}))) << nan;
  }
  EXPECT_EQ(comm::to_float(comm::Bf16{0x4049}), 3.140625F);
}

TEST(Bf16, ScalesBeforeItRounds) {
  std::vector<float> values;
  for (int i = 0; i < 100; ++i) values.push_back(static_cast<float>(i) * 0.37F);
  std::vector<Bf16> got(values.size());
  to_narrow(values, 1.0F / 3, std::span(got), 2);
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(got[i].bits, bits_of(values[i] * (1.0F / 3)));
}

/// Numbers that bfloat16 represents exactly.
std::vector<Bf16> exact_numbers(std::uint64_t stream, std::int64_t count) {
  std::vector<Bf16> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back({bits_of(static_cast<float>(mixed(stream, static_cast<std::uint64_t>(i))))});
  }
  return values;
}

class Bf16Products : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_bf16_products()) GTEST_SKIP() << "this processor has no AVX512-BF16";
  }
};

TEST_F(Bf16Products, EqualTheSumOfExactProductsInAllForms) {
  const SingleThreadedLibraries single_threaded;
  struct Extents {
    std::int64_t m, n, k;
  };
  Bf16Matmul matmul;
  for (const Extents& e :
       {Extents{1, 1, 1}, Extents{5, 3, 7}, Extents{131, 300, 17}, Extents{300, 131, 33}, Extents{0, 3, 4}}) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        const std::int64_t a_rows = ta ? e.k : e.m;
        const std::int64_t a_columns = ta ? e.m : e.k;
        const std::int64_t b_rows = tb ? e.n : e.k;
        const std::int64_t b_columns = tb ? e.k : e.n;
        const auto a = exact_numbers(1, (a_rows + 1) * (a_columns + 3));
        const auto b = exact_numbers(2, (b_rows + 1) * (b_columns + 2));
        for (const auto keep : {Bf16Matmul::Keep::kSet, Bf16Matmul::Keep::kAdd}) {
          std::vector<float> first;
          for (const int threads : {1, 2, 3}) {
            std::vector<float> got(static_cast<std::size_t>((e.m + 1) * (e.n + 1)), 0.5F);
            matmul(ta ? Transpose::kYes : Transpose::kNo, {a.data(), a_rows, a_columns, a_columns + 3},
                   tb ? Transpose::kYes : Transpose::kNo, {b.data(), b_rows, b_columns, b_columns + 2}, keep,
                   {got.data(), e.m, e.n, e.n + 1}, threads);
            if (threads == 1) first = got;
            EXPECT_EQ(got, first) << threads << " threads";
          }
          for (std::int64_t i = 0; i < e.m; ++i) {
            for (std::int64_t j = 0; j < e.n; ++j) {
              double sum = keep == Bf16Matmul::Keep::kAdd ? 0.5 : 0;
              for (std::int64_t l = 0; l < e.k; ++l) {
                sum +=
                    static_cast<double>(comm::to_float(ta ? a[l * (a_columns + 3) + i] : a[i * (a_columns + 3) + l])) *
                    static_cast<double>(comm::to_float(tb ? b[j * (b_columns + 2) + l] : b[l * (b_columns + 2) + j]));
              }
              // Sums are float, not bfloat16: they have the rounding of at most k terms below 1.
              ASSERT_NEAR(first[i * (e.n + 1) + j], sum, 2e-6) << e.m << "x" << e.n << "x" << e.k;
            }
            ASSERT_EQ(first[i * (e.n + 1) + e.n], 0.5F) << "written beyond the row";
          }
        }
      }
    }
  }
}

constexpr ModelPrecision kCompute{Precision::kBfloat16, Precision::kFloat32};
constexpr ModelPrecision kMessages{Precision::kFloat32, Precision::kBfloat16};

/// Losses of a few steps, the first gradients, and a copy of the first loss in float32.
struct Trace {
  std::vector<double> losses;
  std::vector<double> gradients;
};

Trace training(const ModelPrecision& precision, int ranks, int threads) {
  Trace trace;
  comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
    HostGpt2<float> model({2, 160, 4, 80, 300}, group, threads, precision);
    model.initialize(5);
    const auto tokens = formula_tokens(0, 4 * 80, 300);
    const auto targets = formula_tokens(1, 4 * 80, 300);
    Trace own;
    for (int step = 0; step < 12; ++step) {
      model.zero_gradients();
      own.losses.push_back(model.forward_backward(tokens, targets, 4, 80, 1.0));
      if (step == 0) {
        for (const auto& parameter : model.parameters()) {
          own.gradients.insert(own.gradients.end(), parameter.gradient.begin(), parameter.gradient.end());
        }
      }
      model.step(3e-3, 1.0);
    }
    if (group.rank() == 0) trace = own;
  });
  return trace;
}

TEST_F(Bf16Products, TrainAModelAsFloat32DoesWithinTheirRounding) {
  const Trace exact = training({}, 1, 1);
  for (const int ranks : {1, 2}) {
    const Trace got = training(kCompute, ranks, 1);
    // 8 bits of mantissa: 2^-9 per operand. The loss averages over tokens; a gradient's relative error stays near 2^-9
    // times the square root of the few products it passes through.
    EXPECT_NEAR(got.losses[0], exact.losses[0], 5e-3);
    EXPECT_NE(got.losses[0], exact.losses[0]) << "nothing was rounded";
    EXPECT_NEAR(got.losses.back(), exact.losses.back(), 0.05);
    if (ranks == 1) {
      EXPECT_LE(relative_difference(got.gradients, exact.gradients), 0.02);
    }
  }
}

TEST_F(Bf16Products, WorkOnARankThatHasNoTokens) {
  // 9 tokens over 4 ranks are 3, 3, 3 and none.
  std::vector<double> losses;
  for (const int ranks : {1, 4}) {
    comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
      HostGpt2<float> model({1, 32, 4, 12, 9}, group, 1, kCompute);
      model.initialize(3);
      const auto tokens = formula_tokens(0, 12, 9);
      double loss = 0;
      for (int step = 0; step < 3; ++step) {
        model.zero_gradients();
        loss = model.forward_backward(tokens, tokens, 1, 12, 1.0);
        model.step(1e-2, 1.0);
      }
      if (group.rank() == 0) losses.push_back(loss);
    });
  }
  ASSERT_EQ(losses.size(), 2U);
  EXPECT_NEAR(losses[1], losses[0], 0.02);
}

TEST_F(Bf16Products, HaveTheSameBitsForAnyThreadsAndEveryRun) {
  const Trace one = training(kCompute, 2, 1);
  EXPECT_EQ(training(kCompute, 2, 1).losses, one.losses);
  EXPECT_EQ(training(kCompute, 2, 3).losses, one.losses);
  EXPECT_EQ(training(kCompute, 2, 3).gradients, one.gradients);
}

TEST(Bf16Messages, AreTheRoundedSumOfRoundedParts) {
  // Half a unit in the last place above 1 goes to even, and so down; a bit more goes up. 256 + 1 has no room for the 1.
  const std::vector<std::vector<float>> parts = {{1.00390625F, 1.0040F, 256.0F}, {-1.0F, 1.0078125F, 1.0F}};
  const std::vector<float> want = {0.0F, 2.015625F, 256.0F};
  comm::run_ranks(2, kTestTimeout, [&](comm::Communicator& group) {
    std::vector<Bf16> room(3);
    std::vector<float> data = parts[static_cast<std::size_t>(group.rank())];
    const std::unique_ptr<Ops> ops = make_host_ops({}, group);
    ops->begin_sum(std::span<float>(data), std::span<Bf16>(room), {sim::TrafficClass::kTpForward, "x", 0});
    ops->join();
    EXPECT_EQ(data, want);
  });
}

// Issue 15: bfloat16 meant only GEMMs on the host, but also activations and messages on a device.
TEST(Bf16Messages, AreThoseOfTensorParallelSumsAlone) {
  const auto tokens = formula_tokens(0, 10, 97);
  for (const int ranks : {1, 2}) {
    comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
      comm::RecordingCommunicator wide(group);
      comm::RecordingCommunicator narrow(group);
      HostGpt2<float>({2, 32, 4, 12, 97}, wide, 1).forward_backward(tokens, tokens, 2, 5, 1.0);
      HostGpt2<float>({2, 32, 4, 12, 97}, narrow, 1, kMessages).forward_backward(tokens, tokens, 2, 5, 1.0);
      EXPECT_EQ(narrow.calls, wide.calls) << "the same messages with as many elements";
      ASSERT_EQ(narrow.types.size(), narrow.calls.size());
      for (std::size_t i = 0; i < narrow.calls.size(); ++i) {
        EXPECT_EQ(wide.types[i], comm::ElementType::kFloat32) << wide.calls[i];
        const bool is_sum = narrow.calls[i].find(" tp_") != std::string::npos;
        EXPECT_EQ(narrow.types[i], is_sum && ranks > 1 ? comm::ElementType::kBfloat16 : comm::ElementType::kFloat32)
            << narrow.calls[i];
      }
    });
  }
}

TEST(Bf16Messages, TrainAModelAsFloat32DoesWithinTheirRounding) {
  const Trace exact = training({}, 2, 1);
  const Trace got = training(kMessages, 2, 1);
  EXPECT_NEAR(got.losses[0], exact.losses[0], 5e-3);
  EXPECT_NE(got.losses[0], exact.losses[0]) << "nothing was rounded";
  EXPECT_LE(relative_difference(got.gradients, exact.gradients), 0.02);
  EXPECT_NEAR(got.losses.back(), exact.losses.back(), 0.05);
  EXPECT_EQ(training(kMessages, 2, 3).losses, got.losses) << "for any number of threads";
  EXPECT_EQ(training(kMessages, 1, 1).losses, training({}, 1, 1).losses) << "a lone rank sends nothing";
}

TEST(Bf16Model, IsRefusedForDouble) {
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    EXPECT_THROW(HostGpt2<double>({2, 32, 4, 12, 97}, group, 1, kCompute), ConfigError);
    EXPECT_THROW(HostGpt2<double>({2, 32, 4, 12, 97}, group, 1, kMessages), ConfigError);
  });
}

}  // namespace
}  // namespace droptest::models::bf16_test
