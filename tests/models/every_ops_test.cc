// SPDX-License-Identifier: Apache-2.0
// Compares every operation of every implementation with the host's in double, for one list of cases.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "models/kernels/cross_entropy.h"
#include "models/optimizer.h"
#include "tests/models/every_implementation.h"
#include "tests/models/ops_bench.h"

namespace droptest::models::every_ops_test {
namespace {

using comm::ElementType;
using comm::Tensor;

constexpr std::int64_t kBatch = 2;
constexpr std::int64_t kLength = 3;
constexpr std::int64_t kRows = kBatch * kLength;
constexpr std::int64_t kWidth = 12;
constexpr std::int64_t kInner = 20;

NormForward norm_of(Bench& b) {
  NormForward n;
  n.residual = b.activations(1, kRows * kWidth);
  n.branch = b.activations(2, kRows * kWidth);
  n.branch_bias = b.weight(3, kWidth).value;
  n.gain = b.weight(4, kWidth, 1).value;
  n.bias = b.weight(5, kWidth).value;
  n.rows = kRows;
  n.width = kWidth;
  n.residual_after = b.empty(kRows * kWidth, b.types.activations);
  n.output = b.empty(kRows * kWidth, b.types.activations);
  n.mean = b.empty(kRows, b.types.statistics);
  n.inverse_deviation = b.empty(kRows, b.types.statistics);
  return n;
}

void norm_forward(Bench& b) {
  NormForward n = norm_of(b);
  b.ops.norm_forward(n);
  b.keep(n.residual_after);
  b.keep(n.output);
  n.branch = {};
  n.residual = n.residual_after;
  b.ops.norm_forward(n);
  b.keep(n.output);
}

void norm_backward(Bench& b) {
  const NormForward forward = norm_of(b);
  b.ops.norm_forward(forward);
  for (const GradientMode mode : {GradientMode::kSet, GradientMode::kAdd}) {
    NormBackward n;
    n.grad_output = b.activations(6, kRows * kWidth);
    n.residual_after = forward.residual_after;
    n.mean = forward.mean;
    n.inverse_deviation = forward.inverse_deviation;
    const Weight gain = b.weight(4, kWidth, 1);
    n.gain = gain.value;
    n.grad_gain = gain.gradient;
    n.grad_bias = b.weight(5, kWidth).gradient;
    n.rows = kRows;
    n.width = kWidth;
    n.grad_residual = b.activations(7, kRows * kWidth);
    if (mode == GradientMode::kAdd) n.grad_before = n.grad_residual;
    n.grad_branch_bias = b.weight(8, kWidth).gradient;
    n.mode = mode;
    n.scratch = b.empty(static_cast<std::int64_t>(b.ops.form().norm_scratch_elems(kRows, kWidth)), b.types.statistics);
    b.ops.norm_backward(n);
    for (const Tensor& tensor : {n.grad_residual, n.grad_gain, n.grad_bias, n.grad_branch_bias}) b.keep(tensor);
  }
}

// The residual stream, and the gradient of a branch's bias, as in the norm's passes but without the norm.
void residual(Bench& b) {
  const NormForward n = norm_of(b);
  b.ops.residual_forward(n);
  b.keep(n.residual_after);
  NormBackward backward;
  backward.rows = kRows;
  backward.width = kWidth;
  backward.grad_residual = b.activations(1, kRows * kWidth);
  backward.grad_branch_bias = b.weight(8, kWidth).gradient;
  for (const GradientMode mode : {GradientMode::kAdd, GradientMode::kSet}) {
    backward.mode = mode;
    b.ops.residual_backward(backward);
    b.keep(backward.grad_branch_bias);
  }
}

void linear(Bench& b) {
  const ProductShape shape{kRows, kWidth, kInner};
  const Weight weight = b.weight(10, kWidth * kInner);
  const Weight bias = b.weight(11, kInner);
  const Operand input = b.operand(b.activations(12, kRows * kWidth));
  const Tensor output = b.empty(kRows * kInner, b.types.activations);
  b.ops.linear_forward(shape, input, weight, &bias, output);
  b.keep(output);
  b.ops.linear_forward(shape, input, weight, nullptr, output);
  b.keep(output);
  const Operand grad_output = b.operand(b.activations(13, kRows * kInner), 1);
  const Tensor grad_input = b.empty(kRows * kWidth, b.types.activations);
  b.ops.linear_backward_input(shape, grad_output, weight, grad_input);
  b.keep(grad_input);
  b.ops.linear_backward_weight(shape, input, grad_output, GradientMode::kAdd, weight, &bias);
  b.keep(weight.gradient);
  b.keep(bias.gradient);
  b.ops.linear_backward_weight(shape, input, grad_output, GradientMode::kSet, weight, &bias);
  b.keep(weight.gradient);
  b.keep(bias.gradient);
}

// The linear layer of the LM head: the weight's rows are outputs, and gradients have a factor.
void transposed_linear(Bench& b) {
  const std::int64_t stride = b.ops.form().logit_chunks(kRows, kInner, kInner).stride;
  const ProductShape shape{kRows, kWidth, kInner, WeightLayout::kOutputsByInputs, stride};
  const Weight weight = b.weight(14, kWidth * kInner);
  const Operand input = b.operand(b.activations(15, kRows * kWidth));
  const Tensor output = b.empty(kRows * stride, b.types.activations);
  b.ops.linear_forward(shape, input, weight, nullptr, output);
  for (std::int64_t row = 0; row < kRows; ++row) b.keep(elements(output, row * stride, kInner));
  const Operand grad_output = b.operand(output, 0.25);
  const Tensor grad_input = b.empty(kRows * kWidth, b.types.activations);
  b.ops.linear_backward_input(shape, grad_output, weight, grad_input);
  b.keep(grad_input);
  b.ops.linear_backward_weight(shape, input, grad_output, GradientMode::kAdd, weight, nullptr);
  b.keep(weight.gradient);
}

void gelu(Bench& b) {
  const ProductShape first{kRows, kWidth, kInner};
  const ProductShape second{kRows, kInner, kWidth};
  const Weight weight = b.weight(20, kWidth * kInner);
  const Weight bias = b.weight(21, kInner);
  const Operand input = b.operand(b.activations(22, kRows * kWidth));
  const Tensor saved = b.empty(kRows * kInner, b.types.activations);
  const Tensor output = b.empty(kRows * kInner, b.types.activations);
  b.ops.gelu_forward(first, input, weight, bias, saved, output);
  b.keep(output);
  const Weight behind = b.weight(23, kInner * kWidth);
  const Tensor grad_input = b.empty(kRows * kInner, b.types.activations);
  for (const GradientMode mode : {GradientMode::kAdd, GradientMode::kSet}) {
    b.ops.gelu_backward_input(second, b.operand(b.activations(24, kRows * kWidth)), behind, saved, mode, bias,
                              grad_input);
    b.ops.linear_backward_weight(first, input, b.operand(grad_input), mode, weight,
                                 b.ops.form().gelu_sums_bias() ? nullptr : &bias);
    for (const Tensor& tensor : {grad_input, weight.gradient, bias.gradient}) b.keep(tensor);
  }
  const Tensor room = b.ops.form().gelu_needs_room() ? saved : Tensor();
  b.ops.gelu_forward(first, input, weight, bias, room, output);
  b.keep(output);
}

// GELU from its projection has the bits of gelu_forward(), if the form says so.
void gelu_of_projection(Bench& b) {
  const ProductShape shape{kRows, kWidth, kInner};
  const Weight weight = b.weight(20, kWidth * kInner);
  const Weight bias = b.weight(21, kInner);
  const Operand input = b.operand(b.activations(22, kRows * kWidth));
  const auto tensor = [&] { return b.empty(kRows * kInner, b.types.activations); };
  const Tensor want_saved = tensor();
  const Tensor want = tensor();
  b.ops.gelu_forward(shape, input, weight, bias, want_saved, want);
  b.keep(want);
  if (!b.ops.form().gelu_from_projection()) return;
  const Tensor projection = tensor();
  const Tensor saved = tensor();
  const Tensor got = tensor();
  b.ops.linear_forward(shape, input, weight, nullptr, projection);
  for (int time = 0; time < 2; ++time) {
    b.ops.gelu_of_projection(shape, projection, bias, saved, got);
    EXPECT_TRUE(std::ranges::equal(got.bytes, want.bytes)) << time;
    EXPECT_TRUE(std::ranges::equal(saved.bytes, want_saved.bytes)) << time;
  }
}

void offloaded_values(Bench& b) {
  const Tensor values = b.activations(40, kRows * kWidth);
  b.ops.offload().put(3, values);
  b.ops.offload().put(4, b.activations(41, kRows * kWidth));
  b.ops.zero(values);
  b.ops.offload().expect(4);
  b.ops.offload().expect(4);
  for (const std::uint64_t key : {4U, 3U, 3U}) {
    b.ops.offload().take(key, values);
    b.keep(values);
  }
  // What is expected twice is brought once: nothing of it is left for values of a later time.
  b.ops.offload().put(4, values);
  b.ops.offload().take(4, values);
  b.keep(values);
}

void attention(Bench& b) {
  const AttentionShape shape{kBatch, kLength, 3, 4};
  const OpsForm& form = b.ops.form();
  const auto scratch = [&](std::uint64_t elems, ElementType type) {
    return b.empty(static_cast<std::int64_t>(elems), type);
  };
  const Tensor qkv = b.activations(30, 3 * kRows * 12);
  const Tensor statistics = scratch(form.attention_statistics_elems(shape), b.types.statistics);
  const Tensor output = b.empty(kRows * 12, b.types.activations);
  b.ops.attention_forward(qkv, shape, {}, statistics, output,
                          scratch(form.attention_forward_scratch_elems(shape), b.types.activations));
  b.keep(output);
  const Tensor grad_qkv = b.empty(3 * kRows * 12, b.types.activations);
  b.ops.attention_backward(b.activations(31, kRows * 12), qkv, output, statistics, shape, {}, grad_qkv,
                           scratch(form.attention_backward_scratch_elems(shape), b.types.statistics));
  b.keep(grad_qkv);
}

void embedding(Bench& b) {
  const std::vector<std::int32_t> list = {4, 1, 7, 4, 9, 5};
  const TokenRange range{3, 5};  // 1 and 9 are another rank's
  const TokenIds tokens = b.tokens(list);
  const Weight table = b.weight(40, range.count * kWidth);
  const Weight positions = b.weight(41, (kLength + 1) * kWidth);
  const Tensor output = b.empty(kRows * kWidth, b.types.activations);
  b.ops.embedding_forward(tokens, range, table.value, kWidth, output);
  b.ops.add_positions(positions.value, kBatch, kLength, kWidth, output);
  b.keep(output);
  b.ops.group_tokens({list.data(), 2}, range, 0);
  b.ops.group_tokens(list, range, 2);
  b.ops.group_tokens({list.data(), 3}, range, 1);
  const Tensor gradient = b.activations(42, kRows * kWidth);
  b.ops.positions_backward(gradient, kBatch, kLength, kWidth, positions.gradient);
  b.keep(positions.gradient);
  b.ops.embedding_backward(tokens, range, 2, gradient, kWidth, table.gradient);
  b.keep(table.gradient);
}

void cross_entropy(Bench& b) {
  const std::int64_t columns = 10;
  const std::int64_t stride = b.ops.form().logit_chunks(kRows, columns, columns).stride;
  Numbers logits(static_cast<std::size_t>(kRows * stride), 5.0);  // padding that nothing reads
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t i = 0; i < columns; ++i) {
      logits[static_cast<std::size_t>(row * stride + i)] = 8 * mixed(50, static_cast<std::uint64_t>(row * columns + i));
    }
  }
  LogitBlock block;
  block.logits = b.tensor(logits, b.types.activations);
  block.rows = kRows;
  block.stride = stride;
  block.range = {0, columns};
  block.targets = b.tokens({0, 9, kIgnoredTarget, 4, 3, 7});
  for (Tensor* tensor : {&block.largest, &block.sums, &block.predicted}) *tensor = b.empty(kRows, b.types.statistics);
  block.losses = b.empty(kRows, b.types.losses);
  const auto keep_gradient = [&] {
    for (std::int64_t row = 0; row < kRows; ++row) b.keep(elements(block.logits, row * stride, columns));
  };
  b.ops.row_maxima(block);
  b.ops.exponential_sums(block);
  b.ops.losses_of_sums(block);
  b.ops.logits_to_gradient(block);
  b.keep(block.losses);
  keep_gradient();
  const Tensor by_pieces = block.losses;
  if (b.ops.form().fuses_cross_entropy()) {
    block.logits = b.tensor(logits, b.types.activations);
    block.losses = b.empty(kRows, b.types.losses);
    b.ops.cross_entropy(block, Logits::kKeep);
    b.keep(block.losses);
    b.ops.cross_entropy(block, Logits::kToGradient);
  } else {
    b.keep(by_pieces);
  }
  b.keep(block.losses);
  keep_gradient();
  b.ops.sum_losses(block.losses, 4, 3, GradientMode::kSet, Number::kLosses);
  b.ops.sum_losses(block.losses, 4, 7, GradientMode::kAdd, Number::kLosses);
  b.ops.sum_losses(block.losses, 4, 5, GradientMode::kSet, Number::kEvaluation);
  b.results.push_back(b.ops.numbers()[Number::kLosses]);
  b.results.push_back(b.ops.numbers()[Number::kEvaluation]);
  b.ops.weigh_rows(block, std::vector<double>{3, 7, 7, 0.25, 1.5, 7, 7, 0, 7, 2});
  b.keep(block.losses);
  keep_gradient();
}

