// SPDX-License-Identifier: Apache-2.0
// What only a fake device shows of the model on a device: waits, memory, and work that fails.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "models/gpt2/device_activations.h"
#include "models/kernels/bf16.h"
#include "sim/error.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/models/device_pass.h"

namespace droptest::models {
namespace {

const Gpt2Config kConfig{2, 36, 3, 12, 97};

void take_step(Gpt2Cuda& model, comm::Communicator& group, std::span<const std::int32_t> tokens,
               std::span<const std::int32_t> targets) {
  model.zero_gradients();
  model.forward_backward(tokens, targets, 2, 5, 1.0);
  const double norm = norm_over_ranks(model.step_sums().gradient_squares, group);
  model.step(0.01, clip_scale(norm, 1.0));
}

TEST(Gpt2OnFakeDevice, AStepWaitsForTheDeviceOnce) {
  const auto tokens = formula_tokens(0, 10, kConfig.vocabulary);
  const auto targets = formula_tokens(1, 10, kConfig.vocabulary);
  for (const int ranks : {1, 3}) {
    const fake_cuda::Scope scope;
    comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
      const auto model = formula_device_model(kConfig, group, {});
      take_step(*model, group, tokens, targets);  // takes memory, for which it waits
      group.barrier({});
      const std::uint64_t before = fake_cuda::synchronizations();
      group.barrier({});
      for (int step = 0; step < 3; ++step) take_step(*model, group, tokens, targets);
      group.barrier({});
      EXPECT_EQ(fake_cuda::synchronizations() - before, static_cast<std::uint64_t>(3 * ranks)) << ranks << " ranks";
      group.barrier({});
    });
    EXPECT_EQ(fake_cuda::live_allocations(), 0U);
    EXPECT_EQ(fake_cuda::live_streams(), 0U);
    EXPECT_EQ(fake_cuda::live_events(), 0U);
  }
}

TEST(Gpt2OnFakeDevice, TheOptimizerIsOneLaunch) {
  const fake_cuda::Scope scope;
  const auto tokens = formula_tokens(0, 10, kConfig.vocabulary);
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    const auto model = formula_device_model(kConfig, group, options_of({.precision = kBf16Compute}));
    model->zero_gradients();
    model->forward_backward(tokens, tokens, 2, 5, 1.0);
    model->step_sums();
    const std::uint64_t before = fake_cuda::launches();
    model->step(0.01, 1.0);
    EXPECT_EQ(fake_cuda::launches() - before, 1U);
  });
}

