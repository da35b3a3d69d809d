// SPDX-License-Identifier: Apache-2.0
// Compares every entry of the kernel registry with the reference in double, for shapes that no block size divides.
#include "models/ops/kernel_registry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "models/kernels/cudnn_attention.h"
#include "tests/models/every_implementation.h"
#include "tests/models/ops_bench.h"

namespace droptest::models {

/// Prints parameters in the names of failed tests; GoogleTest looks for it in the namespace of the type.
static void PrintTo(const KernelEntry& entry, std::ostream* out) { *out << entry.operation << " " << entry.name; }

}  // namespace droptest::models

namespace droptest::models::kernel_registry_test {
namespace {

using comm::ElementType;
using comm::Tensor;

/// Room for a result: a kernel that does not write it, or reads it, gives NaN.
Tensor unset(Bench& b, std::int64_t elems, ElementType type) {
  return b.tensor(Numbers(static_cast<std::size_t>(elems), std::numeric_limits<double>::quiet_NaN()), type);
}

void attention(Bench& b, const AttentionShape& shape) {
  const std::int64_t rows = shape.batch * shape.length;
  const std::int64_t width = shape.heads * shape.head_width;
  const OpsForm& form = b.ops.form();
  const auto room = [&](std::uint64_t elems, ElementType type) {
    return unset(b, static_cast<std::int64_t>(elems), type);
  };
  const Tensor qkv = b.activations(1, 3 * rows * width);
  const Tensor statistics = room(form.attention_statistics_elems(shape), b.types.statistics);
  const Tensor output = unset(b, rows * width, b.types.activations);
  b.ops.attention_forward(qkv, shape, {}, statistics, output,
                          room(form.attention_forward_scratch_elems(shape), b.types.activations));
  b.keep(output);
  const Tensor grad_qkv = unset(b, 3 * rows * width, b.types.activations);
  b.ops.attention_backward(b.activations(2, rows * width), qkv, output, statistics, shape, {}, grad_qkv,
                           room(form.attention_backward_scratch_elems(shape), b.types.statistics));
  b.keep(grad_qkv);
}

struct Extents {
  std::int64_t rows, inputs, outputs;
};

void matmul(Bench& b, const Extents& e) {
  const ProductShape shape{e.rows, e.inputs, e.outputs};
  const Weight weight = b.weight(3, e.inputs * e.outputs);
  const Weight bias = b.weight(4, e.outputs);
  const Operand input = b.operand(b.activations(5, e.rows * e.inputs));
  const Operand grad_output = b.operand(b.activations(6, e.rows * e.outputs));
  const Tensor output = unset(b, e.rows * e.outputs, b.types.activations);
  const Tensor grad_input = unset(b, e.rows * e.inputs, b.types.activations);
  for (const Weight* with : {&bias, static_cast<const Weight*>(nullptr)}) {
    b.ops.linear_forward(shape, input, weight, with, output);
    b.keep(output);
  }
  b.ops.linear_backward_input(shape, grad_output, weight, grad_input);
  b.keep(grad_input);
  for (const GradientMode mode : {GradientMode::kAdd, GradientMode::kSet}) {
    b.ops.linear_backward_weight(shape, input, grad_output, mode, weight, &bias);
    b.keep(weight.gradient);
    b.keep(bias.gradient);
  }
  const Tensor saved = unset(b, e.rows * e.outputs, b.types.activations);
  b.ops.gelu_forward(shape, input, weight, bias, saved, output);
  b.keep(output);
  const ProductShape behind{e.rows, e.outputs, e.inputs};
  const Tensor grad_gelu = unset(b, e.rows * e.outputs, b.types.activations);
  b.ops.gelu_backward_input(behind, b.operand(b.activations(7, e.rows * e.inputs)), weight, saved, GradientMode::kSet,
                            bias, grad_gelu);
  b.keep(grad_gelu);
  // The linear layer of the LM head: the weight's rows are outputs, rows of the result have gaps, and gradients have a
  // factor.
  const std::int64_t stride = b.ops.form().logit_chunks(e.rows, e.outputs, e.outputs).stride;
  const ProductShape of_head{e.rows, e.inputs, e.outputs, WeightLayout::kOutputsByInputs, stride};
  const Tensor logits = b.empty(e.rows * stride, b.types.activations);
  b.ops.linear_forward(of_head, input, weight, nullptr, logits);
  for (std::int64_t row = 0; row < e.rows; ++row) b.keep(elements(logits, row * stride, e.outputs));
  const Operand grad_logits = b.operand(logits, 0.25);
  b.ops.linear_backward_input(of_head, grad_logits, weight, grad_input);
  b.keep(grad_input);
  b.ops.linear_backward_weight(of_head, input, grad_logits, GradientMode::kAdd, weight, nullptr);
  b.keep(weight.gradient);
}

void cross_entropy(Bench& b, const Extents& e) {
  const std::int64_t columns = e.outputs;
  const std::int64_t stride = b.ops.form().logit_chunks(e.rows, columns, columns).stride;
  Numbers logits(static_cast<std::size_t>(e.rows * stride), std::numeric_limits<double>::quiet_NaN());
  std::vector<std::int32_t> targets;
  for (std::int64_t row = 0; row < e.rows; ++row) {
    targets.push_back(row % 5 == 3 ? kIgnoredTarget : static_cast<std::int32_t>(row * 7 % columns));
    for (std::int64_t i = 0; i < columns; ++i) {
      logits[static_cast<std::size_t>(row * stride + i)] = 8 * mixed(8, static_cast<std::uint64_t>(row * columns + i));
    }
  }
  LogitBlock block;
  block.logits = b.tensor(logits, b.types.activations);
  block.rows = e.rows;
  block.stride = stride;
  block.range = {0, columns};
  block.targets = b.tokens(targets);
  for (Tensor* tensor : {&block.largest, &block.sums, &block.predicted}) *tensor = b.empty(e.rows, b.types.statistics);
  block.losses = b.empty(e.rows, b.types.losses);
  // The calls of LinearHead.
  if (b.ops.form().fuses_cross_entropy()) {
    b.ops.cross_entropy(block, Logits::kToGradient);
  } else {
    b.ops.row_maxima(block);
    b.ops.exponential_sums(block);
    b.ops.losses_of_sums(block);
    b.ops.logits_to_gradient(block);
  }
  b.keep(block.losses);
  for (std::int64_t row = 0; row < e.rows; ++row) b.keep(elements(block.logits, row * stride, columns));
}

struct Case {
  std::function<void(Bench&)> run;
  std::int64_t head_width = 0;  ///< head width of attention
  bool is_for(const KernelEntry& entry, ElementType type) const {
    return entry.takes == nullptr || entry.takes(head_width, type);
  }
};

/// Operation -> its cases.
std::map<std::string_view, std::vector<Case>> all_cases() {
  std::map<std::string_view, std::vector<Case>> cases;
  for (const AttentionShape& shape :
       {AttentionShape{1, 1, 1, 1}, AttentionShape{2, 1, 3, 4}, AttentionShape{1, 2, 3, 1}, AttentionShape{2, 65, 3, 5},
        AttentionShape{1, 64, 2, 3}, AttentionShape{1, 130, 1, 8}, AttentionShape{1, 37, 2, 33},
        AttentionShape{1, 67, 1, 63}, AttentionShape{2, 19, 2, 64}, AttentionShape{3, 5, 3, 16},
        AttentionShape{1, 3, 1, 128}, AttentionShape{0, 5, 2, 4}, AttentionShape{0, 5, 2, 8}}) {
    cases["attention"].push_back({[=](Bench& b) { attention(b, shape); }, shape.head_width});
  }
  for (const Extents& extents : {Extents{1, 1, 1}, Extents{1, 200, 3}, Extents{3, 5, 7}, Extents{65, 33, 129},
                                 Extents{130, 1, 3}, Extents{7, 64, 197}}) {
    cases["matmul"].push_back({[=](Bench& b) { matmul(b, extents); }});
  }
  for (const Extents& extents : {Extents{1, 0, 1}, Extents{6, 0, 10}, Extents{65, 0, 129}, Extents{3, 0, 1001}}) {
    cases["cross_entropy"].push_back({[=](Bench& b) { cross_entropy(b, extents); }});
  }
  return cases;
}

/// |difference| / |reference|: rounding of the narrowest type on the way, over sums of a few hundred terms.
double tolerance(ElementType type) {
  switch (type) {
    case ElementType::kFloat64:
      return 1e-13;
    case ElementType::kFloat32:
      return 2e-6;
    case ElementType::kFloat16:
      return 2e-3;
    default:
      return 1e-2;
  }
}

std::unique_ptr<Ops> ops_with(const KernelEntry& entry, ElementType type, int threads, comm::Communicator& group) {
  const KernelChoices kernels{{std::string(entry.operation), {std::string(entry.name)}}};
  ModelPrecision precision;
  if (type == ElementType::kBfloat16) precision.compute = Precision::kBfloat16;
  if (type == ElementType::kFloat16) precision.compute = Precision::kFloat16;
  if (entry.device == KernelDevice::kCuda) return make_cuda_ops({.precision = precision, .kernels = kernels}, group);
  const bool is_double = type == ElementType::kFloat64;
  return make_host_ops({.type = is_double ? ElementType::kFloat64 : ElementType::kFloat32,
                        .precision = precision,
                        .threads = threads,
                        .kernels = kernels},
                       group);
}

Numbers results_of(Ops& ops, const Case& one) {
  Bench bench(ops);
  one.run(bench);
  return bench.results;
}

std::vector<KernelEntry> entries_here() {
  const bool has_device = comm::survey_devices().absence.empty();
  std::vector<KernelEntry> entries;
  for (const KernelEntry& entry : kernel_entries()) {
    // Machines that must show all of CUDA need cuDNN, too.
    const bool may_lack = entry.name == "cudnn" && std::getenv("DROPTEST_REQUIRE_CUDA") == nullptr;
    if (may_lack && !cudnn_library().absence.empty()) continue;
    if (has_device || entry.device == KernelDevice::kHost) entries.push_back(entry);
  }
  return entries;
}

/// Whether all kernels of the entry's operation and device take the case.
bool is_for_all(const Case& one, const KernelEntry& entry, ElementType type) {
  return std::ranges::all_of(kernel_entries(), [&](const KernelEntry& other) {
    return other.operation != entry.operation || other.device != entry.device || one.is_for(other, type);
  });
}

std::string name_of(const testing::TestParamInfo<KernelEntry>& tested) {
  return std::string(tested.param.operation) + "_" + std::string(tested.param.name) +
         (tested.param.device == KernelDevice::kHost ? "_cpu" : "_cuda");
}

class EveryKernel : public testing::TestWithParam<KernelEntry> {};

TEST_P(EveryKernel, AgreesWithTheReferenceInDouble) {
  const KernelEntry& entry = GetParam();
  const auto cases = all_cases();
  ASSERT_TRUE(cases.contains(entry.operation)) << "no cases for " << entry.operation;
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    const std::unique_ptr<Ops> reference = make_host_ops(
        {.type = ElementType::kFloat64, .kernels = {{"attention", {"reference"}}, {"matmul", {"reference"}}}}, group);
    for (const Case& one : cases.at(entry.operation)) {
      const Numbers want = results_of(*reference, one);
      for (const ElementType type : entry.types) {
        if (!one.is_for(entry, type)) continue;
        const std::unique_ptr<Ops> ops = ops_with(entry, type, 1, group);
        const Numbers got = results_of(*ops, one);
        ASSERT_EQ(got.size(), want.size());
        EXPECT_LE(relative_difference(got, want), tolerance(type))
            << comm::element_type_name(type) << ", case " << &one - cases.at(entry.operation).data();
      }
    }
  });
}