void adapters(Bench& b) {
  const AdapterShape shape{kInner, kWidth, 3, 0.75};
  const auto tensor = [&](std::uint64_t stream, std::int64_t elems) {
    return b.formula(stream, elems, b.types.parameters);
  };
  const Tensor a = tensor(81, 3 * kInner);
  const Tensor of_b = tensor(82, 3 * kWidth);
  const Tensor merged = tensor(83, kInner * kWidth);
  b.ops.merge_adapter(shape, tensor(80, kInner * kWidth), a, of_b, merged);
  b.keep(merged);
  const Tensor grad_a = tensor(84, 3 * kInner);
  const Tensor grad_b = tensor(85, 3 * kWidth);
  b.ops.adapter_gradients(shape, tensor(86, kInner * kWidth), a, of_b, grad_a, grad_b);
  b.keep(grad_a);
  b.keep(grad_b);
}

void sums_over_ranks(Bench& b) {
  const Tensor sum = b.activations(60, kRows * kWidth);
  b.ops.begin_sum(sum, {}, {sim::TrafficClass::kTpForward, "a", -1});
  b.ops.join();
  b.keep(sum);
  const Tensor largest = b.formula(61, 5, b.types.statistics);
  b.ops.begin_all_reduce(largest, comm::ReduceOp::kMax, {sim::TrafficClass::kControl, "b", -1});
  b.ops.join();
  b.keep(largest);
}

