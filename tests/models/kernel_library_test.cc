// SPDX-License-Identifier: Apache-2.0
// Kernels of shared objects: those of tests/models/attention_library.c, and objects that droptest must refuse.
#include "models/ops/kernel_library.h"

#include <gtest/gtest.h>

#include <string>

#include "models/gpt2/gpt2.h"
#include "models/ops/host_ops.h"
#include "models/ops/kernel_registry.h"
#include "tests/models/ops_bench.h"

namespace droptest::models::kernel_library_test {
namespace {

using comm::ElementType;
using comm::Tensor;

const std::string kFolder = DROPTEST_KERNEL_LIBRARIES;
const std::string kExample = kFolder + "/attention_library.so";

std::string faulty(const std::string& fault) { return kFolder + "/faulty_" + fault + ".so"; }

/// The message of a call that must throw ConfigError.
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

std::string refusal(const std::string& operation, const std::string& path) {
  return error_of([&] { (void)check_library(operation, path); });
}

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "got \"" << text << "\", want \"" << part << "\" in it";
}

/// Attention of several heads, and a GEMM.
Numbers results_with(const HostOpsOptions& options, comm::Communicator& group) {
  const std::unique_ptr<Ops> ops = make_host_ops(options, group);
  Bench b(*ops);
  const AttentionShape shape{2, 67, 3, 5};
  const std::int64_t rows = shape.batch * shape.length;
  const std::int64_t width = shape.heads * shape.head_width;
  const auto room = [&](std::uint64_t elems) { return b.empty(static_cast<std::int64_t>(elems), b.types.activations); };
  const Tensor qkv = b.activations(1, 3 * rows * width);
  const Tensor statistics = room(ops->form().attention_statistics_elems(shape));
  const Tensor output = b.activations(2, rows * width);
  const Tensor grad_qkv = b.activations(3, 3 * rows * width);
  ops->attention_forward(qkv, shape, {}, statistics, output, room(ops->form().attention_forward_scratch_elems(shape)));
  b.keep(output);
  ops->attention_backward(b.activations(4, rows * width), qkv, output, statistics, shape, {}, grad_qkv,
                          room(ops->form().attention_backward_scratch_elems(shape)));
  b.keep(grad_qkv);
  const ProductShape product{rows, width, 70};
  const Weight weight = b.weight(5, width * 70);
  const Tensor linear = b.activations(6, rows * 70);
  ops->linear_forward(product, b.operand(output), weight, nullptr, linear);
  b.keep(linear);
  ops->linear_backward_weight(product, b.operand(output), b.operand(linear), GradientMode::kAdd, weight, nullptr);
  b.keep(weight.gradient);
  return b.results;
}

TEST(KernelLibrary, TheExampleAgreesWithTheReferenceOnAnyNumberOfThreads) {
  const KernelChoices example{{"attention", {"", kExample}}, {"matmul", {"", kExample}}};
  const KernelChoices reference{{"attention", {"reference"}}, {"matmul", {"reference"}}};
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    for (const auto& [type, tolerance] :
         {std::pair(ElementType::kFloat64, 1e-13), std::pair(ElementType::kFloat32, 1e-6)}) {
      const Numbers want = results_with({.type = type, .kernels = reference}, group);
      const Numbers got = results_with({.type = type, .kernels = example}, group);
      EXPECT_LE(relative_difference(got, want), tolerance);
      EXPECT_EQ(results_with({.type = type, .threads = 3, .kernels = example}, group), got);
    }
  });
}

TEST(KernelLibrary, SaysItsNameAndItsForm) {
  EXPECT_EQ(check_library("attention", kExample), "plain C 1.0");
  EXPECT_EQ(check_library("matmul", kExample), "plain C 1.0");
  const auto form = host_ops_form({.threads = 3, .kernels = {{"attention", {"", kExample}}}}, 1);
  EXPECT_EQ(form->attention_statistics_elems({2, 10, 3, 4}), 2U * 3 * 10);
  EXPECT_EQ(form->attention_forward_scratch_elems({2, 10, 3, 4}), 3U * 10);
  EXPECT_EQ(form->attention_backward_scratch_elems({2, 10, 3, 4}), 0U);
}

