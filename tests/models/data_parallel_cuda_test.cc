// SPDX-License-Identifier: Apache-2.0
// Compares replicas on a device with the same replicas on the host: always on the fake device, and on a real device if
// there is one.
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "models/ops/host_ops.h"
#include "models/training_step.h"
#include "tests/models/device_pass.h"

namespace droptest::models::data_parallel_cuda_test {
namespace {

using ReplicasOnDevice = OnDevice;

// No extent is a multiple of another one.
const Gpt2Config kOdd{3, 36, 3, 12, 97};
constexpr int kReplicas = 2;
constexpr int kSteps = 3;
constexpr int kLength = 5;
constexpr double kMaxNorm = 0.5;

// Rounding of float, as of one rank on a device (gpt2_cuda_test.cc).
constexpr double kFloatLoss = 2e-6;
constexpr double kFloatTensor = 1e-5;

// Several buckets in each block, and one that is small.
ShardOptions zero(int stage, int micro_batches, ShardOptions::Reduce reduce = ShardOptions::Reduce::kAfterLast) {
  return {.zero = stage,
          .bucket_bytes = std::uint64_t{1} << 15U,
          .first_bucket_bytes = 1,
          .gather_bucket_bytes = std::uint64_t{1} << 15U,
          .reduce = reduce,
          .micro_batches = micro_batches};
}

struct Result {
  std::vector<StepResult> steps;
  std::vector<Tensors> of_replica;
};

/// The steps of replicas on different tokens; make_ops(tensor-parallel group of one rank) on each.
template <class MakeOps>
Result train(const ShardOptions& sharding, const MakeOps& make_ops) {
  Result result;
  result.of_replica.resize(kReplicas);
  std::mutex mutex;
  comm::run_ranks(kReplicas, kTestTimeout, [&](comm::Communicator& world) {
    const std::unique_ptr<comm::Communicator> alone = world.split(world.rank(), 0);
    ModelRanks ranks;
    ranks.data = {&world, sharding};
    ranks.all = &world;
    // An epsilon far above the rounding of gradients keeps AdamW from dividing by that.
    Gpt2 model(kOdd, make_ops(*alone), {.epsilon = 1e-3}, {}, ranks);
    set_formula_weights<float>(kOdd, model.parameters<float>(), *alone);
    model.upload_values();
    TrainingStep step(model, kMaxNorm);
    std::vector<StepResult> steps;
    for (int s = 0; s < kSteps; ++s) {
      std::vector<std::vector<std::int32_t>> texts;
      for (int m = 0; m < 2 * sharding.micro_batches; ++m) {
        const int stream = (s * kReplicas + world.rank()) * 2 * sharding.micro_batches + m;
        texts.push_back(formula_tokens(static_cast<std::uint64_t>(stream), 2 * kLength, kOdd.vocabulary));
      }
      std::vector<MicroBatch> batches;
      for (std::size_t m = 0; m < texts.size(); m += 2) batches.push_back({texts[m], texts[m + 1], {2, kLength}});
      steps.push_back(step.take(batches, 0.01));
    }
    model.download(Gpt2::Fields::kValues);
    const std::lock_guard lock(mutex);
    add_to_whole<float>(kOdd, model.parameters<float>(), *alone, &Parameter<float>::value,
                        result.of_replica[static_cast<std::size_t>(world.rank())]);
    if (world.rank() == 0) result.steps = steps;
  });
  return result;
}

Result on_host(const ShardOptions& sharding) {
  return train(sharding,
               [](comm::Communicator& group) { return make_host_ops({.type = comm::ElementType::kFloat32}, group); });
}

Result on_device(const ShardOptions& sharding, const CudaOpsOptions& options = {}) {
  return train(sharding, [&](comm::Communicator& group) { return make_cuda_ops(options, group); });
}

TEST_F(ReplicasOnDevice, TrainAsTheHostsDoWithEachStageOfZero) {
  for (const int micro_batches : {1, 2}) {
    const Result host = on_host(zero(0, micro_batches));  // sharding changes no bit of it
    std::vector<ShardOptions> stages = {zero(0, micro_batches), zero(1, micro_batches), zero(2, micro_batches),
                                        zero(3, micro_batches)};
    if (micro_batches > 1) {
      stages.push_back(zero(2, micro_batches, ShardOptions::Reduce::kAfterEach));
      stages.push_back(zero(3, micro_batches, ShardOptions::Reduce::kAfterEach));
    }
    for (const ShardOptions& sharding : stages) {
      SCOPED_TRACE("zero " + std::to_string(sharding.zero) + ", " + std::to_string(micro_batches) + " micro-batches" +
                   (sharding.reduces_each() ? ", each reduced" : ""));
      const Result device = on_device(sharding);
      for (std::size_t s = 0; s < kSteps; ++s) {
        EXPECT_TRUE(device.steps[s].updated);
        EXPECT_NEAR(device.steps[s].loss, host.steps[s].loss, kFloatLoss) << "step " << s;
        EXPECT_NEAR(device.steps[s].gradient_norm, host.steps[s].gradient_norm,
                    kFloatTensor * host.steps[s].gradient_norm)
            << "step " << s;
        EXPECT_GT(host.steps[s].gradient_norm, kMaxNorm) << "is clipped";
      }
      for (const Tensors& replica : device.of_replica) worst_difference(replica, host.of_replica[0], kFloatTensor);
      EXPECT_EQ(device.of_replica[0], device.of_replica[1]);
    }
  }
}

TEST_F(ReplicasOnDevice, OffloadOfParametersAndMomentsChangesNoBit) {
  CudaOpsOptions narrow;
  narrow.precision.compute = Precision::kBfloat16;
  for (const CudaOpsOptions& options : {CudaOpsOptions{}, narrow}) {
    const Result of_zero_3 = on_device(zero(3, 1), options);
    for (const int stage : {0, 1, 2, 3}) {
      ShardOptions sharding = zero(stage, 1);
      const Result of_stage = stage == 3 ? of_zero_3 : on_device(sharding, options);
      for (const bool values : {false, true}) {
        // 16-bit parameters in the rooms of blocks have the results of ZeRO 3, which has such rooms, too.
        const bool in_rooms = values && options.precision.compute == Precision::kBfloat16;
        const Result& want = in_rooms ? of_zero_3 : of_stage;
        sharding.offloads_moments = true;
        sharding.offloads_values = values;
        sharding.offload_piece_elems = 1000;
        const Result got = on_device(sharding, options);
        EXPECT_EQ(got.of_replica, want.of_replica) << "zero " << stage << ", " << values;
        EXPECT_EQ(got.steps.back().loss, want.steps.back().loss) << "zero " << stage << ", " << values;
      }
    }
  }
}

}  // namespace
}  // namespace droptest::models::data_parallel_cuda_test