void optimizer(Bench& b) {
  const std::int64_t elems = 40;
  const auto arena = [&](std::uint64_t stream) { return b.formula(stream, elems, b.types.parameters); };
  const auto ranges = b.ops.make_ranges({{0, 7, Decay::kDecays, 0.25}, {16, 0}, {16, 21, Decay::kKeeps, 3}});
  UpdateArenas arenas{arena(70), arena(71), b.empty(elems, b.types.parameters), b.empty(elems, b.types.parameters), {}};
  if (comm::element_bytes(b.types.activations) == 2) arenas.rounded = b.empty(elems, b.types.activations);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    b.ops.adamw(*ranges, arenas, adamw_step({.epsilon = 1e-3, .weight_decay = 0.4}, step, 0.01, 0.5),
                Ops::GradientFactor::kOfStep);
  }
  b.keep(arenas.values);
  b.keep(arenas.rounded.bytes.empty() ? elements(arenas.values, 0, 7) : elements(arenas.rounded, 0, 7));
  UpdateArenas of_sgd = arenas;
  of_sgd.first_moments = b.empty(elems, b.types.parameters);
  of_sgd.second_moments = {};
  for (int step = 0; step < 3; ++step) {
    b.ops.sgd(*ranges, of_sgd, {.learning_rate = 0.25, .gradient_scale = 0.5, .momentum = 0.75, .weight_decay = 0.4},
              Ops::GradientFactor::kOfStep);
  }
  b.keep(of_sgd.values);
  b.keep(of_sgd.first_moments);
  const Tensor squares = b.empty(2, ElementType::kFloat64);
  b.ops.sum_squares(*ranges, arenas.gradients, squares);
  b.keep(squares);
  b.ops.add_sums(squares, Number::kGradientSquares);
  b.results.push_back(b.ops.numbers()[Number::kGradientSquares]);
  b.ops.accumulate(elements(arenas.gradients, 3, 30), elements(arenas.values, 1, 30));
  b.keep(arenas.values);
}