TEST(KernelLibrary, RefusalsNameThePointerThePathAndWhatIsWanted) {
  const std::string missing = refusal("attention", "no/such.so");
  expect_has(missing, "/kernels/attention/library: \"no/such.so\": the system does not load it");
  expect_has(missing, "No such file");
  expect_has(refusal("matmul", __FILE__), "/kernels/matmul/library: ");  // no shared object
  const auto expect_refused = [](const std::string& fault, const std::string& part) {
    const std::string text = refusal("attention", faulty(fault));
    expect_has(text, "/kernels/attention/library: \"" + faulty(fault) + "\"");
    expect_has(text, part);
  };
  expect_refused("NO_SYMBOL", "has no function droptest_kernels(); want it");
  expect_refused("NULL_TABLES", "droptest_kernels(1) returned null; want version 1 of the interface");
  expect_refused("OTHER_VERSION", "got version 7; want version 1 of the interface");
  expect_refused("SHORT_TABLES", "droptest_kernels->struct_size: got 8, want at least 40");
  expect_refused("NO_NAME", "name: got null");
  expect_refused("NO_ATTENTION", "(faulty 0.1): attention: got null");
  expect_refused("SHORT_ATTENTION", "attention->struct_size: got 16, want at least 56");
  expect_refused("NULL_FUNCTION", "attention->backward: got null");
  expect_refused("DOUBLES_ALONE", "attention->element_types: got 2, want one with 1, the flag of float32");
  expect_refused("NO_CAUSAL_MASK", "attention->masks: got 2, want one with 1");
  expect_has(refusal("matmul", faulty("NO_ATTENTION")), "matmul: got null");
  expect_has(refusal("matmul", faulty("NULL_FUNCTION")), "matmul->multiply: got null");
  expect_has(refusal("matmul", faulty("DOUBLES_ALONE")), "matmul->element_types: got 2");
}

// The interface has no masks.
TEST(KernelLibrary, AttentionOfALibraryRefusesDropout) {
  HostOpsOptions options;
  options.kernels["attention"] = {"", kExample};
  Gpt2Config config{1, 8, 2, 8, 31};
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    config.dropout.residual = 0.1;
    EXPECT_NO_THROW(Gpt2(config, make_host_ops(options, group)));
    config.dropout.attention = 0.1;
    EXPECT_THROW(Gpt2(config, make_host_ops(options, group)), ConfigError);
  });
}

TEST(KernelLibrary, AKernelThatFailsIsAnErrorWithItsMessage) {
  comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
    const auto failure = [&](const std::string& operation, const std::string& fault) {
      return error_of([&] {
        (void)results_with({.threads = 2, .kernels = {{operation, {"", faulty(fault)}}}}, group);
      });
    };
    const std::string failing = failure("attention", "FAILING");
    expect_has(failing, "/kernels/attention/library: \"" + faulty("FAILING") + "\" (faulty 0.1): ");
    expect_has(failing, "attention->forward() returned 3: out of luck; want 0");
    expect_has(failure("attention", "LONG_MESSAGE"), "attention->forward() returned 4: " + std::string(255, 'x') + ";");
    expect_has(failure("attention", "NEGATIVE_SCRATCH"),
               "attention->statistics_elems() of 67 tokens and 5 columns returned -5; want 0 to 2^40");
    expect_has(failure("matmul", "FAILING"), "matmul->multiply() returned 7: no GEMM today; want 0");
    // Plans of memory ask, too.
    const auto form = host_ops_form({.kernels = {{"attention", {"", faulty("NEGATIVE_SCRATCH")}}}}, 1);
    EXPECT_THROW((void)form->attention_statistics_elems({1, 4, 1, 4}), ConfigError);
    // float64 models need the type, too.
    const std::string other_type = error_of([&] {
      (void)results_with({.type = ElementType::kFloat64, .kernels = {{"matmul", {"", faulty("FAILING")}}}}, group);
    });
    expect_has(other_type, "matmul->element_types: got 1, want one with 2, the flag of float64");
  });
}

}  // namespace
}  // namespace droptest::models::kernel_library_test
