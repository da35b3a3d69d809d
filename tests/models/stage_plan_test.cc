// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/stage_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "models/kernels/bf16.h"
#include "models/ops/cuda_ops.h"
#include "models/ops/host_ops.h"
#include "models/ops/planner_ops.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

constexpr ModelPrecision kBf16Compute{Precision::kBfloat16, Precision::kFloat32};
constexpr ModelPrecision kBf16Messages{Precision::kFloat32, Precision::kBfloat16};

/// Every form that this build has, on a rank of two.
std::vector<std::unique_ptr<OpsForm>> forms() {
  std::vector<std::unique_ptr<OpsForm>> all;
  all.push_back(host_ops_form({}, 2));
  all.push_back(host_ops_form({.precision = kBf16Messages}, 2));
  all.push_back(host_ops_form({.type = comm::ElementType::kFloat64}, 2));
  if (has_bf16_products()) all.push_back(host_ops_form({.precision = kBf16Compute}, 2));
  try {
    for (const ModelPrecision& precision : {ModelPrecision{}, kBf16Compute, kBf16Messages}) {
      all.push_back(cuda_ops_form({.precision = precision}, 2));
    }
  } catch (const ConfigError&) {
    // This build has no CUDA.
  }
  return all;
}

StagePlan plan(const OpsForm& form, int layers, std::int64_t batch, Keep keep) {
  const Gpt2Config config{layers, 64, 4, 16, 97};
  return {config, StageRange::whole(config), 2, 1, form, {batch, 16}, keep};
}

bool meet(const PlannedBuffer& a, const PlannedBuffer& b) {
  return a.first_time <= b.last_time && b.first_time <= a.last_time;
}

TEST(StagePlan, NothingThatIsInUseAtOnceLiesOnAnother) {
  for (const auto& form : forms()) {
    for (const Keep keep : {Keep::kForBackward, Keep::kNothing}) {
      const StagePlan stage = plan(*form, 3, 2, keep);
      for (const MemoryPlan* memory : {&stage.saved(), &stage.working()}) {
        for (std::size_t i = 0; i < memory->buffers().size(); ++i) {
          const PlannedBuffer& a = memory->buffers()[i];
          EXPECT_EQ(memory->offset(i) % MemoryPlan::kAlignmentBytes, 0U);
          for (std::size_t k = 0; k < i; ++k) {
            const PlannedBuffer& b = memory->buffers()[k];
            if (!meet(a, b)) continue;
            EXPECT_TRUE(memory->offset(i) + a.bytes <= memory->offset(k) ||
                        memory->offset(k) + b.bytes <= memory->offset(i))
                << a.name << " and " << b.name;
          }
        }
      }
    }
  }
}

// The norm behind a sublayer reads the sublayer's output and the residual stream before it.
TEST(StagePlan, SublayerOutputsLastUntilTheNextNorm) {
  for (const auto& form : forms()) {
    for (const Keep keep : {Keep::kForBackward, Keep::kNothing}) {
      const StagePlan stage = plan(*form, 3, 2, keep);
      std::vector<PlannedBuffer> outputs;
      for (const PlannedBuffer& buffer : stage.working().buffers()) {
        if (buffer.name == "sublayer outputs") outputs.push_back(buffer);
      }
      ASSERT_EQ(outputs.size(), 6U);
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        EXPECT_GT(outputs[i].last_time, outputs[i].first_time);
        if (i > 0) {
          EXPECT_LT(outputs[i - 1].last_time, outputs[i].first_time) << "no two at once";
        }
      }
    }
  }
}

TEST(StagePlan, EvaluationTakesTheMemoryOfOneBlock) {
  for (const auto& form : forms()) {
    const std::uint64_t shallow = plan(*form, 2, 4, Keep::kNothing).bytes(1);
    const std::uint64_t deep = plan(*form, 40, 4, Keep::kNothing).bytes(1);
    EXPECT_EQ(deep, shallow);
    EXPECT_EQ(plan(*form, 40, 4, Keep::kNothing).saved().bytes(), 0U);
    EXPECT_GT(plan(*form, 40, 4, Keep::kForBackward).bytes(1), 8 * deep);
  }
}

