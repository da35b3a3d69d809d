// SPDX-License-Identifier: Apache-2.0
// Properties of the model that only a fake device shows: waits, memory, and failing work.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "models/gpt2/stage_plan.h"
#include "models/kernels/narrow_floats.h"
#include "models/training_step.h"
#include "sim/error.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/models/device_pass.h"
#include "tests/models/planned_bytes.h"

namespace droptest::models::gpt2_fake_cuda_test {
namespace {

const Gpt2Config kConfig{2, 36, 3, 12, 97};

void take_step(Gpt2& model, std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) {
  const std::vector<MicroBatch> batches = {{tokens, targets, {2, 5}}};
  EXPECT_TRUE(TrainingStep(model, 1.0).take(batches, 0.01).updated);
}

TEST(Gpt2OnFakeDevice, AStepWaitsForTheDeviceOnce) {
  const auto tokens = formula_tokens(0, 10, kConfig.vocabulary);
  const auto targets = formula_tokens(1, 10, kConfig.vocabulary);
  for (const int ranks : {1, 3}) {
    const fake_cuda::Scope scope;
    comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
      const auto model = formula_device_model(kConfig, group, {});
      take_step(*model, tokens, targets);  // takes memory, for which it waits
      group.barrier({});
      const std::uint64_t before = fake_cuda::synchronizations();
      group.barrier({});
      for (int step = 0; step < 3; ++step) take_step(*model, tokens, targets);
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
    model->forward_backward(tokens, tokens, {2, 5}, 1.0);
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
        model->forward_backward(tokens, tokens, {2, 12}, 1.0);
      } catch (const DeviceError& error) {
        text = error.what();
      }
    });
    return text;
  };
  // GEMMs have a workspace of 32 MiB, 36,000 parameters take 150 KB four times, and activations 300 KB.
  EXPECT_THAT(error_with((std::size_t{32} << 20U) + 400'000),
              testing::AllOf(testing::HasSubstr("out of memory"), testing::HasSubstr("moments")));
  EXPECT_THAT(error_with(std::size_t{64} << 20U), "(no error)");
}

TEST(Gpt2OnFakeDevice, TakesTheMemoryThatWasPlanned) {
  const auto tokens = formula_tokens(0, 24, kConfig.vocabulary);
  for (const ModelPrecision& precision : kPrecisions) {
    const fake_cuda::Scope scope;
    comm::run_ranks(3, kTestTimeout, [&](comm::Communicator& group) {
      const CudaOpsOptions options = options_of({.precision = precision});
      const auto model = formula_device_model(kConfig, group, options);
      model->evaluate(tokens, tokens, {2, 12});
      model->zero_gradients();
      model->forward_backward(tokens, tokens, {2, 12}, 1.0);
      EXPECT_EQ(planned_bytes(kConfig, 3, group.rank(), *cuda_ops_form(options, 3), {2, 12}), model->memory_bytes());
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
                                 take_step(*model, tokens, tokens);
                               }),
               DeviceError);
}

// Buckets have a separate stream, which may still use the gradients after an error.
TEST(Gpt2OnFakeDevice, AnErrorDuringTrafficFreesNoMemoryThatTheDeviceUses) {
  const auto tokens = formula_tokens(0, 10, kConfig.vocabulary);
  for (const int zero : {0, 1, 2, 3}) {
    const fake_cuda::Scope scope;
    EXPECT_THROW(
        comm::run_ranks(2, kTestTimeout,
                        [&](comm::Communicator& world) {
                          const std::unique_ptr<comm::Communicator> alone = world.split(world.rank(), 0);
                          ModelRanks ranks;
                          ranks.data = {&world, {.zero = zero, .bucket_bytes = 1U << 15U, .first_bucket_bytes = 1}};
                          ranks.all = &world;
                          Gpt2 model(kConfig, make_cuda_ops({}, *alone), {}, {}, ranks);
                          model.set_gradient_ready([](int layer) {
                            if (layer == 0) throw CheckError("an error in the middle of a pass");
                          });
                          take_step(model, tokens, tokens);
                        }),
        CheckError);
    EXPECT_EQ(fake_cuda::live_allocations(), 0U) << "zero " << zero;
    EXPECT_EQ(fake_cuda::live_streams(), 0U) << "zero " << zero;
  }
}

}  // namespace
}  // namespace droptest::models::gpt2_fake_cuda_test
