// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/stage_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/kernels/narrow_floats.h"
#include "models/ops/cuda_ops.h"
#include "models/ops/host_ops.h"
#include "models/ops/planner_ops.h"
#include "sim/error.h"
#include "tests/models/planned_buffers.h"

namespace droptest::models::stage_plan_test {
namespace {

constexpr ModelPrecision kBf16Compute{Precision::kBfloat16, Precision::kFloat32};
constexpr ModelPrecision kBf16Messages{Precision::kFloat32, Precision::kBfloat16};
constexpr ModelPrecision kFp16{Precision::kFloat16, Precision::kFloat16};

/// Every form that this build has, on a rank of two.
std::vector<std::unique_ptr<OpsForm>> forms() {
  std::vector<std::unique_ptr<OpsForm>> all;
  all.push_back(host_ops_form({}, 2));
  all.push_back(host_ops_form({.precision = kBf16Messages}, 2));
  all.push_back(host_ops_form({.type = comm::ElementType::kFloat64}, 2));
  all.push_back(host_ops_form({.precision = kBf16Compute}, 2));
  all.push_back(host_ops_form({.precision = kFp16}, 2));
  try {
    for (const ModelPrecision& precision : {ModelPrecision{}, kBf16Compute, kBf16Messages, kFp16}) {
      all.push_back(cuda_ops_form({.precision = precision}, 2));
    }
  } catch (const ConfigError&) {
    // This build has no CUDA.
  }
  return all;
}

StagePlan plan(const OpsForm& form, int layers, std::int64_t batch, Keep keep, SlotOptions options = {}) {
  const Gpt2Config config{layers, 64, 4, 16, 97};
  if (!options.recompute.empty()) options.recompute.resize(static_cast<std::size_t>(layers), options.recompute[0]);
  return {config, StageRange::whole(config), 2, 1, form, {batch, 16}, keep, {}, options};
}

TEST(StagePlan, NothingThatIsInUseAtOnceLiesOnAnother) {
  for (const auto& form : forms()) {
    for (const auto& [keep, options] :
         {std::pair(Keep::kForBackward, SlotOptions{}), std::pair(Keep::kNothing, SlotOptions{}),
          std::pair(Keep::kForBackward, SlotOptions{.recompute = {Recompute::kSelective}}),
          std::pair(Keep::kForSplitBackward, SlotOptions{.recompute = {Recompute::kBlock}}),
          std::pair(Keep::kForBackward, SlotOptions{.recompute = {Recompute::kBlock}, .place = {.offloaded = true}})}) {
      const StagePlan stage = plan(*form, 3, 2, keep, options);
      for (const MemoryPlan* memory : {&stage.saved(), &stage.working()}) {
        for (std::size_t i = 0; i < memory->buffers().size(); ++i) {
          const PlannedBuffer& a = memory->buffers()[i];
          EXPECT_EQ(memory->offset(i) % MemoryPlan::kAlignmentBytes, 0U);
          for (std::size_t k = 0; k < i; ++k) {
            const PlannedBuffer& b = memory->buffers()[k];
            if (!in_use_at_once(a, b)) continue;
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
  const std::uint64_t statistics = rows * (2 * 2 + 2 * 4 / 2);  // statistics of two norms, and of the rows of two heads
  EXPECT_EQ((saved(5) - saved(1)) / 4, sizeof(float) * (numbers + statistics));
}

// docs/memory.md has these numbers: of a block, beyond the statistics of rows.
TEST(StagePlan, RecomputedBlocksSaveWhatTheDocumentationSays) {
  const auto host = host_ops_form({}, 2);
  const std::uint64_t rows = 4 * 16;
  const auto of_block = [&](const SlotOptions& options) {
    const auto saved = [&](int layers) { return plan(*host, layers, 4, Keep::kForBackward, options).saved().bytes(); };
    return (saved(5) - saved(1)) / 4;
  };
  const std::uint64_t number = sizeof(float) * rows;
  EXPECT_EQ(of_block({.recompute = {Recompute::kSelective}}), number * (2 * 64 + (3 + 4) * 64 / 2));
  EXPECT_EQ(of_block({.recompute = {Recompute::kBlock}}), number * 2 * 64);
  EXPECT_EQ(of_block({.recompute = {Recompute::kBlock}, .place = {.cut = true}}), number * 2 * 64 / 2);
  EXPECT_EQ(of_block({.recompute = {Recompute::kBlock}, .place = {.offloaded = true}}), 0U);
}

// Recomputation needs the memory of one block, however many blocks there are.
TEST(StagePlan, RecomputedBlocksShareTheirWorkingMemory) {
  for (const auto& form : forms()) {
    for (const SlotOptions& options :
         {SlotOptions{.recompute = {Recompute::kSelective}}, SlotOptions{.recompute = {Recompute::kBlock}},
          SlotOptions{.recompute = {Recompute::kBlock}, .place = {.cut = true, .offloaded = true}}}) {
      const std::uint64_t shallow = plan(*form, 3, 4, Keep::kForBackward, options).working().bytes();
      EXPECT_EQ(plan(*form, 12, 4, Keep::kForBackward, options).working().bytes(), shallow);
    }
  }
}

TEST(PlannerOps, ABufferHoldsNothingBetweenPasses) {
  const auto form = host_ops_form({}, 1);
  std::vector<comm::DryCall> calls;
  comm::DryCommunicator group(1, 0, calls);
  const auto planner = make_planner_ops(*form, group);
  PlannerOps& ops = *planner;
  const comm::Tensor both = ops.buffer("both", comm::ElementType::kFloat32, 8);
  const comm::Tensor last = ops.buffer("last", comm::ElementType::kFloat32, 8);
  const comm::Tensor between = ops.buffer("between", comm::ElementType::kFloat32, 8);
  ops.zero(both);
  ops.zero(between);
  ops.begin_pass();
  ops.zero(last);
  ops.zero(both);
  const std::vector<PlannedBuffer>& buffers = ops.buffers();
  EXPECT_FALSE(in_use_at_once(buffers[0], buffers[1]));
  EXPECT_FALSE(in_use_at_once(buffers[0], buffers[2]));
  EXPECT_TRUE(in_use_at_once(buffers[0], buffers[0]));
  EXPECT_EQ(MemoryPlan(buffers).bytes(), MemoryPlan::kAlignmentBytes);
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
  EXPECT_LE(b.attention[0].grad_qkv.bytes.data() + b.attention[0].grad_qkv.bytes.size(), memory.data() + memory.size());
  EXPECT_GE(a.attention[0].grad_qkv.bytes.data(), memory.data() + 2 * stage.saved().bytes());
}

TEST(StagePlan, ItsPurposeNamesTheBatchAndTheLargest) {
  const auto host = host_ops_form({}, 2);
  const std::string purpose = plan(*host, 2, 4, Keep::kForBackward).purpose();
  EXPECT_THAT(purpose, testing::HasSubstr("a batch of 4 x 16 tokens"));
  EXPECT_THAT(purpose, testing::HasSubstr("residual stream"));
}

TEST(PlannerOps, ABufferOfAReductionIsInUseUntilItIsJoined) {
  const auto form = host_ops_form({}, 2);
  std::vector<comm::DryCall> calls;
  comm::DryCommunicator group(2, 0, calls);
  const auto planner = make_planner_ops(*form, group);
  PlannerOps& ops = *planner;
  const comm::Tensor sum = ops.buffer("sum", comm::ElementType::kFloat32, 8);
  const comm::Tensor message = ops.buffer("message", comm::ElementType::kBfloat16, 8);
  const comm::Tensor other = ops.buffer("other", comm::ElementType::kFloat32, 8);
  ops.begin_sum(sum, message, {});
  ops.zero(other);
  ops.join();
  ops.zero(elements(other, 4, 4));
  const std::vector<PlannedBuffer>& buffers = ops.buffers();
  EXPECT_TRUE(in_use_at_once(buffers[0], buffers[2]));
  EXPECT_TRUE(in_use_at_once(buffers[1], buffers[2]));
  EXPECT_EQ(buffers[0].last_time, buffers[1].last_time);
  EXPECT_GT(buffers[2].last_time, buffers[0].last_time) << "a part of a buffer is the buffer";
}

/// Makes tensors, one of them with one element too few.
class Tensors {
 public:
  Tensors(PlannerOps& ops, int short_one) : ops_(ops), short_one_(short_one) {}
  comm::Tensor operator()(std::int64_t elems) {
    return ops_.buffer("test", comm::ElementType::kFloat32, static_cast<std::uint64_t>(elems - less()));
  }
  TokenIds tokens(std::int64_t count) { return ops_.token_buffer("test", static_cast<std::uint64_t>(count - less())); }
  int handed_out() const { return handed_out_; }

 private:
  std::int64_t less() { return handed_out_++ == short_one_ ? 1 : 0; }

  PlannerOps& ops_;
  int short_one_;
  int handed_out_ = 0;
};

/// A tensor of that size without memory.
comm::Tensor absent(comm::ElementType type, std::uint64_t elems) {
  return {type, {static_cast<std::byte*>(nullptr), static_cast<std::size_t>(elems * comm::element_bytes(type))}};
}

constexpr std::int64_t kFormElems = 7;
/// All sizes that an implementation chooses are kFormElems.
class EvenForm final : public OpsForm {
 public:
  OpsTypes types() const override { return {.operands = comm::ElementType::kBfloat16}; }
  KernelDevice device() const override { return KernelDevice::kHost; }
  std::uint64_t attention_statistics_elems(const AttentionShape& /*shape*/) const override { return kFormElems; }
  std::uint64_t attention_forward_scratch_elems(const AttentionShape& /*shape*/) const override { return kFormElems; }
  std::uint64_t attention_backward_scratch_elems(const AttentionShape& /*shape*/) const override { return kFormElems; }
  std::uint64_t norm_scratch_elems(std::int64_t /*rows*/, std::int64_t /*width*/) const override { return kFormElems; }
  bool gelu_needs_room() const override { return true; }
  bool gelu_from_projection() const override { return true; }
  bool gelu_sums_bias() const override { return true; }
  LogitChunks logit_chunks(std::int64_t rows, std::int64_t columns, std::int64_t /*largest*/) const override {
    return {columns, rows};
  }
  bool fuses_cross_entropy() const override { return true; }
};

TEST(PlannerOps, RefuseEachTensorThatIsTooSmall) {
  constexpr std::int64_t kRows = 6;
  constexpr std::int64_t kWidth = 8;
  constexpr std::int64_t kElems = kRows * kWidth;
  constexpr std::int64_t kOutputs = 5;
  constexpr ProductShape kProduct{kRows, kWidth, kOutputs};
  constexpr AttentionShape kAttention{2, 3, 2, 4};
  const auto operand = [](comm::Tensor tensor) { return Operand{tensor, 1, tensor}; };
  const auto read = [](comm::Tensor tensor) { return Weight{tensor, tensor, {}}; };
  const auto written = [](comm::Tensor tensor) { return Weight{{}, {}, tensor}; };
  using Call = std::function<void(PlannerOps&, Tensors&)>;
  const std::vector<std::pair<std::string, Call>> calls = {
      {"convert", [&](auto& ops, auto& t) { ops.convert(absent(comm::ElementType::kBfloat16, kElems), t(kElems)); }},
      {"embedding_forward",
       [&](auto& ops, auto& t) {
         ops.embedding_forward({nullptr, kRows}, {3, 4}, t(4 * kWidth), kWidth, t(kElems));
       }},
      {"embedding_backward",
       [&](auto& ops, auto& t) {
         ops.embedding_backward({nullptr, kRows}, {3, 4}, 0, t(kElems), kWidth, t(4 * kWidth));
       }},
      {"add_positions", [&](auto& ops, auto& t) { ops.add_positions(t(3 * kWidth), 2, 3, kWidth, t(kElems)); }},
      {"positions_backward",
       [&](auto& ops, auto& t) { ops.positions_backward(t(kElems), 2, 3, kWidth, t(3 * kWidth)); }},
      {"residual_forward",
       [&](auto& ops, auto& t) {
         ops.residual_forward({t(kElems), t(kElems), t(kWidth), {}, {}, kRows, kWidth, t(kElems), {}, {}, {}});
       }},
      {"residual_backward",
       [&](auto& ops, auto& t) {
         ops.residual_backward({{}, {}, {}, {}, {}, kRows, kWidth, {}, t(kElems), {}, {}, t(kWidth), {}, {}});
       }},
      {"norm_forward",
       [&](auto& ops, auto& t) {
         ops.norm_forward({t(kElems), t(kElems), t(kWidth), t(kWidth), t(kWidth), kRows, kWidth, t(kElems), t(kElems),
                           t(kRows), t(kRows)});
       }},
      {"norm_backward",
       [&](auto& ops, auto& t) {
         ops.norm_backward({t(kElems), t(kElems), t(kRows), t(kRows), t(kWidth), kRows, kWidth, t(kElems), t(kElems),
                            t(kWidth), t(kWidth), t(kWidth), GradientMode::kSet, t(kFormElems)});
       }},
      {"operand", [&](auto& ops, auto& t) { ops.operand(absent(comm::ElementType::kFloat32, kElems), 1, t(kElems)); }},
      {"linear_forward",
       [&](auto& ops, auto& t) {
         const Weight bias = read(t(kOutputs));
         ops.linear_forward(kProduct, operand(t(kElems)), read(t(kWidth * kOutputs)), &bias, t(kRows * kOutputs));
       }},
      {"linear_forward with gaps",
       [&](auto& ops, auto& t) {
         ops.linear_forward({kRows, kWidth, kOutputs, WeightLayout::kOutputsByInputs, 9}, operand(t(kElems)),
                            read(t(kWidth * kOutputs)), nullptr, t(kRows * 9));
       }},
      {"linear_backward_input",
       [&](auto& ops, auto& t) {
         ops.linear_backward_input(kProduct, operand(t(kRows * kOutputs)), read(t(kWidth * kOutputs)), t(kElems));
       }},
      {"linear_backward_weight",
       [&](auto& ops, auto& t) {
         const Weight bias = written(t(kOutputs));
         ops.linear_backward_weight(kProduct, operand(t(kElems)), {t(kRows * kOutputs), 1, t(kRows * kOutputs)},
                                    GradientMode::kSet, written(t(kWidth * kOutputs)), &bias);
       }},
      {"gelu_forward",
       [&](auto& ops, auto& t) {
         ops.gelu_forward(kProduct, operand(t(kElems)), read(t(kWidth * kOutputs)), read(t(kOutputs)),
                          t(kRows * kOutputs), t(kRows * kOutputs));
       }},
      {"gelu_of_projection",
       [&](auto& ops, auto& t) {
         ops.gelu_of_projection(kProduct, t(kRows * kOutputs), read(t(kOutputs)), t(kRows * kOutputs),
                                t(kRows * kOutputs));
       }},
      {"gelu_backward_input",
       [&](auto& ops, auto& t) {
         ops.gelu_backward_input(kProduct, operand(t(kRows * kOutputs)), read(t(kWidth * kOutputs)), t(kElems),
                                 GradientMode::kSet, written(t(kWidth)), t(kElems));
       }},
      {"attention_forward",
       [&](auto& ops, auto& t) {
         ops.attention_forward(t(3 * kElems), kAttention, {}, t(kFormElems), t(kElems), t(kFormElems));
       }},
      {"attention_backward",
       [&](auto& ops, auto& t) {
         ops.attention_backward(t(kElems), t(3 * kElems), t(kElems), t(kFormElems), kAttention, {}, t(3 * kElems),
                                t(kFormElems));
       }},
      {"row_maxima",
       [&](auto& ops, auto& t) {
         ops.row_maxima(
             {t(kElems), kRows, kWidth, {0, kWidth}, t.tokens(kRows), t(kRows), t(kRows), t(kRows), t(kRows)});
       }},
      {"begin_sum",
       [&](auto& ops, auto& t) { ops.begin_sum(absent(comm::ElementType::kBfloat16, kElems), t(kElems), {}); }},
  };
  const EvenForm form;
  for (const auto& [name, call] : calls) {
    int short_one = -1;
    int tensors = 0;
    do {
      std::vector<comm::DryCall> sent;
      comm::DryCommunicator group(2, 0, sent);
      const auto ops = make_planner_ops(form, group);
      Tensors t(*ops, short_one);
      if (short_one < 0) {
        EXPECT_NO_THROW(call(*ops, t)) << name;
        tensors = t.handed_out();
      } else {
        EXPECT_THROW(call(*ops, t), CheckError) << name << ": tensor " << short_one << " of those of the call";
      }
    } while (++short_one < tensors);
    EXPECT_GT(tensors, 0);
  }
}

TEST(StagePlan, ATensorWithTooFewElementsIsNamed) {
  const auto form = host_ops_form({}, 1);
  std::vector<comm::DryCall> calls;
  comm::DryCommunicator group(1, 0, calls);
  const auto ops = make_planner_ops(*form, group);
  const auto floats = [&](const char* name, std::uint64_t elems) {
    return ops->buffer(name, comm::ElementType::kFloat32, elems);
  };
  const comm::Tensor weight = floats("arena", 6 * 8 - 1);
  ops->name_tensor(weight, "h.0.mlp.c_fc.weight");
  const Weight short_by_one{weight, weight, {}};
  try {
    ops->linear_forward({4, 6, 8}, ops->operand(floats("input", 24), 1, {}), short_by_one, nullptr,
                        floats("output", 32));
    FAIL() << "no error";
  } catch (const CheckError& error) {
    EXPECT_THAT(error.what(),
                testing::HasSubstr("linear layer's weight \"h.0.mlp.c_fc.weight\": got 47 elements, want 48"));
  }
}

}  // namespace
}  // namespace droptest::models::stage_plan_test