// 4 C + (3 + 1 + 4 + 4) C / k numbers a row and block, which docs/models.md says.
TEST(StagePlan, ASlotHoldsWhatTheDocumentationSays) {
  const auto host = host_ops_form({}, 2);
  const std::uint64_t rows = 4 * 16;
  const auto saved = [&](int layers) { return plan(*host, layers, 4, Keep::kForBackward).saved().bytes(); };
  const std::uint64_t numbers = rows * (4 * 64 + 12 * 64 / 2);
  const std::uint64_t statistics = rows * (2 * 2 + 2 * 4 / 2);  // of two norms, and of two heads' rows
  EXPECT_EQ((saved(5) - saved(1)) / 4, sizeof(float) * (numbers + statistics));
}

TEST(StagePlan, SlotsHaveMemoryOfTheirOwnAndShareTheRest) {
  const auto host = host_ops_form({}, 2);
  const StagePlan stage = plan(*host, 2, 3, Keep::kForBackward);
  EXPECT_EQ(stage.bytes(3), 3 * stage.saved().bytes() + stage.working().bytes());
  std::vector<std::byte> memory(stage.bytes(2));
  const StageBuffers a = stage.placed(memory.data(), 0, 2, *host, nullptr);
  const StageBuffers b = stage.placed(memory.data(), 1, 2, *host, nullptr);
  EXPECT_EQ(b.mlp[1].activated.bytes.data() - a.mlp[1].activated.bytes.data(),
            static_cast<std::ptrdiff_t>(stage.saved().bytes()));
  EXPECT_EQ(b.logits.bytes.data(), a.logits.bytes.data());
  EXPECT_LE(b.grad_qkv.bytes.data() + b.grad_qkv.bytes.size(), memory.data() + memory.size());
  EXPECT_GE(a.grad_qkv.bytes.data(), memory.data() + 2 * stage.saved().bytes());
}

TEST(StagePlan, ItsPurposeNamesTheBatchAndTheLargest) {
  const auto host = host_ops_form({}, 2);
  const std::string purpose = plan(*host, 2, 4, Keep::kForBackward).purpose();
  EXPECT_THAT(purpose, testing::HasSubstr("a batch of 4 x 16 tokens"));
  EXPECT_THAT(purpose, testing::HasSubstr("residual stream"));
}

TEST(PlannerOps, ABufferOfAReductionIsInUseUntilItIsJoined) {
  const auto form = host_ops_form({}, 2);
  PlannerOps ops(*form, 2, 0);
  const comm::Tensor sum = ops.buffer("sum", comm::ElementType::kFloat32, 8);
  const comm::Tensor message = ops.buffer("message", comm::ElementType::kBfloat16, 8);
  const comm::Tensor other = ops.buffer("other", comm::ElementType::kFloat32, 8);
  ops.begin_sum(sum, message, {});
  ops.zero(other);
  ops.join();
  ops.zero(elements(other, 4, 4));
  const std::vector<PlannedBuffer>& buffers = ops.buffers();
  EXPECT_TRUE(meet(buffers[0], buffers[2]));
  EXPECT_TRUE(meet(buffers[1], buffers[2]));
  EXPECT_EQ(buffers[0].last_time, buffers[1].last_time);
  EXPECT_GT(buffers[2].last_time, buffers[0].last_time) << "a part of a buffer is the buffer";
}

TEST(PlannerOps, RefusesTensorsThatAreTooSmall) {
  const auto form = host_ops_form({}, 1);
  PlannerOps ops(*form, 1, 0);
  const comm::Tensor wide = ops.buffer("wide", comm::ElementType::kFloat32, 12);
  const comm::Tensor narrow = ops.buffer("narrow", comm::ElementType::kFloat32, 11);
  const Weight weight{wide, wide, wide};
  EXPECT_NO_THROW(ops.linear_forward({4, 3, 3}, {wide, 1, wide}, weight, nullptr, wide));
  EXPECT_THROW(ops.linear_forward({4, 3, 3}, {narrow, 1, narrow}, weight, nullptr, wide), CheckError);
  EXPECT_THROW(ops.linear_forward({4, 3, 3}, {wide, 1, wide}, weight, nullptr, narrow), CheckError);
}

}  // namespace
}  // namespace droptest::models