// Gradients that are clipped, gradients that are not, and updates that are skipped: because of a gradient, and because
// of the loss.
void decided_update(Bench& b) {
  const std::int64_t elems = 40;
  const auto ranges = b.ops.make_ranges({{0, 40}});
  UpdateArenas arenas{b.formula(72, elems, b.types.parameters),
                      {},
                      b.empty(elems, b.types.parameters),
                      b.empty(elems, b.types.parameters),
                      {}};
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double loss : {1.5, infinity}) {
    for (const double gradient : {0.125, 4.0, infinity, std::nan("")}) {
      Numbers gradients(static_cast<std::size_t>(elems), 0.25);
      gradients[11] = gradient;
      arenas.gradients = b.tensor(gradients, b.types.parameters);
      b.ops.sum_losses(b.tensor({1, loss, 2}, b.types.losses), 2, 3, GradientMode::kSet, Number::kLosses);
      const Tensor squares = b.empty(1, ElementType::kFloat64);
      b.ops.sum_squares(*ranges, arenas.gradients, squares);
      b.ops.add_sums(squares, Number::kGradientSquares);
      b.ops.decide_update({2.0, 2}, nullptr, {sim::TrafficClass::kControl, "a", -1});
      b.ops.adamw(*ranges, arenas, adamw_step({.epsilon = 1e-3}, 1, 0.01, 7), Ops::GradientFactor::kDecided);
      const Ops::Numbers numbers = b.ops.numbers();
      for (const Number number : {Number::kLoss, Number::kGradientNorm, Number::kGradientFactor}) {
        b.results.push_back(std::isfinite(numbers[number]) ? numbers[number] : -1);
      }
      b.keep(arenas.values);
      b.keep(arenas.second_moments);
    }
  }
}