TEST_P(EveryKernel, HasTheSameBitsOnAnyNumberOfThreadsAndAgain) {
  const KernelEntry& entry = GetParam();
  const auto cases = all_cases();
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    for (const ElementType type : entry.types) {
      const std::unique_ptr<Ops> one_thread = ops_with(entry, type, 1, group);
      const std::unique_ptr<Ops> three_threads = ops_with(entry, type, 3, group);
      for (const Case& one : cases.at(entry.operation)) {
        if (!one.is_for(entry, type)) continue;
        const Numbers want = results_of(*one_thread, one);
        EXPECT_EQ(results_of(*three_threads, one), want);
        EXPECT_EQ(results_of(*one_thread, one), want);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryKernel, testing::ValuesIn(entries_here()), name_of);

TEST(KernelRegistry, HasEachNameOnceAndSaysWhatItIs) {
  std::set<std::tuple<std::string_view, std::string_view, KernelDevice>> names;
  for (const KernelEntry& entry : kernel_entries()) {
    EXPECT_TRUE(names.emplace(entry.operation, entry.name, entry.device).second) << entry.name;
    EXPECT_FALSE(entry.summary.empty() || entry.types.empty()) << entry.name;
  }
  EXPECT_EQ(kernel_names("attention", KernelDevice::kHost), (std::vector<std::string>{"flash", "reference"}));
  EXPECT_EQ(kernel_names("attention", KernelDevice::kCuda), (std::vector<std::string>{"flash", "cudnn", "plain"}));
  EXPECT_TRUE(kernel_names("cross_entropy", KernelDevice::kHost).empty());
}

TEST(KernelRegistry, TheDefaultIsTheFirst) {
  EXPECT_EQ(kernel_name({}, "attention", KernelDevice::kHost), "flash");
  EXPECT_EQ(kernel_name({}, "matmul", KernelDevice::kHost), "onednn");
  EXPECT_EQ(kernel_name({}, "matmul", KernelDevice::kCuda), "cublaslt");
  EXPECT_EQ(kernel_name({{"matmul", {"eigen"}}}, "matmul", KernelDevice::kHost), "eigen");
}

TEST(KernelRegistry, RefusesWhatItDoesNotHave) {
  const auto error_of = [](const KernelChoices& kernels, KernelDevice device) -> std::string {
    try {
      check_kernels(kernels, device);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_of({{"attention", {"reference"}}, {"matmul", {"eigen"}}}, KernelDevice::kHost), "");
  EXPECT_EQ(error_of({{"attention", {"plain"}}}, KernelDevice::kHost),
            "/kernels/attention: got \"plain\", want one of flash, reference");
  EXPECT_NE(error_of({{"cross_entropy", {"fused"}}}, KernelDevice::kHost).find("/kernels/cross_entropy"),
            std::string::npos);
  EXPECT_EQ(error_of({{"attention", {"", "a.so"}}}, KernelDevice::kCuda),
            "/kernels/attention/library: got \"a.so\" with device \"cuda\", want one of flash, cudnn, plain");
  comm::run_ranks(1, kTestTimeout, [](comm::Communicator& group) {
    EXPECT_THROW(make_host_ops({.kernels = {{"gelu", {"reference"}}}}, group), ConfigError);
  });
}

TEST(KernelRegistry, TheKernelThatIsChosenRuns) {
  const auto cases = all_cases();
  std::map<std::pair<std::string_view, KernelDevice>, std::set<Numbers>> seen;
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    for (const KernelEntry& entry : entries_here()) {
      const ElementType type = entry.device == KernelDevice::kCuda ? ElementType::kBfloat16 : ElementType::kFloat32;
      const std::unique_ptr<Ops> ops = ops_with(entry, type, 1, group);
      Numbers all{ops->form().fuses_cross_entropy() ? 1.0 : 0.0};  // only numbers with equal bits are compared
      for (const Case& one : cases.at(entry.operation)) {
        if (!is_for_all(one, entry, type)) continue;
        const Numbers results = results_of(*ops, one);
        all.insert(all.end(), results.begin(), results.end());
      }
      EXPECT_TRUE((seen[{entry.operation, entry.device}].insert(all).second))
          << entry.name << " has the bits of another kernel of " << entry.operation;
    }
  });
}

// Each kernel has its own form: the reference saves nothing, and needs memory for all pairs of tokens.
TEST(KernelRegistry, AKernelSaysWhatMemoryItNeeds) {
  const AttentionShape shape{2, 10, 3, 4};
  const auto flash = host_ops_form({.threads = 2}, 1);
  const auto reference = host_ops_form({.threads = 2, .kernels = {{"attention", {"reference"}}}}, 1);
  EXPECT_EQ(flash->attention_statistics_elems(shape), 2U * 2 * 3 * 10);
  EXPECT_EQ(reference->attention_statistics_elems(shape), 0U);
  EXPECT_EQ(reference->attention_forward_scratch_elems(shape), 2U * 10);
  EXPECT_EQ(reference->attention_backward_scratch_elems(shape), 2U * 2 * 10 * 10);
}

}  // namespace
}  // namespace droptest::models::kernel_registry_test