TEST(Gpt2OnFakeDevice, TooLittleMemorySaysWhatWantedHowMuch) {
  const auto tokens = formula_tokens(0, 24, kConfig.vocabulary);
  const auto error_with = [&](std::size_t memory_bytes) {
    fake_cuda::Settings settings;
    settings.memory_bytes = memory_bytes;
    const fake_cuda::Scope scope(settings);
    std::string text = "(no error)";
    comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
      try {
        const auto model = formula_device_model(kConfig, group, {});
        model->zero_gradients();
        model->forward_backward(tokens, tokens, 2, 12, 1.0);
      } catch (const DeviceError& error) {
        text = error.what();
      }
    });
    return text;
  };
  // 36,000 parameters take 150 KB four times, and activations 300 KB.
  EXPECT_THAT(error_with(400'000), testing::AllOf(testing::HasSubstr("out of memory"), testing::HasSubstr("moments")));
  EXPECT_THAT(error_with(std::size_t{64} << 20U), "(no error)");
}

TEST(Gpt2OnFakeDevice, TakesTheMemoryThatWasPlanned) {
  const auto tokens = formula_tokens(0, 24, kConfig.vocabulary);
  for (const ModelPrecision& precision : kPrecisions) {
    const fake_cuda::Scope scope;
    comm::run_ranks(3, kTestTimeout, [&](comm::Communicator& group) {
      const Gpt2Cuda::Options options = options_of({.precision = precision});
      const auto model = formula_device_model(kConfig, group, options);
      model->evaluate(tokens, tokens, 2, 12);
      model->zero_gradients();
      model->forward_backward(tokens, tokens, 2, 12, 1.0);
      EXPECT_EQ(Gpt2Cuda::planned_bytes(kConfig, 3, group.rank(), options, 2, 12), model->device_bytes());
    });
  }
}

TEST(Gpt2OnFakeDevice, AFailedKernelEndsTheStep) {
  const fake_cuda::Scope scope;
  const auto tokens = formula_tokens(0, 10, kConfig.vocabulary);
  EXPECT_THROW(comm::run_ranks(1, kTestTimeout,
                               [&](comm::Communicator& group) {
                                 const auto model = formula_device_model(kConfig, group, {});
                                 fake_cuda::fail_kernel("layernorm_backward", cudaErrorIllegalAddress);
                                 take_step(*model, group, tokens, tokens);
                               }),
               DeviceError);
}

ActivationExtents extents(int layers, std::int64_t batch) { return {layers, 64, 4, 16, 256, 128, 7, {batch, 16}}; }

TEST(DeviceActivations, NothingThatIsInUseAtOnceLiesOnAnother) {
  for (const Keep keep : {Keep::kForBackward, Keep::kNothing}) {
    const DeviceActivations<Bf16> activations(extents(3, 2), keep);
    const MemoryPlan& plan = activations.plan();
    for (std::size_t i = 0; i < plan.buffers().size(); ++i) {
      const PlannedBuffer& a = plan.buffers()[i];
      EXPECT_EQ(plan.offset(i) % MemoryPlan::kAlignmentBytes, 0U);
      for (std::size_t k = 0; k < i; ++k) {
        const PlannedBuffer& b = plan.buffers()[k];
        if (a.first_time > b.last_time || b.first_time > a.last_time) continue;
        EXPECT_TRUE(plan.offset(i) + a.bytes <= plan.offset(k) || plan.offset(k) + b.bytes <= plan.offset(i))
            << a.name << " and " << b.name;
      }
    }
  }
}

// A half reads the stream and the sum of the half before it.
TEST(DeviceActivations, WhatTheNextHalfReadsIsKeptUntilThen) {
  for (const Keep keep : {Keep::kForBackward, Keep::kNothing}) {
    const DeviceActivations<float> activations(extents(3, 2), keep);
    int sums = 0;
    int streams = 0;
    for (const PlannedBuffer& buffer : activations.plan().buffers()) {
      if (buffer.name == "sums over ranks") {
        ++sums;
        EXPECT_EQ(buffer.last_time, buffer.first_time + 1);
      } else if (buffer.name == "residual stream" && buffer.first_time <= 6) {  // but for the head's
        ++streams;
        EXPECT_GE(buffer.last_time, std::max(buffer.first_time, 1) + 1);
      }
    }
    EXPECT_EQ(sums, 6);
    EXPECT_EQ(streams, 6);
  }
}

TEST(DeviceActivations, EvaluationTakesTheMemoryOfOneBlock) {
  const std::uint64_t shallow = DeviceActivations<float>(extents(2, 4), Keep::kNothing).plan().bytes();
  const std::uint64_t deep = DeviceActivations<float>(extents(40, 4), Keep::kNothing).plan().bytes();
  EXPECT_EQ(deep, shallow);
  EXPECT_GT(DeviceActivations<float>(extents(40, 4), Keep::kForBackward).plan().bytes(), 10 * deep);
}

TEST(DeviceActivations, TheirPurposeNamesTheBatchAndWhatIsLargest) {
  const std::string purpose = DeviceActivations<float>(extents(2, 4), Keep::kForBackward).purpose();
  EXPECT_THAT(purpose, testing::HasSubstr("a batch of 4 x 16 tokens"));
  EXPECT_THAT(purpose, testing::HasSubstr("GELU"));
}

}  // namespace
}  // namespace droptest::models