struct Case {
  const char* name;
  void (*run)(Bench& bench);
};
constexpr Case kCases[] = {{"norm_forward", norm_forward},
                           {"norm_backward", norm_backward},
                           {"residual", residual},
                           {"linear", linear},
                           {"transposed_linear", transposed_linear},
                           {"gelu", gelu},
                           {"gelu of a projection", gelu_of_projection},
                           {"offloaded values", offloaded_values},
                           {"attention", attention},
                           {"embedding", embedding},
                           {"cross_entropy", cross_entropy},
                           {"adapters", adapters},
                           {"sums_over_ranks", sums_over_ranks},
                           {"optimizer", optimizer},
                           {"decided_update", decided_update}};

TEST(EveryOps, DoesWhatTheHostDoesInDouble) {
  for (const Case& operation : kCases) {
    comm::run_ranks(1, kTestTimeout, [&](comm::Communicator& group) {
      const std::unique_ptr<Ops> reference =
          make_host_ops({.type = ElementType::kFloat64, .precision = {}, .threads = 1}, group);
      Bench expected(*reference);
      operation.run(expected);
      ASSERT_FALSE(expected.results.empty());
      for (const Implementation& implementation : implementations()) {
        const std::unique_ptr<Ops> ops = implementation.make(group);
        Bench got(*ops);
        operation.run(got);
        ASSERT_EQ(got.results.size(), expected.results.size()) << operation.name << " on " << implementation.name;
        EXPECT_LE(relative_difference(got.results, expected.results), implementation.tolerance)
            << operation.name << " on " << implementation.name;
      }
    });
  }
}

}  // namespace
}  // namespace droptest::models::every_ops_test
