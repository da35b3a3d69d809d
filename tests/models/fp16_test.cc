// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/narrow_floats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "models/ops/host_ops.h"
#include "sim/error.h"
#include "tests/models/formula_model.h"

namespace droptest::models::fp16_test {
namespace {

constexpr ModelPrecision kCompute{Precision::kFloat16, Precision::kFloat32};
constexpr ModelPrecision kMessages{Precision::kFloat32, Precision::kFloat16};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Fp16, RoundsScaledFloatsToTheNearest) {
  // 2049 lies between 2048 and 2050 and goes to even; 65520 is beyond the last number; 2^-25 is half of the smallest.
  const std::vector<float> input = {1, 2049, 2051, 65519, 65520, -65520, 0x1p-24F, 0x1p-25F, 0x1.8p-25F, kInfinity};
  const std::vector<float> want = {1, 2048, 2052, 65504, kInfinity, -kInfinity, 0x1p-24F, 0, 0x1p-24F, kInfinity};
  const Team team(2);
  std::vector<Fp16> narrow(input.size());
  std::vector<float> wide(input.size());
  to_narrow(input, 1, std::span(narrow), team);
  to_floats(std::span<const Fp16>(narrow), wide, team);
  EXPECT_EQ(wide, want);
  std::vector<float> halves;
  for (const float x : input) halves.push_back(x / 2);
  to_narrow(halves, 2, std::span(narrow), team);
  to_floats(std::span<const Fp16>(narrow), wide, team);
  EXPECT_EQ(wide, want);
}

/// Losses of a few steps, and the first gradients.
struct Trace {
  std::vector<double> losses;
  std::vector<double> gradients;
};

Trace training(const HostOpsOptions& options, int ranks) {
  Trace trace;
  comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
    const Gpt2Config config{2, 160, 4, 80, 300};
    Gpt2 model(config, make_host_ops(options, group));
    set_initial_weights<float>(model.tensors(), 5, model.parameters<float>());
    model.upload_values();
    const auto tokens = formula_tokens(0, 4 * 80, 300);
    const auto targets = formula_tokens(1, 4 * 80, 300);
    Trace own;
    for (int step = 0; step < 12; ++step) {
      model.zero_gradients();
      model.forward_backward(tokens, targets, {4, 80}, 1.0);
      own.losses.push_back(model.step_sums().losses);
      if (step == 0) {
        for (const auto& parameter : model.parameters<float>()) {
          own.gradients.insert(own.gradients.end(), parameter.gradient.begin(), parameter.gradient.end());
        }
      }
      model.step(3e-3, 1.0);
    }
    if (group.rank() == 0) trace = own;
  });
  return trace;
}

TEST(Fp16Model, TrainsAsFloat32DoesWithinItsRounding) {
  for (const ModelPrecision& precision : {kCompute, kMessages}) {
    const Trace exact = training({}, 2);
    const Trace got = training({.precision = precision}, 2);
    // 11 bits of fraction: an eighth of bfloat16's rounding.
    EXPECT_NEAR(got.losses[0], exact.losses[0], 6e-4);
    EXPECT_NE(got.losses[0], exact.losses[0]) << "nothing was rounded";
    EXPECT_NEAR(got.losses.back(), exact.losses.back(), 0.01);
    EXPECT_LE(relative_difference(got.gradients, exact.gradients), 0.003);
    EXPECT_EQ(training({.precision = precision, .threads = 3}, 2).losses, got.losses) << "for any number of threads";
  }
}

TEST(Bf16Model, ComputesInFloatWhereTheProcessorHasNoProducts) {
  const ModelPrecision bf16{Precision::kBfloat16, Precision::kFloat32};
  const Trace in_float = training({.precision = bf16, .narrow_products = HostOpsOptions::NarrowProducts::kInFloat}, 1);
  EXPECT_NEAR(in_float.losses[0], training({}, 1).losses[0], 5e-3);
  EXPECT_NE(in_float.losses[0], training({}, 1).losses[0]);
  // Both have the same rounded operands: only the order of float sums differs.
  const Trace fastest = training({.precision = bf16}, 1);
  EXPECT_NEAR(in_float.losses[0], fastest.losses[0], 1e-4);
  EXPECT_LE(relative_difference(in_float.gradients, fastest.gradients), 1e-2);
}

TEST(Fp16Messages, AreTheRoundedSumOfRoundedParts) {
  const std::vector<std::vector<float>> parts = {{2049, 65504, 1}, {-2048, 65504, 0x1p-11F}};
  const std::vector<float> want = {0, kInfinity, 1};
  comm::run_ranks(2, kTestTimeout, [&](comm::Communicator& group) {
    std::vector<Fp16> room(3);
    std::vector<float> data = parts[static_cast<std::size_t>(group.rank())];
    const std::unique_ptr<Ops> ops = make_host_ops({}, group);
    ops->begin_sum(std::span<float>(data), std::span<Fp16>(room), {sim::TrafficClass::kTpForward, "x", 0});
    ops->join();
    EXPECT_EQ(data, want);
  });
}

TEST(Fp16Model, IsRefusedForDouble) {
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    EXPECT_THROW(make_host_ops({.type = comm::ElementType::kFloat64, .precision = kCompute}, group), ConfigError);
    EXPECT_THROW(make_host_ops({.precision = {Precision::kTf32, Precision::kFloat32}}, group), ConfigError);
  });
}

}  // namespace
}  // namespace droptest::models::fp16_test
